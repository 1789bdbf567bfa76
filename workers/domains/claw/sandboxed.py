"""Running a test script in the grading sandbox: files in, one outcome out, verdicts of judges between.

A script cannot wait for a judge, which is outside: it ends with its question, and runs again with the
verdict. So it must ask the same each time, which a script over a bundle that never changes does.
"""

import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from orchard.schemas.judging import JudgeVerdict
from orchard.schemas.outcomes import AbortCause
from orchard.workers.domains.claw import frame
from orchard.workers.episode.machine import Machine
from orchard.workers.failures import InfrastructureError, LimitExceeded

JUDGE_CALLS = 32
"""Verdicts that one script may ask for."""
MISSING = (126, 127)
"""Exit statuses of a shell that could not execute what it was asked for."""
_MARGIN = 15.0
"""Seconds that the frame may take beside its script."""
_FRAME = Path(frame.__file__).read_bytes()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a script may use; more is GRADER_FAILED."""

    seconds: float = 60.0
    memory: int = 1 << 30
    """Bytes of address space."""
    output: int = 1 << 20
    """Bytes that it may print."""
    programs: bool = False
    """Whether it may start programs."""
    paths: tuple[str, ...] = ()
    """Directories of modules, in the grading sandbox."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a script asks a judge."""

    key: str
    name: str
    rubric: str
    protocol: str = ""
    parts: dict[str, Any] = {}
    """Parts of the evidence that the script gives itself, by the names of Evidence's fields."""


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    outcome: str
    result: dict[str, Any] = {}
    request: Question | None = None
    reason: str = ""
    trace: str = ""
    output: str = ""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What a script returned and printed."""

    result: dict[str, Any]
    output: str


Ask = Callable[[Question], Awaitable[JudgeVerdict | dict[str, str]]]
"""The verdict on a question, or another answer that the script knows to read."""
_OUTCOMES = msgspec.json.Decoder(_Outcome)


async def run_script(
    machine: Machine,
    name: str,
    script: str,
    bundle: bytes,
    *,
    limits: Limits,
    ask: Ask,
    files: Mapping[str, str] | None = None,
    python: str = "python3",
) -> Ran:
    """What the script returns. `files` are put into the directory that it runs in, by relative path; `python`
    is the interpreter, in the sandbox.

    Raises InfrastructureError: GRADER_FAILED for a script that raises, returns nothing usable, or breaks a
    limit or a rule of its frame; TASK_BROKEN where the image lacks the interpreter; what `ask` raises; the
    machine's.
    """
    folder = f"/tmp/orchard-grading-{secrets.token_hex(8)}"
    await machine.write(f"{folder}/frame.py", _FRAME)
    await machine.write(f"{folder}/bundle.json", bundle)
    await machine.write(f"{folder}/script.py", script.encode(errors="replace"))
    await machine.write(f"{folder}/limits.json", msgspec.json.encode(limits))
    for path, text in (files or {}).items():
        await machine.write(f"{folder}/scratch/{inside(path)}", text.encode(errors="replace"))
    known: dict[str, JudgeVerdict | dict[str, str]] = {}
    for _ in range(JUDGE_CALLS + 1):
        await machine.write(f"{folder}/known.json", msgspec.json.encode(known))
        outcome = await _outcome(machine, name, folder, limits, python)
        if outcome.outcome == "graded":
            return Ran(result=outcome.result, output=outcome.output)
        if outcome.outcome != "ask" or outcome.request is None:
            raise failed(name, outcome.reason, outcome.trace)
        known[outcome.request.key] = await ask(outcome.request)
    raise failed(name, f"it asks for more than {JUDGE_CALLS} verdicts")


async def _outcome(machine: Machine, name: str, folder: str, limits: Limits, python: str) -> _Outcome:
    command = f"{shlex.quote(python)} -I {shlex.quote(f'{folder}/frame.py')} {shlex.quote(folder)}"
    try:
        ran = await machine.run(command, timeout=limits.seconds + _MARGIN, cwd="/")
    except LimitExceeded as error:
        raise failed(name, f"it ended its sandbox: {error.detail}") from error
    if ran.returncode in MISSING:
        raise no_interpreter(python, ran.output)
    if ran.timed_out or ran.returncode != 0:
        raise failed(name, f"its frame ended with {ran.returncode}", ran.output[-1000:])
    try:
        return _OUTCOMES.decode(ran.output.strip().rpartition("\n")[2])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise failed(name, f"what its frame printed cannot be read: {error}", ran.output[-1000:]) from error


def inside(path: str) -> str:
    """A relative path below the directory that it is put into. Raises ValueError for any other."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"the path {path!r} must be relative, and without ..")
    return "/".join(parts)


def no_interpreter(python: str, said: str) -> InfrastructureError:
    """The abort of an attempt in whose fresh sandbox the interpreter cannot be executed."""
    return InfrastructureError(
        AbortCause.TASK_BROKEN, f"the image of the task has no {python} that can be executed: {said[-500:]}"
    )


def failed(name: str, reason: str, trace: str = "") -> InfrastructureError:
    """The abort of an attempt whose test script failed."""
    said = f"\n{trace}" if trace else ""
    return InfrastructureError(AbortCause.GRADER_FAILED, f"test script {name}: {reason}{said}")
