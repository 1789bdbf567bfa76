"""Runs tests in a sandbox: by `runner.py` if the command can be parsed, else as the task writes it."""

import asyncio
import json
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.checkout import RepositoryCheckout
from orchard.workers.domains.swe.commands import Framework, FrameworkCall, TestName, named, recognised
from orchard.workers.domains.swe.logs.parsers import REWRITTEN, parse_run, without_reason
from orchard.workers.domains.swe.sheets.told import Told
from orchard.workers.domains.swe.verdict import MISSING, conclusive, judged
from orchard.workers.episode.diffs import touched_paths
from orchard.workers.episode.machine import Machine
from orchard.workers.failures import InfrastructureError

RUN_SHARE = 0.45
"""Share of the remaining time for one test run; the rest is for a control run."""

RUNNER = Path(__file__).with_name("runner.py")
CHILD = Path(__file__).parent / "sheets" / "child.py"
_WITHOUT_PATHS = 'exec env -u PYTHONPATH PYTHONPATH_OF_TESTS="$PYTHONPATH" "$0" "$@"'
"""Keeps tests' import paths from the runner itself, which starts before tested code could be told from its
own."""
_HARDENED = {
    "PYTHONNOUSERSITE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "",
    "PYTEST_PLUGINS": "",
}


class ToldRun(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes of one or more files told, and how long they took."""

    told: Told
    seconds: float


class TestRun(msgspec.Struct, frozen=True, kw_only=True):
    __test__ = False

    statuses: dict[str, str]
    exit_code: int | None
    """None if it was stopped for time, never reached its end, or was cut."""
    log: str
    seconds: float = 0.0
    told: Told = msgspec.field(default_factory=Told)
    """What the processes of the tests told, where the runner ran them."""
    by_file: dict[str, ToldRun] = {}
    """The same for each of them."""
    cut: bool = False
    """Whether more was printed than is kept, and what is missing may say how a test ended."""
    out_of_memory: bool = False
    """Whether a process in the sandbox was killed for memory during the run."""
    ended_by: InfrastructureError | None = None
    """The error that ended the sandbox during the tests."""

    @property
    def conclusive(self) -> bool:
        return self.ended_by is None and conclusive(self.statuses, self.exit_code)


class RunnerPlan(msgspec.Struct, frozen=True, kw_only=True):
    call: FrameworkCall
    names: dict[str, TestName]

    @property
    def files(self) -> list[str]:
        """Lists the files of the named tests that the command includes, sorted."""
        return sorted({name.file for name in self.names.values() if self._asked_for(name.file)})

    def _asked_for(self, file: str) -> bool:
        paths = [path.rstrip("/") for path in self.call.paths]
        return not paths or any(path in (file, ".") or file.startswith(f"{path}/") for path in paths)


def plan_of(grading: SWETests) -> RunnerPlan | None:
    """Plans the run; None if the runner does not support the command or the ids."""
    call = recognised(grading.test_command)
    if call is None or call.framework != grading.parser.partition("-")[0]:
        return None
    rewritten = REWRITTEN.get(grading.parser)
    if rewritten and any(map(rewritten.search, (*grading.fail_to_pass, *grading.pass_to_pass))):
        return None
    files = sorted({*grading.test_files, *touched_paths(grading.test_patch)})
    names = {
        test: named(test, call.framework, files) for test in (*grading.fail_to_pass, *grading.pass_to_pass)
    }
    found = {test: name for test, name in names.items() if name is not None}
    return RunnerPlan(call=call, names=found) if len(found) == len(names) else None


async def run_tests(
    task: Task,
    grading: SWETests,
    machine: Machine,
    checkout: RepositoryCheckout,
    *,
    trusted: bool = False,
    sheet: bool = False,
    files: Sequence[str] | None = None,
) -> TestRun:
    """Runs all tests of the task in the repository as it is, or those in `files`. With `trusted` the command
    runs unchanged and its output is believed: the rule of published benchmarks. With `sheet` the test files
    are question sheets.

    A sandbox that ends during the tests gives a run without a result; a control must tell the cause.
    """
    plan = None if trusted else plan_of(grading)
    limit = min(grading.timeout_seconds, checkout.seconds_left * RUN_SHARE)
    try:
        if plan is None:
            return await _by_command(task, grading, machine, checkout, limit)
        return await _by_runner(
            task, grading, plan, machine, checkout, limit, sheet=sheet, files=files or plan.files
        )
    except InfrastructureError as error:
        if error.cause not in (AbortCause.SANDBOX_DIED, AbortCause.SANDBOX_OUT_OF_MEMORY):
            raise
        return TestRun(statuses={}, exit_code=None, log=f"{error.detail}\n", ended_by=error)


async def _by_runner(
    task: Task,
    grading: SWETests,
    plan: RunnerPlan,
    machine: Machine,
    checkout: RepositoryCheckout,
    limit: float,
    *,
    sheet: bool,
    files: Sequence[str],
) -> TestRun:
    mark = f"orchard-{secrets.token_hex(12)}"
    runner, planned, script = (f"{checkout.scratch}/{name}" for name in ("run.py", "plan.json", "run.sh"))
    call = plan.call
    orders = {
        "mark": mark,
        "framework": call.framework.value,
        "options": list(call.options),
        "runs": [[file] for file in files],
        "sheet": CHILD.read_text() if sheet else "",
        "from_directory": call.from_directory,
    }
    await machine.write(runner, RUNNER.read_bytes())
    await machine.write(planned, json.dumps(orders).encode())
    words = ["env", *call.variables, "sh", "-c", _WITHOUT_PATHS, call.python, "-s", runner, planned]
    lines = [*grading.pre_commands, f"{call.before}exec {shlex.join(words)}", ""]
    await machine.write(script, "\n".join(lines).encode())
    outcome = await machine.run(
        f". {script}", timeout=limit, cwd=task.workdir, env={**task.environment, **_HARDENED}
    )
    runs, ended = dict[int, Any](), False
    for line in outcome.output.split("\n"):
        if line == f"{mark} end":
            ended = True
        elif line.startswith(f"{mark} {{"):
            with suppress(ValueError):  # cut, because it is more than a command may print
                run = json.loads(line[len(mark) + 1 :])
                runs[run["run"]] = run
    told = Told()
    by_file: dict[str, ToldRun] = {}
    codes = []
    for number, run in sorted(runs.items()):
        file, one = files[number], Told()
        done = await asyncio.to_thread(one.add, run["told"], file)
        codes.append(run["code"] if done else run["code"] or 70)
        by_file[file] = ToldRun(told=one, seconds=run["seconds"])
        told.join(one)
    failing = next((code for code in codes if code), 0)
    code = failing if ended else outcome.returncode or 70
    cut = outcome.cut and len(runs) < len(files)
    return TestRun(
        statuses=_by_id(plan, {name: test.status for name, test in told.tests.items() if test.status}),
        exit_code=None if outcome.timed_out or cut else code,
        log="".join(run["log"] for _, run in sorted(runs.items())) or outcome.output,
        seconds=outcome.seconds,
        told=told,
        by_file=by_file,
        cut=cut,
        out_of_memory=outcome.out_of_memory,
    )


def _by_id(plan: RunnerPlan, reported: Mapping[str, str]) -> dict[str, str]:
    """Maps statuses to the task's ids, if the framework's own ids differ. Some of SWE-bench's have the reason
    of an expected failure behind them."""
    if plan.call.framework is Framework.PYTEST:
        bare = {test: without_reason(test) for test in plan.names if " - " in test}
        return {**reported, **{test: reported[own] for test, own in bare.items() if own in reported}}
    ids = {f"{name.file}::{name.qualified}": test for test, name in plan.names.items()}
    return {ids.get(test, test): status for test, status in reported.items()}


# --- commands as tasks write them ----------------------------------------------------------------


async def _by_command(
    task: Task, grading: SWETests, machine: Machine, checkout: RepositoryCheckout, limit: float
) -> TestRun:
    marker = f"orchard-{secrets.token_hex(12)}"
    path = f"{checkout.scratch}/tests.sh"
    await machine.write(path, test_script(grading, marker).encode())
    outcome = await machine.run(f". {path}", timeout=limit, cwd=task.workdir, env=task.environment)
    log, exit_code = between_markers(outcome.output, marker)
    named = (*grading.fail_to_pass, *grading.pass_to_pass)
    statuses = await asyncio.to_thread(parse_run, grading.parser, log, named)
    cut = outcome.cut and MISSING in judged(grading, statuses).tests.values()
    return TestRun(
        statuses=statuses,
        exit_code=None if outcome.timed_out or cut else exit_code,
        log=log,
        seconds=outcome.seconds,
        cut=cut,
        out_of_memory=outcome.out_of_memory,
    )


def test_script(grading: SWETests, marker: str) -> str:
    """Builds the shell script of one run. The marker is new each time, so that no log contains it by chance;
    malicious code can find it (docs/threat-model.md, other-test-commands)."""
    return "\n".join(
        [
            *grading.pre_commands,
            f"echo; echo '{marker} start'",
            "(",
            grading.test_command,
            ")",
            "code=$?",
            f'echo; echo "{marker} end $code"',
            "",
        ]
    )


def between_markers(output: str, marker: str) -> tuple[str, int | None]:
    """Returns the test command's output and exit code; all output and None if it did not end."""
    _, found, rest = output.partition(f"\n{marker} start\n")
    if not found:
        return output, None
    log, _, end = rest.rpartition(f"\n{marker} end ")
    code = re.match(r"\d+", end)
    return (log, int(code[0])) if code else (rest, None)
