"""Egress rules: hosts and ports that a sandbox without network may reach."""

import ipaddress
import re
from dataclasses import dataclass

from orchard.injector.agent.errors import RequestInvalid

_NAME = re.compile(
    r"(?=.{1,253}\Z)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?\Z"
)
"""A host name; its last label begins with a letter, so that no resolver takes it for an address."""
_FORM = "`HOST:PORT`, with a host name, an IPv4 address or an IPv4 network such as `203.0.113.0/24`"


@dataclass(frozen=True)
class Rule:
    """Permits TCP connections to `port` of a host or network."""

    host: str
    """Lower-case name; empty if the rule names a network."""
    network: ipaddress.IPv4Network | None
    """None: the addresses that the name resolves to."""
    port: int

    @classmethod
    def of(cls, text: str) -> "Rule":
        """Parse a rule. Raises RequestInvalid."""
        host, colon, digits = text.rpartition(":")
        port = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 6 else 0
        if not colon or not 0 < port < 1 << 16:
            raise RequestInvalid(f"`{text[:80]}` is no rule: {_FORM}")
        if "*" in host:
            raise RequestInvalid(f"`{text[:80]}` has a wildcard: name each host")
        if re.fullmatch(r"[0-9./]+", host):
            try:
                return cls("", ipaddress.IPv4Network(host), port)
            except ValueError as error:
                raise RequestInvalid(f"`{text[:80]}` is no rule: {error}") from error
        name = host.lower().removesuffix(".")
        if not _NAME.fullmatch(name) or name.rpartition(".")[2] == "localhost":
            raise RequestInvalid(f"`{text[:80]}` is no rule: {_FORM}")
        return cls(name, None, port)
