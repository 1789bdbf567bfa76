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
    """The network keys of `[environment]`, `[agent]` and `[verifier]`."""

    network_mode: str | None = None
    allowed_hosts: tuple[str, ...] | None = None
    allow_internet: bool | None = None
    """Older key, in `[environment]` alone."""


def asked_for(environment: Policy, agent: Policy, verifier: Policy) -> Network:
    """The network of the task's sandbox. Raises ValueError for an unknown policy, and for those that
    Orchard lacks: another network for the check than for the agent, hosts by pattern."""
    baseline = _network(environment)
    if baseline is None:
        baseline = Network() if environment.allow_internet is False else PUBLIC
    if any(phase.network_mode is None and phase.allowed_hosts is not None for phase in (agent, verifier)):
        raise ValueError(_NEEDS_MODE)
    phases = [_network(phase) or baseline for phase in (agent, verifier)]
    if phases[0] != phases[1]:
        raise ValueError(
            f"the agent is to reach {phases[0].told}, and the tests {phases[1].told}: both run in one "
            "sandbox here, which has one network"
        )
    return phases[0]


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
    rules = tuple(f"{host.strip().lower().rstrip('.')}:{port}" for host in hosts for port in PORTS)
    for rule in rules:
        try:
            Rule.of(rule)
        except RequestInvalid as error:
            raise ValueError(f"allowed_hosts: {error.detail}") from error
    return rules
