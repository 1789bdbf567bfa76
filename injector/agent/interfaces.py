"""Interfaces of a backend: what the agent needs from whatever makes its sandboxes."""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchard.injector.agent.accounts import ROOT, UserAccount, account
from orchard.injector.agent.egress import Rule
from orchard.injector.agent.errors import RequestInvalid, Unsupported
from orchard.injector.agent.spawning import Entrance

Died = Callable[[str, str], None]
"""Called with a reason (a word) and a sentence when a sandbox ends unasked."""

OWNER = "orchard.key"
"""Label with the key that owns a sandbox, and with it the images made from it."""
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,53}[a-z0-9])?")
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:([eE][+-]?\d+)|(m|[kMGTPE]|[KMGTPE]i))?", re.ASCII)
_MOST = 2.0**63
"""Exclusive upper bound of quantities, as in Kubernetes."""
_SUFFIXES = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18} | {
    f"{letter}i": float(1024**power) for power, letter in enumerate("KMGTPE", start=1)
}


def quantity(text: str) -> float:
    """Parse a Kubernetes quantity (`4`, `500m`, `16Gi`, `1e9`). Raises ValueError.

    `schemas.quantities` has another parser, which needs msgspec: the agent has only aiohttp.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"`{text[:40]}` is not a quantity such as `2`, `500m` or `16Gi`")
    number, exponent, suffix = match.groups()
    value = float(number + (exponent or "")) * (_SUFFIXES[suffix] if suffix else 1.0)
    if value >= _MOST:
        raise ValueError(f"`{text[:40]}` is more than any machine has")
    return value


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """Request for a sandbox. `cpu` in cores and `memory` in bytes are Kubernetes quantities; times are
    seconds."""

    sandbox_id: str
    image: str
    block_network: bool = True
    cpu: str = "4"
    memory: str = "16Gi"
    timeout: float = 3600.0
    labels: Mapping[str, str] = field(default_factory=dict)
    ttl_seconds: float | None = None
    pids: int | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment of its commands, on top of the image's."""
    layers: Sequence[str] = ()
    """Images whose files are laid over those of `image`, later ones on top."""
    programs: Sequence[str] = ()
    """Installed programs whose commands it has on its PATH."""
    egress: Sequence[str] = ()
    """Exceptions from a blocked network, as `egress.Rule` parses them."""

    @property
    def owner(self) -> str | None:
        return self.labels.get(OWNER)

    @property
    def cores(self) -> float:
        return quantity(self.cpu)

    @property
    def memory_bytes(self) -> int:
        return int(quantity(self.memory))

    def check(self) -> None:
        """Raise RequestInvalid for an id that is no DNS label, senseless quantities, and invalid or
        useless egress rules."""
        if self.sandbox_id and not _LABEL.fullmatch(self.sandbox_id):
            raise RequestInvalid(
                f"the sandbox_id `{self.sandbox_id}` is no DNS label: use up to 55 lower-case letters,"
                " digits and dashes, with a letter or digit at both ends"
            )
        try:
            sensible = self.cores > 0 and self.memory_bytes > 0
        except ValueError as error:
            raise RequestInvalid(str(error)) from error
        if not sensible:
            raise RequestInvalid(
                f"`cpu` is {self.cpu} and `memory` is {self.memory}: both must be more than zero"
            )
        for name, seconds in (("timeout", self.timeout), ("ttl_seconds", self.ttl_seconds)):
            if seconds is not None and not 0 < seconds < math.inf:
                raise RequestInvalid(f"`{name}` is {seconds:g}: it must be a number of seconds above zero")
        for text in self.egress:
            Rule.of(text)
        if self.egress and not self.block_network:
            raise RequestInvalid(
                "`egress` has exceptions from a blocked network, and `block_network` is false: make it"
                " true, or leave `egress` out"
            )


class Template(Protocol):
    """A copy of a sandbox's file system, for others to start from."""

    async def create(self, spec: SandboxSpec, died: Died) -> "RunningSandbox":
        """Start a sandbox like `Host.create`, with this file system in place of an image."""

    async def size(self) -> int:
        """Bytes of the files that it adds to the image."""

    async def release(self) -> None:
        """Release the copy: no other sandbox will start from it, but those that use it keep it."""


class RunningSandbox(Protocol):
    entrance: Entrance
    root: int
    """Descriptor of its root directory, as its processes see it."""
    environment: dict[str, str]
    """Environment of the image and the sandbox; a command's own comes on top."""
    working_directory: str
    """The image's; relative `cwd`s start here."""
    user: str
    """Default user of commands, as an image names it (`accounts.account`); empty: the agent's own."""
    note: str
    """A sentence about what was requested but is not enforced, or empty."""

    def oom_kills(self) -> int:
        """Number of its processes that the kernel has killed for memory."""

    def dying(self) -> bool:
        """Whether its first process is exiting, so that all others are being killed."""

    async def snapshot(self, image: str) -> dict[str, Any]:
        """Make its current file system an image; returns `{"image", "layers", "size"}` (bytes)."""

    async def template(self) -> Template:
        """Copy its current file system.

        Its commands run meanwhile, so a file that is being written is copied with its content of that moment.
        """

    async def freeze(self, frozen: bool) -> None:
        """Stop all its processes, or resume them. Returns once they have stopped."""

    async def destroy(self) -> None:
        """Kill all its processes and free all its resources. May be called again after a failure."""


@dataclass(kw_only=True)
class UnisolatedSandbox:
    """The agent's own root, presented as a sandbox: nothing is isolated."""

    environment: dict[str, str]
    no_copy: str
    """Why there are no snapshots and forks, and what to do instead."""
    working_directory: str = "/"
    user: str = ""
    note: str = ""
    entrance: Entrance = field(default_factory=lambda: Entrance(pidfd=None, cgroups=()))
    root: int = field(default_factory=lambda: os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def oom_kills(self) -> int:
        return 0

    def dying(self) -> bool:
        return False

    async def snapshot(self, image: str) -> dict[str, Any]:
        raise Unsupported(f"no snapshot `{image}`: {self.no_copy}")

    async def template(self) -> Template:
        raise Unsupported(f"no fork: {self.no_copy}")

    async def freeze(self, frozen: bool) -> None:  # noqa: ARG002
        raise Unsupported(
            "no pause: nothing here can freeze all processes of this sandbox; stop its commands"
        )

    async def destroy(self) -> None:
        if self.root >= 0:
            os.close(self.root)
            self.root = -1


def account_of(machine: RunningSandbox, user: str | None) -> tuple[UserAccount | None, dict[str, str]]:
    """Resolve the user of a command, `user` or else the image's, and its environment. Raises
    RequestInvalid."""
    name = user or machine.user
    if not name:
        return None, machine.environment
    found = account(machine.root, name)
    home = machine.environment.get("HOME", ROOT.home)
    return found, {**machine.environment, "HOME": found.home if home == ROOT.home else home}


class Host(Protocol):
    """A backend, which makes sandboxes."""

    async def create(self, spec: SandboxSpec, died: Died) -> RunningSandbox:
        """Start a sandbox. Raises AgentError with a reason (`image_missing`, `start_failed`)."""

    def capabilities(self) -> dict[str, Any]: ...
