"""Which key a sandbox counts for: written on the sandbox itself, since replicas share nothing else."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from orchard.injector.agent.machine import OWNER
from orchard.injector.backend import Backend
from orchard.injector.errors import SandboxError, SandboxNotFound
from orchard.injector.orchestrator.keys import Keys
from orchard.injector.orchestrator.limits import Admission, sandboxes_excess
from orchard.injector.orchestrator.refusals import Invalid, OverLimit
from orchard.schemas.sandboxes import SandboxStatus

RESERVED = "orchard."
"""Labels of requests may not begin with it."""
CREATION = "orchard.creation"
"""Digest of the idempotency key of its creation."""

Labels = TypeVar("Labels", dict[str, str], dict[str, str] | None)


class Ownership:
    """Counts a key's sandboxes before it makes more.

    At one replica creations of a key follow one another, so there the limit is exact. Another replica may
    count at the same moment: the limit can be exceeded by what was being created there.
    """

    def __init__(self, backend: Backend, admission: Admission, keys: Keys) -> None:
        self._backend = backend
        self._keys = keys
        self._admission = admission
        self._creating: dict[str, asyncio.Lock] = {}

    def matters(self, name: str) -> bool:
        """Whether sandboxes of the key of this name are labelled: it has a limit, or is kept to its own."""
        return self._keys.owns(name) or self._admission.of(name).sandboxes is not None

    def seen_by(self, name: str) -> dict[str, str]:
        """Labels of the sandboxes that the key of this name may see."""
        return {OWNER: name} if self._keys.owns(name) else {}

    def idempotency(self, name: str, key: str | None) -> str | None:
        """A key's idempotency keys are its own."""
        return key if key is None or not self._keys.owns(name) else f"{name}:{key}"

    async def check(self, name: str, sandbox_id: str) -> None:
        """Raise SandboxNotFound for another key's sandbox, in the words for one that is not there.

        What is not there at all is left to whoever asks for it.
        """
        if not self._keys.owns(name):
            return
        with suppress(SandboxNotFound):
            labels = (await self._backend.get(sandbox_id)).labels
            if labels.get(OWNER) != name:
                raise _NotYours(f"there is no sandbox {sandbox_id}")

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


class _NotYours(SandboxError):
    """As SandboxNotFound says it."""

    default_status = SandboxNotFound.default_status
    default_reason = SandboxNotFound.default_reason


def without_owner(labels: Mapping[str, str]) -> dict[str, str]:
    """Those that a caller gave."""
    return {name: value for name, value in labels.items() if not name.startswith(RESERVED)}


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())
