"""A task's question sheet from the store, or made where it has none."""

import asyncio
import time

from orchard.schemas.tasks import SWETests, Task, task_hash
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.swe.preparing import TaskRepository
from orchard.workers.domains.swe.sheets.making import SheetMaker
from orchard.workers.domains.swe.sheets.sheet import Sheet
from orchard.workers.domains.swe.sheets.store import SheetStore
from orchard.workers.domains.swe.testing import plan_of
from orchard.workers.failures import storing
from orchard.workers.graders.endings import Controls
from orchard.workers.graders.judgement import Pristine


async def sheet_of(
    task: Task, pristine: Pristine, blobs: BlobStore, controls: Controls, timeout: float
) -> Sheet | None:
    """Returns the task's question sheet, made within `timeout` seconds if the store has none.

    None for a task of which none can be made: without a gold patch, or with a test command that is not
    pytest's or unittest's. Raises InfrastructureError.
    """
    grading = task.grading
    assert isinstance(grading, SWETests)
    plan = plan_of(grading)
    if plan is None or not task.gold_patch.strip():
        return None
    store = SheetStore(blobs)
    async with controls.turn(f"sheet of {task_hash(task)}"):
        with storing():
            sheet = await asyncio.to_thread(store.get, task)
        if sheet is None:
            repository = TaskRepository(task, grading, pristine, time.monotonic() + timeout)
            sheet = await SheetMaker(task, grading, plan, repository.prepared).make()
            with storing():
                await asyncio.to_thread(store.put, task, sheet)
    return sheet
