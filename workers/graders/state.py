"""Grading by the state that the agent left behind: the checks are brought only now.

**Where does the check run?** In a fresh sandbox of the task's image over the files of the agent's directories
(`carrying`), if the task says so, or in one of its own with what it gets from the agent's: then programs and
libraries of the check are the image's, and no process of the agent lives. Else in the agent's own sandbox,
where whoever was root can have replaced anything; its shell at least must be the task's own before a +1
(`shells`).

**When is a check without a verdict the agent's doing, and when the task's?** A check that hangs, crashes or
writes no reward runs on what the agent left, who may have broken it, or it never worked. So such an ending
(`endings`) is followed by a control: the same check where the known solution has run, or, without one, in an
untouched sandbox. If the control reaches a verdict, whatever it is, the check works, and the agent prevented
it: -1 with the cause `check_prevented`. If it does not, nothing was learned about the agent: TASK_BROKEN
where it shows the same symptom and no network or busy machine can have had a part in it, else GRADER_FAILED.
"""

import secrets
import shlex
import time
from pathlib import PurePosixPath
from typing import NamedTuple

import msgspec

from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.protection import Protected
from orchard.schemas.tasks import CheckSandbox, CollectHook, StateCheck, Task
from orchard.workers.episode.machine import CommandOutcome, FileTooLarge, Machine
from orchard.workers.episode.networks import SHUT, asked, check_task
from orchard.workers.episode.preparation import Course, prepare
from orchard.workers.episode.services import service_sandbox
from orchard.workers.failures import InfrastructureError, LimitExceeded, NotWritable
from orchard.workers.graders.carrying import carried_paths, carry, carry_artifacts
from orchard.workers.graders.endings import STEADY, Ending, Lack, by_reward, by_status
from orchard.workers.graders.judgement import Copied, Judgement
from orchard.workers.graders.shells import CLEAN, Files, digests, shell_files

NAME = "state-check"
PREVENTED = "check_prevented"
"""Cause of a -1 that no check gave."""
FORGED = "forged"
LARGEST_REWARD = 64 * 1024
"""Most bytes of a file of rewards."""
_WHERE = {
    "fresh": ", in a fresh sandbox",
    "stopped": ", in the agent's sandbox without its processes",
    "agent": ", in the agent's sandbox",
}


class _Seen(NamedTuple):
    ending: Ending
    output: str


async def grade_state(check: StateCheck, judgement: Judgement) -> Reward:
    """Returns +1 if the check says that the task is solved, -1 if it says that it is not, and if the agent
    has prevented it from saying either or has replaced the shell that said so. Raises as `grade` does."""
    started, task = time.monotonic(), judgement.task
    deadline = started + judgement.timeout
    ending, output = await _run(judgement, check, judgement.machine, deadline, judgement.copied)
    solved, cause = ending.solved, None
    detail = f"the check {ending.said}{_where_it_ran(check)}"
    if ending.lack is not None:
        control = await judgement.controls.of(task, lambda: _control(judgement, check, deadline))
        raise_unless_prevented(task, ending, control)
        detail, cause = f"{detail}; {_where(task)} it {control.said}", PREVENTED
    elif solved and not _apart(check) and (path := await _foreign_shell(judgement, deadline)):
        detail, cause, solved = f"{detail}, but {path} is not the task's own", FORGED, False
    return Reward(
        value=1.0 if solved else -1.0,
        resolved=solved,
        grader=NAME,
        parts=ending.parts or ({"check": 0.0} if ending.lack else {}),
        score=ending.score,
        detail=detail,
        log=await judgement.keep_log(output),
        seconds=time.monotonic() - started,
        cause=cause,
        protected=Protected.INSIDE,
    )


def _apart(check: StateCheck) -> bool:
    """Whether the check runs where no process of the agent's has been."""
    return check.check_in == "fresh" or isinstance(check.sandbox, CheckSandbox)


def _where_it_ran(check: StateCheck) -> str:
    own = isinstance(check.sandbox, CheckSandbox)
    return ", in a sandbox of its own" if own else _WHERE.get(str(check.check_in), "")


async def _foreign_shell(judgement: Judgement, deadline: float) -> str | None:
    """Returns a file of the agent's shell that is neither an untouched sandbox's nor the known solution's.
    Whoever has a network may update what he likes."""
    task = judgement.task
    if asked(task) != SHUT:
        return None
    known = await judgement.controls.shells(task, lambda: _own_shells(judgement, deadline))
    found = await digests(judgement.machine, known[0])
    return next((path for path in found if all(found[path] != each[path] for each in known)), None)


async def _own_shells(judgement: Judgement, deadline: float) -> tuple[Files, ...]:
    task = judgement.task
    async with judgement.pristine() as machine:
        await prepare(task, machine, _left(task, deadline))
        before = await shell_files(machine, _left(task, deadline))
        if not task.gold_patch.strip():
            return (before,)
        await judgement.course.solve(machine, _left(task, deadline))
        return before, await digests(machine, before)


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


async def _control(judgement: Judgement, check: StateCheck, deadline: float) -> Ending:
    """Runs the check where the agent has never been."""
    task = judgement.task
    if not isinstance(task.world, msgspec.UnsetType):
        raise InfrastructureError(
            AbortCause.GRADER_FAILED,
            f"task {task.task_id}: its check reached no verdict, and a control would lack its world",
        )
    async with judgement.pristine() as machine:
        left = _left(task, deadline)
        await known_state(task, judgement.course, machine, max(left - check.timeout_seconds, left / 2))
        ending, _ = await _run(judgement, check, machine, deadline)
    return ending


async def known_state(task: Task, course: Course, machine: Machine, timeout: float) -> None:
    """Brings a new machine to where the known solution ends, or where the agent begins if none is known."""
    await prepare(task, machine, timeout)
    if task.gold_patch.strip():
        await course.solve(machine, timeout)
    else:
        await course.set_up(machine, timeout)


def _left(task: Task, deadline: float) -> float:
    """Returns the seconds until the deadline; raises GRADER_FAILED if none are left."""
    if (left := deadline - time.monotonic()) <= 0.0:
        raise InfrastructureError(
            AbortCause.GRADER_FAILED,
            f"task {task.task_id}: its check reached no verdict, and no time was left to try it without the "
            "agent: raise timeouts.grading",
        )
    return left


async def _run(
    judgement: Judgement, check: StateCheck, machine: Machine, deadline: float, copied: Copied | None = None
) -> _Seen:
    """Runs the check over what was left in the machine, in the sandbox that the task wants. With `copied` the
    agent goes on in the machine, and a check that ends processes runs in a copy."""
    task = judgement.task
    try:
        await _collect(check, task, machine, deadline)
        if copied is None or check.check_in != "stopped" or _apart(check):
            return await _run_where_wanted(judgement, check, machine, deadline, copied is not None)
        async with copied() as copy:
            return await _run_where_wanted(judgement, check, copy, deadline, False)
    except FileNotFoundError as error:
        ending = Ending(said=f"lacks the directory {error}", lack=Lack.NOT_STARTED)
    except FileTooLarge as error:
        ending = Ending(said=f"cannot be given the agent's files ({error})", lack=Lack.DISK)
    except NotWritable as error:
        ending = Ending(said=f"cannot be brought ({error.detail})", lack=Lack.NOT_STARTED)
    except LimitExceeded as error:
        lack = Lack.MEMORY if error.cause is AbortCause.SANDBOX_OUT_OF_MEMORY else Lack.DISK
        ending = Ending(said=f"ended its sandbox ({error.detail})", lack=lack)
    return _Seen(ending, f"{ending.said}\n")


def away(check: StateCheck) -> bool:
    """Whether the check needs no process of the agent's."""
    return check.check_in == "stopped" or _apart(check)


async def _run_where_wanted(
    judgement: Judgement, check: StateCheck, machine: Machine, deadline: float, goes_on: bool
) -> _Seen:
    task, pristine = judgement.task, judgement.pristine
    if isinstance(check.sandbox, CheckSandbox):
        async with pristine(check_task(task, check.sandbox)) as own:
            await carry_artifacts(check.sandbox.artifacts, machine, own, goes_on=goes_on)
            limit = min(check.timeout_seconds, _left(task, deadline))
            return await _checked(check, own, limit, _shell(check))
    match check.check_in:
        case "fresh":
            paths = carried_paths(task, check)
            async with pristine() as fresh:
                await prepare(task, fresh, _left(task, deadline))
                await judgement.course.set_up(fresh, _left(task, deadline))
                left = _left(task, deadline)
                brought = (*check.files, *(check.rewards or ()))
                await carry(paths, machine, fresh, brought=brought, timeout=left, goes_on=goes_on)
                limit = min(check.timeout_seconds, _left(task, deadline))
                return await _checked(check, fresh, limit, _shell(check, paths))
        case "stopped":
            await machine.end_processes()
    limit = min(check.timeout_seconds, _left(task, deadline))
    return await _checked(check, machine, limit, _shell(check))


async def _collect(check: StateCheck, task: Task, machine: Machine, deadline: float) -> None:
    """Runs the commands that save what only runs. Those in the agent's sandbox are first: what they leave is
    the agent's, whoever wrote it. Where the check needs no process of the agent's, none can reach the
    services during the others."""
    hooks = check.collect or ()
    for hook in hooks:
        if hook.service is msgspec.UNSET:
            await _save(hook, machine, task.workdir, task.environment, hook.user, _left(task, deadline))
    services = {each.names[0]: each for each in task.services or ()}
    others = [hook for hook in hooks if isinstance(hook.service, str)]
    if others and _apart(check):
        await machine.freeze()
    for hook in others:
        own, of = service_sandbox(str(hook.service), machine), services[str(hook.service)]
        left = _left(task, deadline)
        await _save(hook, own, of.workdir or ".", of.environment, hook.user or of.user, left)


async def _save(
    hook: CollectHook, machine: Machine, workdir: str, environment: dict[str, str], user: str, left: float
) -> None:
    limit = min(hook.timeout_seconds, left)
    await machine.run(hook.command, timeout=limit, cwd=workdir, env=environment, user=user or None)


def _shell(check: StateCheck, carried: tuple[str, ...] = ()) -> str:
    """Begins the command. Where the agent's files are in root's home directory, another one is home: shells,
    Python and git execute what they find there."""
    if isinstance(check.user, str):
        return f'{CLEAN} HOME="$HOME" sh'  # of that user
    if not any(PurePosixPath("/root").is_relative_to(path) for path in carried):
        return f"{CLEAN} sh"
    home = f"/tmp/orchard-home-{secrets.token_hex(8)}"
    return f"mkdir -p {home} && {CLEAN} HOME={home} sh"


async def _checked(check: StateCheck, machine: Machine, limit: float, shell: str) -> _Seen:
    for path, text in sorted(check.files.items()):
        await machine.write(path, text.encode())
    if isinstance(check.prepare, str):
        outcome = await _run_text(check.prepare, machine, limit, f"{CLEAN} sh", "root")
        if not (ending := by_status(outcome, limit)).solved:
            said = f"could not be prepared: that {ending.said}"
            return _Seen(Ending(said=said, lack=ending.lack or Lack.NOT_STARTED), outcome.output)
    outcome = await _run_text(
        check.command, machine, limit, shell, check.user if isinstance(check.user, str) else None
    )
    if isinstance(check.rewards, msgspec.UnsetType):
        return _Seen(by_status(outcome, limit), outcome.output)
    path, content = await _reward(check.rewards, machine)
    resolved_at = None if isinstance(check.resolved_at, msgspec.UnsetType) else check.resolved_at
    return _Seen(by_reward(outcome, limit, path, content, resolved_at), outcome.output)


async def _run_text(
    text: str, machine: Machine, limit: float, shell: str, user: str | None
) -> CommandOutcome:
    script = f"/tmp/orchard-check-{secrets.token_hex(8)}"
    await machine.write(script, text.encode())
    return await machine.run(f"{shell} {shlex.quote(script)}", timeout=limit, cwd="/", user=user)


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
