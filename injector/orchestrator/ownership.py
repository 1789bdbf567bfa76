"""Assigns sandboxes to keys by labels on the sandboxes themselves, since replicas share nothing else."""

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import TypeVar

from orchard.injector.agent.interfaces import OWNER
from orchard.injector.backend import Backend
from orchard.injector.errors import SandboxError, SandboxNotFound
from orchard.injector.orchestrator.keys import Keys
from orchard.injector.orchestrator.limits import OverLimit, RequestAdmission, sandboxes_excess
from orchard.injector.orchestrator.requests import Invalid
from orchard.schemas.sandboxes import SandboxStatus

RESERVED = "orchard."
"""Prefix that labels of requests must not have."""
CREATION = "orchard.creation"
"""Label with the digest of the creation's idempotency key."""
COUNTED_SECONDS = 5.0
"""Greatest age of a count of a key's sandboxes, while they are far from their limit."""
FAR = 100
"""Distance below the limit (or a quarter of it) that counts as far: other replicas hardly make as many in
that time."""

Labels = TypeVar("Labels", dict[str, str], dict[str, str] | None)


class _Tally:
    """Upper bound of a key's sandboxes: the last count at the backend and creations since."""

    def __init__(self) -> None:
        self.counting = asyncio.Lock()
        self.at = -math.inf
        """When the last count began, by the event loop's clock."""
        self.exact = True
        """Whether no creation was running then, which the count may include already."""
        self.there = 0
        self.creations: set[str] = set()
        """Digests of the counted sandboxes' idempotency keys."""
        self.under_way = 0
        self.quiet = asyncio.Event()
        self.quiet.set()

    @contextmanager
    def creating(self, wanted: int) -> Iterator[None]:
        """Add a running creation; a failed one counts until the next count. A context manager."""
        self.there += wanted
        self.under_way += wanted
        self.quiet.clear()
        try:
            yield
        finally:
            self.under_way -= wanted
            if not self.under_way:
                self.quiet.set()


class Ownership:
    """Labels new sandboxes, and counts a limited key's sandboxes before it makes more.

    Near the limit each creation is admitted or refused by a count from after its request, and refused only by
    one without running creations of this replica. Another replica may create at the same moment, so the limit
    can be exceeded by that. One count serves all who wait for it: a crowd asks the backend a few times, not
    once each.
    """

    def __init__(self, backend: Backend, admission: RequestAdmission, keys: Keys) -> None:
        self._backend = backend
        self._keys = keys
        self._admission = admission
        self._tallies: dict[str, _Tally] = {}

    def matters(self, name: str) -> bool:
        """Whether sandboxes of this key are labelled: it has a limit, or sees only its own."""
        return self._keys.owns(name) or self._admission.of(name).sandboxes is not None

    def seen_by(self, name: str) -> dict[str, str]:
        """Labels of the sandboxes that this key may see."""
        return {OWNER: name} if self._keys.owns(name) else {}

    def idempotency(self, name: str, key: str | None) -> str | None:
        """Qualify an idempotency key by the key that sent it."""
        return key if key is None or not self._keys.owns(name) else f"{name}:{key}"

    async def check(self, name: str, sandbox_id: str) -> None:
        """Raise SandboxNotFound for another key's sandbox, with the sentence for a missing one.

        Really missing ones are left to the handler.
        """
        if not self._keys.owns(name):
            return
        with suppress(SandboxNotFound):
            labels = (await self._backend.get(sandbox_id)).labels
            if labels.get(OWNER) != name:
                raise _NotYours(f"there is no sandbox {sandbox_id}")

    @asynccontextmanager
    async def of(self, name: str, wanted: int, key: str | None, labels: Labels) -> AsyncIterator[Labels]:
        """Admit a creation of `wanted` sandboxes; yields the labels that they shall have.

        Raises OverLimit when they are too many, unless they exist already, made under the same idempotency
        `key`; Invalid for reserved labels.
        """
        for label in labels or {}:
            if label.startswith(RESERVED):
                raise Invalid(["body", "labels", label], f"labels that begin with `{RESERVED}` are ours")
        if not self.matters(name):
            yield labels
            return
        creation = {} if key is None else {CREATION: hashlib.sha256(key.encode()).hexdigest()[:16]}
        own = {**(labels or {}), OWNER: name, **creation}
        if self._admission.of(name).sandboxes is None:
            yield own
            return
        tally = self._tallies.setdefault(name, _Tally())
        with await self._let(name, tally, wanted, creation.get(CREATION, "")):
            yield own

    async def _let(
        self, name: str, tally: _Tally, wanted: int, creation: str
    ) -> AbstractContextManager[None]:
        """Return a context for a permitted creation. Raises OverLimit for any other."""
        limits, asked = self._admission.of(name), _now()
        assert limits.sandboxes is not None
        near = limits.sandboxes - max(FAR, limits.sandboxes // 4)
        async with tally.counting:
            good_for = COUNTED_SECONDS if tally.there + wanted <= near else 0.0
            if tally.at + good_for < asked:
                await self._count(name, tally)
            if sandboxes_excess(limits, tally.there, wanted) and not (tally.exact and tally.at >= asked):
                await tally.quiet.wait()
                await self._count(name, tally)
            if creation and creation in tally.creations:
                return nullcontext()
            excess = sandboxes_excess(limits, tally.there, wanted)
            if excess is not None:
                raise OverLimit(excess)
            return tally.creating(wanted)

    async def _count(self, name: str, tally: _Tally) -> None:
        tally.at, tally.exact, under_way = _now(), not tally.under_way, tally.under_way
        own = await self._backend.list({OWNER: name})
        tally.there = sum(info.status is not SandboxStatus.FAILED for info in own) + under_way
        tally.creations = {info.labels[CREATION] for info in own if CREATION in info.labels}


def _now() -> float:
    return asyncio.get_running_loop().time()


class _NotYours(SandboxError):
    """Has status and reason of SandboxNotFound."""

    default_status = SandboxNotFound.default_status
    default_reason = SandboxNotFound.default_reason


def without_owner(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that the caller gave."""
    return {name: value for name, value in labels.items() if not name.startswith(RESERVED)}
