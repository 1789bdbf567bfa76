"""Which proxy a pull goes through: the one of HTTPS_PROXY, or of HTTP_PROXY for a registry without TLS."""

from contextlib import suppress
from ipaddress import ip_address, ip_network
from urllib.request import getproxies, proxy_bypass

from yarl import URL

from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.local.ssrf_guard import local

WHERE_SET = "in the environment of the sandbox service's agent"


def variable(url: URL) -> str:
    """Name of the variable with the proxy of a URL."""
    return f"{url.scheme.upper()}_PROXY"


def proxy_of(url: URL) -> URL | None:
    """Return the proxy for a URL, or None for this machine's own names and those of NO_PROXY.

    NO_PROXY has names and addresses, separated by commas, each for what ends in it, too; networks, such as
    10.0.0.0/8, for the addresses in them; `*` is all. Raises RequestInvalid (`proxy_invalid`).
    """
    proxies = getproxies()
    text = proxies.get(url.scheme)
    host = url.host or ""
    direct = local(host) or proxy_bypass(f"{host}:{url.port}") or _in_network(host, proxies.get("no", ""))
    if not text or direct:
        return None
    try:
        proxy = URL(text)
    except ValueError:
        proxy = URL()
    if proxy.scheme not in ("http", "https") or not proxy.host:
        raise RequestInvalid(  # without the text, which may have a password
            f"{variable(url)} is no address of an HTTP proxy: write http://HOST:PORT, {WHERE_SET}",
            reason="proxy_invalid",
        )
    return proxy


def _in_network(host: str, exceptions: str) -> bool:
    for each in exceptions.split(","):
        with suppress(ValueError):  # a name, or no network
            if "/" in each and ip_address(host) in ip_network(each.strip(), strict=False):
                return True
    return False
