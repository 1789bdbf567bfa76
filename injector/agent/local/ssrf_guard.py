"""SSRF guard: image pulls may not reach private addresses."""

import ipaddress
import socket
from contextlib import suppress

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from orchard.injector.agent.errors import RequestInvalid

REFUSED = "image_refused"
_TRANSLATED = tuple(ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16"))
"""IPv6 ranges that embed IPv4 addresses."""


def local(host: str) -> bool:
    """Whether plain http to `host` stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _TRANSLATED)


class SsrfGuard(AbstractResolver):
    """Resolver that permits the registry itself and public addresses; with `public_only` the registry must be
    public too.

    It is a resolver so that the address that was checked is the one that is connected to.
    """

    def __init__(self, registry: URL, *, public_only: bool) -> None:
        self._registry = registry
        self._public_only = public_only
        self._names = ThreadedResolver()

    def check(self, url: URL) -> None:
        """Raise RequestInvalid (`image_refused`) for a scheme or an address that is not permitted."""
        plain = self._registry.scheme == "http" and url.host == self._registry.host
        if url.scheme != "https" and not (plain and url.scheme == "http"):
            raise RequestInvalid(
                f"{self._registry.host} sends the pull to {url.scheme}://{url.host}: only https is followed",
                reason=REFUSED,
            )
        try:
            ipaddress.ip_address(url.host or "")
        except ValueError:
            return  # a name: `resolve` will see its addresses
        self._check(url.host or "", url.host or "")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve a name. Raises RequestInvalid (`image_refused`) for an address that is not permitted,
        and OSError."""
        found = await self._names.resolve(host, port, family)
        for one in found:
            self._check(host, one["host"])
        return found

    async def check_proxied(self, url: URL) -> None:
        """Raise RequestInvalid (`image_refused`) if a name leads to an address that is not permitted, as this
        machine resolves it. One that it does not know is left to the proxy, which resolves all again.
        """
        if url.host == self._registry.host and not self._public_only:
            return
        with suppress(OSError):
            await self.resolve(url.host or "", url.port or 0, socket.AF_UNSPEC)

    async def close(self) -> None:
        await self._names.close()

    def _check(self, host: str, address: str) -> None:
        if host == self._registry.host:
            if self._public_only and not public(address):
                raise RequestInvalid(
                    f"the registry {host} has the private address {address}: with this key images come from "
                    "public registries only",
                    reason=REFUSED,
                )
        elif not public(address):
            raise RequestInvalid(
                f"{self._registry.host} sends the pull to {host}, the private address {address}: "
                "let the registry serve its layers itself, or import the image from an archive",
                reason=REFUSED,
            )
