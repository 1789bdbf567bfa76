"""The quick start keeps the processors busy: the proofs of its first tasks are not waited for."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchard.actions.reporter import Reporter
from orchard.actions.session import Session
from orchard.actions.tasks import Validated
from orchard.domains.swe import quickstart
from orchard.pipelines.tasks.registry import StoredTask
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import TaskRef


class _Told(Reporter):
    def __init__(self) -> None:
        self.counts: list[tuple[str, int, int | None]] = []

    def progress(self, title: str, done: int, total: int | None, doing: str = "") -> None:
        self.counts.append((title + doing, done, total))


def _task(name: str, state: str = "imported") -> StoredTask:
    blob = BlobRef(sha256="0" * 64, size=1, media_type="application/json")
    ref = TaskRef(task_id=name, source="pypi-releases", repo="pypi/a", blob=blob)
    return StoredTask(ref=ref, task_hash=name, state=state, reason="", detail="")


async def test_proofs_of_later_tasks_begin_while_the_first_are_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = [_task("proven", "valid"), _task("first")]
    later = asyncio.Event()

    async def validate(_: Session, *, ids: list[str], told: Reporter, **__: Any) -> Validated:
        told.progress("validating", 0, len(ids))
        if ids == ["first"]:
            await later.wait()
        else:
            later.set()
        told.progress("validating", len(ids), len(ids))
        return Validated(len(ids), 0, 0)

    monkeypatch.setattr(quickstart, "validate_tasks", validate)
    monkeypatch.setattr(quickstart, "stored_tasks", lambda *_, **__: stored)
    told = _Told()
    proofs = quickstart.Proofs(cast(Session, SimpleNamespace(config=SimpleNamespace(store="s"))), told)

    await proofs.begin()
    stored += [_task("second"), _task("third")]
    await proofs.begin()
    async with asyncio.timeout(30):
        valid, rejected = await proofs.ended()

    assert (valid, rejected) == (3, 0), "each task is proven once"
    assert told.counts == [], "what a batch has done is no part of a whole whose size is known"


def test_a_part_of_the_work_is_told_as_that_of_all_that_is_wanted() -> None:
    told = _Told()
    part = quickstart.PartReporter(told, of=20)
    for total in (5, 20, 23):
        part.progress("synthesizing", 3, total)
    assert [total for *_, total in told.counts] == [20, 20, 23]
