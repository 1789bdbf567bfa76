"""A task's question sheet from the store, or made where it has none."""

import asyncio
import logging
import time

from orchard.schemas.tasks import SWETests, Task, task_hash
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.swe.preparing import TaskRepository
from orchard.workers.domains.swe.sheets.making import PlainRun, SheetMaker, without_sheet
from orchard.workers.domains.swe.sheets.sheet import Sheet
from orchard.workers.domains.swe.sheets.store import SheetStore
from orchard.workers.domains.swe.testing import plan_of
from orchard.workers.failures import InfrastructureError, storing
from orchard.workers.graders.endings import Controls
from orchard.workers.graders.judgement import Pristine

log = logging.getLogger(__name__)


async def sheet_of(
    task: Task,
    pristine: Pristine,
    blobs: BlobStore,
    controls: Controls,
    timeout: float,
    plain: PlainRun | None = None,
) -> Sheet | None:
    """Returns the task's question sheet, made within `timeout` seconds if the store has none. `plain` is what
    its own tests give with the gold patch, where that is known.

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
            sheet = await _made(SheetMaker(task, grading, plan, repository.prepared, plain), task)
            with storing():
                await asyncio.to_thread(store.put, task, sheet)
    return sheet


async def _made(maker: SheetMaker, task: Task) -> Sheet:
    """Makes a sheet. Test files may be anything: where one is too strange for the maker, the task is judged
    inside, and its label and the log say so."""
    try:
        return await maker.make()
    except InfrastructureError:
        raise
    except Exception as error:
        log.exception("no question sheet for task %s", task.task_id)
        return without_sheet(f"its tests cannot be made a question sheet ({type(error).__name__}: {error})")
