"""Which key a sandbox counts for: written on the sandbox itself, since replicas share nothing else."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from orchard.injector.backend import Backend
from orchard.injector.orchestrator.limits import Admission, sandboxes_excess
from orchard.injector.orchestrator.replies import Invalid, OverLimit
from orchard.schemas.sandboxes import SandboxStatus

RESERVED = "orchard."
"""Labels of requests may not begin with it."""
OWNER = "orchard.key"
"""Name of the key that it counts for; only where the key's number of sandboxes is limited."""
CREATION = "orchard.creation"
"""Digest of the idempotency key of its creation."""

Labels = TypeVar("Labels", dict[str, str], dict[str, str] | None)


class Ownership:
    """Counts a key's sandboxes before it makes more.

    At one replica creations of a key follow one another, so there the limit is exact. Another replica may
    count at the same moment: the limit can be exceeded by what was being created there.
    """

    def __init__(self, backend: Backend, admission: Admission) -> None:
        self._backend = backend
        self._admission = admission
        self._creating: dict[str, asyncio.Lock] = {}

    def matters(self, name: str) -> bool:
        """Whether the key of this name has a limit."""
        return self._admission.of(name).sandboxes is not None

    @asynccontextmanager
    async def of(self, name: str, wanted: int, key: str | None, labels: Labels) -> AsyncIterator[Labels]:
        """Around a creation of `wanted` sandboxes: the labels they shall have.

        Raises OverLimit when they are too many, unless they are there already, made under the same
        idempotency `key`; Invalid for reserved labels.
        """
        for label in labels or {}:
            if label.startswith(RESERVED):
                raise Invalid(["body", "labels", label], f"labels that begin with `{RESERVED}` are ours")
        if not self.matters(name):
            yield labels
            return
        async with self._creating.setdefault(name, asyncio.Lock()):
            creation = {} if key is None else {CREATION: hashlib.sha256(key.encode()).hexdigest()[:16]}
            own = await self._backend.list({OWNER: name})
            if not creation or not any(_has(info.labels, creation) for info in own):
                there = sum(info.status is not SandboxStatus.FAILED for info in own)
                excess = sandboxes_excess(self._admission.of(name), there, wanted)
                if excess is not None:
                    raise OverLimit(excess)
            yield {**(labels or {}), OWNER: name, **creation}


def without_owner(labels: Mapping[str, str]) -> dict[str, str]:
    """Those that a caller gave."""
    return {name: value for name, value in labels.items() if not name.startswith(RESERVED)}


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())
