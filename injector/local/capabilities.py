"""Reports what this machine can and cannot do for local sandboxes (`orchard doctor`)."""

import tempfile
import uuid
from pathlib import Path
from typing import NamedTuple

from orchard.injector.agent.local.cgroups import LIMIT_NAMES, SOCKETS, Cgroups
from orchard.injector.agent.local.requirements import inspect


class Capability(NamedTuple):
    """One finding; `remedy` is empty if nothing needs to be done."""

    name: str
    able: bool
    says: str
    remedy: str


def capabilities(state: Path | None = None) -> list[Capability]:
    """Test what local sandboxes need, with changes kept in `state` (the temporary directory by default)."""
    requirements = inspect(state or Path(tempfile.gettempdir()))
    cgroups = Cgroups(Path(uuid.uuid4().hex))
    cgroups.close()
    able = not requirements.problems
    says = "isolated by namespaces and overlayfs" if able else "not possible here"
    found = [Capability("local sandboxes", able, says, "; ".join(requirements.problems))]
    remedy = requirements.network_problem
    network = "not possible here" if remedy else "outbound only, by slirp4netns"
    found.append(Capability("sandboxes with a network", not remedy, network, remedy))
    for controller, enforced in cgroups.enforced.items():
        how = f"enforced by cgroups ({cgroups.layout.version})" if enforced else "not enforced"
        needed = "memory" if controller == SOCKETS else controller
        remedy = "" if enforced else f"give this process a writable `{needed}` control group"
        found.append(Capability(f"limit of {LIMIT_NAMES[controller]}", enforced, how, remedy))
    says = "watched: a sandbox that takes more is stopped and its files removed"
    found.append(Capability("limit of disk", True, says, ""))
    return found
