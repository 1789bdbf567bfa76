"""Reads the network that a Harbor task asks for, by the rules of Harbor 0.26.

Pure. The environment has a policy: `network_mode` (`public`, `no-network`, `allowlist` with
`allowed_hosts`), else the older `allow_internet`, else public. `[agent]` and `[verifier]` may each
have another for their own time.
"""

from collections.abc import Sequence

import msgspec

from orchard.injector.agent.egress import Rule
from orchard.injector.agent.errors import RequestInvalid
from orchard.schemas.sandboxes import EGRESS
from orchard.workers.episode.networks import PORTS, Network

PUBLIC = Network(blocked=False)
_ALLOWLIST = "allowlist"
_NEEDS_MODE = f'allowed_hosts needs network_mode = "{_ALLOWLIST}"'


class Policy(msgspec.Struct, frozen=True):
    """The network keys of `[agent]` and `[verifier]`."""

    network_mode: str | None = None
    allowed_hosts: tuple[str, ...] | None = None


class BaselineNetwork(Policy, frozen=True):
    """The network keys of an environment."""

    allow_internet: bool | None = None
    """Older key."""


def baseline(environment: BaselineNetwork) -> Network:
    """The network of a sandbox outside of any phase. Raises ValueError for an unknown policy, and for those
    that Orchard lacks, as hosts by pattern."""
    found = _network(environment)
    if found is not None:
        return found
    return Network() if environment.allow_internet is False else PUBLIC


def phase(policy: Policy, of: Network) -> Network:
    """The network of `[agent]` or `[verifier]` in a sandbox with the baseline `of`. Raises ValueError."""
    if policy.network_mode is None and policy.allowed_hosts is not None:
        raise ValueError(_NEEDS_MODE)
    return _network(policy) or of


def _network(policy: Policy) -> Network | None:
    """None where the policy says nothing."""
    hosts = policy.allowed_hosts or ()
    if hosts and policy.network_mode != _ALLOWLIST:
        raise ValueError(_NEEDS_MODE)
    match policy.network_mode:
        case None:
            return None
        case "public":
            return PUBLIC
        case "no-network":
            return Network()
        case "allowlist":
            return Network(hosts=_rules(hosts))
    raise ValueError(f"network_mode is {policy.network_mode!r}: Harbor knows public, no-network, allowlist")


def _rules(hosts: Sequence[str]) -> tuple[str, ...]:
    """Rules for the hosts at the ports of the web: a sandbox lets through no host as a whole."""
    if len(hosts) * len(PORTS) > EGRESS:
        raise ValueError(
            f"allowed_hosts has {len(hosts)} entries, and a sandbox takes {EGRESS // len(PORTS)}"
        )
    names = [host.strip().lower().rstrip(".") for host in hosts]
    if wrong := next((name for name in names if "_" in name), None):
        raise ValueError(f"allowed_hosts: {wrong!r} is no name of a host")
    rules = tuple(f"{name}:{port}" for name in names for port in PORTS)
    for rule in rules:
        try:
            Rule.of(rule)
        except RequestInvalid as error:
            raise ValueError(f"allowed_hosts: {error.detail}") from error
    return rules
