"""Grading in place, by the state that the agent left behind: the checks are brought only now.

**When is a check without a verdict the agent's doing, and when the task's?** A check that hangs, crashes or
writes no reward runs on what the agent left, who may have broken it, or it never worked. So such an ending
(`endings`) is followed by a control: the same check in a sandbox of its own where the known solution has run,
or, without one, in an untouched sandbox. If the control reaches a verdict, whatever it is, the check works,
and the agent prevented it: -1 with the cause `check_prevented`. If it does not, nothing was learned about the
agent: TASK_BROKEN where it shows the same symptom and no network or busy machine can have had a part in it,
else GRADER_FAILED.
"""

import secrets
import shlex
import time
from typing import NamedTuple

import msgspec

from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.tasks import StateCheck, Task
from orchard.workers.episode.machine import FileTooLarge, Machine
from orchard.workers.episode.networks import SHUT, asked
from orchard.workers.episode.preparation import prepare, solve
from orchard.workers.failures import InfrastructureError, LimitExceeded, NotWritable
from orchard.workers.graders.endings import STEADY, Ending, Lack, by_reward, by_status
from orchard.workers.graders.judgement import Judgement, Pristine

NAME = "state-check"
PREVENTED = "check_prevented"
"""Cause of a -1 that no check gave."""
LARGEST_REWARD = 64 * 1024
"""Most bytes of a file of rewards."""

CLEAN_SHELL = (
    "env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 sh"
)


class _Seen(NamedTuple):
    ending: Ending
    output: str


async def grade_state(check: StateCheck, judgement: Judgement) -> Reward:
    """Returns +1 if the check says that the task is solved, -1 if it says that it is not, and if the agent
    has prevented it from saying either. Raises as `grade` does."""
    started, task = time.monotonic(), judgement.task
    limit = min(check.timeout_seconds, judgement.timeout)
    ending, output = await _checked(check, judgement.machine, limit)
    detail, cause = f"the check {ending.said}", None
    if ending.lack is not None:
        deadline = started + judgement.timeout
        control = await judgement.controls.of(
            task, lambda: _control(task, check, judgement.pristine, deadline)
        )
        raise_unless_prevented(task, ending, control)
        detail, cause = f"{detail}; {_where(task)} it {control.said}", PREVENTED
    return Reward(
        value=1.0 if ending.solved else -1.0,
        resolved=ending.solved,
        grader=NAME,
        parts=ending.parts or {"check": 0.0},
        detail=detail,
        log=await judgement.keep_log(output),
        seconds=time.monotonic() - started,
        cause=cause,
    )


def raise_unless_prevented(task: Task, ending: Ending, control: Ending) -> None:
    """Raises for a check without a verdict whose control has none either."""
    if control.lack is None:
        return
    detail = f"task {task.task_id}: its check {ending.said}, and {_where(task)} it {control.said}"
    if control.lack is Lack.MEMORY:
        raise InfrastructureError(AbortCause.SANDBOX_OUT_OF_MEMORY, detail)
    steady = control.lack is ending.lack and control.lack in STEADY and asked(task) == SHUT
    raise InfrastructureError(AbortCause.TASK_BROKEN if steady else AbortCause.GRADER_FAILED, detail)


def _where(task: Task) -> str:
    if task.gold_patch.strip():
        return "after the known solution"
    return "in an untouched sandbox (no solution is known)"


async def _control(task: Task, check: StateCheck, pristine: Pristine, deadline: float) -> Ending:
    """Runs the check in a sandbox that the agent has never been in."""
    if not isinstance(task.world, msgspec.UnsetType):
        raise InfrastructureError(
            AbortCause.GRADER_FAILED,
            f"task {task.task_id}: its check reached no verdict, and a control would lack its world",
        )
    async with pristine() as machine:
        await prepare(task, machine, _left(task, deadline))
        if task.gold_patch.strip():
            left = _left(task, deadline)
            await solve(task, machine, max(left - check.timeout_seconds, left / 2))
        ending, _ = await _checked(check, machine, min(check.timeout_seconds, _left(task, deadline)))
    return ending


def _left(task: Task, deadline: float) -> float:
    """Returns the seconds until the deadline; raises GRADER_FAILED if none are left."""
    if (left := deadline - time.monotonic()) <= 0.0:
        raise InfrastructureError(
            AbortCause.GRADER_FAILED,
            f"task {task.task_id}: its check reached no verdict, and no time was left to try it without the "
            "agent: raise timeouts.grading",
        )
    return left


async def _checked(check: StateCheck, machine: Machine, limit: float) -> _Seen:
    try:
        for path, text in sorted(check.files.items()):
            await machine.write(path, text.encode())
        script = f"/tmp/orchard-check-{secrets.token_hex(8)}"
        await machine.write(script, check.command.encode())
        outcome = await machine.run(f"{CLEAN_SHELL} {shlex.quote(script)}", timeout=limit, cwd="/")
        if isinstance(check.rewards, msgspec.UnsetType):
            return _Seen(by_status(outcome, limit), outcome.output)
        path, content = await _reward(check.rewards, machine)
        return _Seen(by_reward(outcome, limit, path, content), outcome.output)
    except NotWritable as error:
        ending = Ending(said=f"cannot be brought ({error.detail})", lack=Lack.NOT_STARTED)
    except LimitExceeded as error:
        lack = Lack.MEMORY if error.cause is AbortCause.SANDBOX_OUT_OF_MEMORY else Lack.DISK
        ending = Ending(said=f"ended its sandbox ({error.detail})", lack=lack)
    return _Seen(ending, f"{ending.said}\n")


async def _reward(paths: tuple[str, ...], machine: Machine) -> tuple[str, bytes | None]:
    """Returns the first of the files that exists, with its content; the last path if none does."""
    for path in paths:
        try:
            return path, await machine.read(path, limit=LARGEST_REWARD)
        except FileTooLarge:
            return path, b"more than %d bytes" % LARGEST_REWARD
        except FileNotFoundError:
            continue
    return paths[-1], None
