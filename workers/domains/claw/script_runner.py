"""Runs a test script in the grading sandbox, and supplies the verdicts of judges that it asks for.

A script cannot wait for a judge, which is outside of the sandbox: it ends with its question and is run again
with the verdict. It must therefore ask the same questions each time, which a script over an unchanging bundle
does.
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
MISSING = (126, 127)
"""Exit statuses of a shell that could not execute its command."""
_MARGIN = 15.0
"""Seconds that the frame may take in addition to its script."""
_FRAME = Path(frame.__file__).read_bytes()


class ScriptLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that a script may use; exceeding them is GRADER_FAILED."""

    seconds: float = 60.0
    memory: int = 1 << 30
    output: int = 1 << 20
    """Maximum bytes of printed output."""
    programs: bool = False
    paths: tuple[str, ...] = ()
    """Directories in the grading sandbox that are added to `sys.path`."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    name: str
    rubric: str
    protocol: str = ""
    parts: dict[str, Any] = {}
    """Fields of Evidence that the script supplies itself."""


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    outcome: str
    result: dict[str, Any] = {}
    request: Question | None = None
    reason: str = ""
    trace: str = ""
    output: str = ""


class ScriptResult(msgspec.Struct, frozen=True, kw_only=True):
    result: dict[str, Any]
    output: str


AskJudge = Callable[[Question], Awaitable[JudgeVerdict | dict[str, str]]]
"""Answers a question with a verdict, or with another value that the script understands."""
_OUTCOMES = msgspec.json.Decoder(_Outcome)


async def run_script(
    machine: Machine,
    name: str,
    script: str,
    bundle: bytes,
    *,
    limits: ScriptLimits,
    ask: AskJudge,
    files: Mapping[str, str] | None = None,
    python: str = "python3",
) -> ScriptResult:
    """Runs a script and returns its result. `files` are written into its working directory, by relative path;
    `python` is the interpreter in the sandbox.

    Raises InfrastructureError: GRADER_FAILED if the script raises, returns nothing usable, or violates a
    limit or rule of its frame; TASK_BROKEN if the image lacks the interpreter; and what `ask` and the machine
    raise.
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
            return ScriptResult(result=outcome.result, output=outcome.output)
        if outcome.outcome != "ask" or outcome.request is None:
            raise failed(name, outcome.reason, outcome.trace)
        known[outcome.request.key] = await ask(outcome.request)
    raise failed(name, f"it asks for more than {JUDGE_CALLS} verdicts")


async def _outcome(machine: Machine, name: str, folder: str, limits: ScriptLimits, python: str) -> _Outcome:
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
    """Validates a relative path without `..`. Raises ValueError."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"the path {path!r} must be relative, and without ..")
    return "/".join(parts)


def no_interpreter(python: str, said: str) -> InfrastructureError:
    return InfrastructureError(
        AbortCause.TASK_BROKEN, f"the image of the task has no {python} that can be executed: {said[-500:]}"
    )


def failed(name: str, reason: str, trace: str = "") -> InfrastructureError:
    said = f"\n{trace}" if trace else ""
    return InfrastructureError(AbortCause.GRADER_FAILED, f"test script {name}: {reason}{said}")
