"""Addresses and names of variables in a configuration, refused in one sentence where they cannot be.

No sentence repeats a text that may hold a secret: an address with a user in it, or a key where the name of
the variable that holds it is wanted.
"""

import re
from urllib.parse import SplitResult, urlsplit

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_LENGTH = 20
"""A name that is this long and has no underscores, or mixes small letters with digits or capitals, is a
key."""
_PATHS = re.compile(r"/(chat/completions|completions|responses|messages|embeddings|models)/?$")
"""What clients add to the base URL of an OpenAI-compatible endpoint."""
BASE_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
"""A path below which a proxy serves something."""
_LOCAL = re.compile(r"([^./:]+|(127|10)(\.[0-9]+){3}|192\.168(\.[0-9]+){2}|\[::1\])(:|/|$)")
"""Matches a host that is reached without TLS."""


def check_base_url(url: str, what: str) -> None:
    """Raises ValueError for what is no `http://` or `https://` address of an OpenAI-compatible endpoint."""
    parts = check_http_url(url, what)
    if found := _PATHS.search(parts.path):
        meant = url[: url.rindex(found[0])]
        raise ValueError(
            f"{what} {url!r} is the address of one request: did you mean {meant!r}? Clients add the path"
        )


def check_http_url(url: str, what: str) -> SplitResult:
    """The parts of an `http://` or `https://` address without a user in it. Raises ValueError for others."""
    parts = _parts(url, what, "https://HOST/PATH")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            f"{what} has a user or password in it: leave them out, and put the key into an environment "
            "variable whose name is api_key_env"
        )
    if parts.scheme not in ("http", "https"):
        scheme = "http" if _LOCAL.match(url) else "https"
        hint = _meant(url, scheme)
        raise ValueError(f"{what} is no http:// or https:// address{hint}")
    if not parts.hostname:
        raise ValueError(f"{what} {url!r} names no host: write it as https://HOST/PATH")
    return parts


_NATS_SCHEMES = ("nats", "tls", "ws", "wss")


def check_nats_urls(urls: str, what: str) -> None:
    """Raises ValueError for what is no server, or several separated by commas."""
    for url in urls.split(","):
        parts = _parts(url.strip(), what, "nats://HOST:PORT")
        if parts.scheme not in _NATS_SCHEMES:
            hint = _meant(url.strip(), "nats")
            raise ValueError(f"{what} is no nats:// or tls:// address{hint}")
        if not parts.hostname:
            raise ValueError(f"{what} names no host: write it as nats://HOST:PORT")


def check_base_path(path: str) -> str:
    """Returns a path below which a proxy serves something, without a slash at its end; empty for none.
    Raises ValueError."""
    path = path.rstrip("/")
    if path and not BASE_PATH.fullmatch(path):
        raise ValueError(f"the base path {path[:60]!r} is none: write one such as /orchard")
    return path


def check_variable(name: str | None, what: str) -> None:
    """Raises ValueError for what cannot be the name of an environment variable, or looks like the key that
    should be in it; the text is not repeated."""
    if name is None:
        return
    mixed = any(map(str.islower, name)) and (any(map(str.isdigit, name)) or any(map(str.isupper, name)))
    looks_like_a_key = len(name) >= _NAME_LENGTH and ("_" not in name or mixed)
    if not _VARIABLE.fullmatch(name) or looks_like_a_key:
        raise ValueError(
            f"{what} is no environment variable's name, and may be the secret itself, not repeated here: "
            f"put that into a variable, and set {what} to the variable's name, such as OPENAI_API_KEY"
        )


def _parts(url: str, what: str, form: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # whose text may hold a password
        raise ValueError(f"{what} is no URL of a server: write it as {form}") from None
    return parts


_PIECE = 40


def _meant(url: str, scheme: str) -> str:
    """The end of a sentence about an address without its scheme; only what looks like a host is repeated."""
    rest = url.rpartition("://")[2].lstrip("/")
    pieces = re.split(r"[./:]", rest)
    shown = "@" not in url and (len(pieces) > 1 or rest == "localhost") and max(map(len, pieces)) < _PIECE
    return f": did you mean {f'{scheme}://{rest}'!r}?" if shown else f": write it as {scheme}://HOST"
