"""Runs tests before and after a change, in one sandbox: which it makes pass, and which stay."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from orchard.pipelines.tasks.errors import NotATask
from orchard.workers.domains.swe.commands import Framework, recognised
from orchard.workers.domains.swe.logs.parsers import parse
from orchard.workers.domains.swe.verdict import FAILING, PASSING
from orchard.workers.episode.sandboxes import SandboxMachine

PASS_TO_PASS_LIMIT = 300
"""Maximum tests that must keep passing: every graded rollout reports each of them."""


class SuiteCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that runs the tests of a repository."""

    command: str
    """Shell line, run in `workdir`; its output is read by `parser`."""
    workdir: str
    seconds: float
    """Limit of one run; a slower suite makes no task."""
    parser: str = "pytest"
    environment: Mapping[str, str] = {}


class ChangedTests(msgspec.Struct, frozen=True, kw_only=True):
    """Tests by the effect of a change on them."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    messages: dict[str, str]
    """The line in pytest's summary of each test that fails before."""


def reporting(command: str, parser: str = "") -> tuple[str, str]:
    """The command, made to name each test and its result, and the parser of what it prints."""
    call = recognised(command)
    if call is None:
        return command, parser or "pytest"
    if call.framework is Framework.UNITTEST:
        return (command if " -v" in command else f"{command} -v"), parser or "unittest"
    return f"{command} -rA -p no:cacheprovider --continue-on-collection-errors", parser or "pytest"


async def run_before_and_after(
    suite: SuiteCommand, machine: SandboxMachine, test_patch: str, gold_patch: str
) -> ChangedTests:
    """Apply the test patch, run, apply the gold patch, run again. Raises NotATask where the change makes
    no test pass."""
    await _apply(machine, test_patch, "the tests", suite.workdir)
    before = await _run(suite, machine, "before the change")
    await _apply(machine, gold_patch, "the change of the source", suite.workdir)
    after = await _run(suite, machine, "after the change")
    fail_to_pass, pass_to_pass = split(parse(suite.parser, before), parse(suite.parser, after))
    if not fail_to_pass and not pass_to_pass:
        raise NotATask(
            "tests_do_not_run",
            f"the {suite.parser} output of `{suite.command}` shows no test that passes after the change "
            f"(plug-ins of pytest are loaded only by `-p NAME`); it ends with: {after.strip()[-300:]}",
        )
    if not fail_to_pass:
        raise NotATask("no_fail_to_pass", "no test fails before the change and passes after it")
    return ChangedTests(
        fail_to_pass=fail_to_pass,
        pass_to_pass=sample(pass_to_pass, PASS_TO_PASS_LIMIT),
        messages=messages(before, fail_to_pass),
    )


async def _run(suite: SuiteCommand, machine: SandboxMachine, when: str) -> str:
    outcome = await machine.run(
        suite.command,
        timeout=suite.seconds,
        cwd=suite.workdir,
        env={**suite.environment, "COLUMNS": "400"},  # pytest cuts the messages of its summary to the width
    )
    if outcome.timed_out:
        raise NotATask("tests_time_out", f"{when} the tests run over {suite.seconds:g} s")
    return outcome.output


async def _apply(machine: SandboxMachine, patch: str, what: str, workdir: str) -> None:
    if not patch:
        return
    await machine.write("/tmp/change.diff", patch.encode())
    outcome = await machine.run("git apply /tmp/change.diff", timeout=60.0, cwd=workdir)
    if outcome.returncode != 0:
        raise NotATask("patch_does_not_apply", f"{what}: {outcome.output.strip()[-300:]}")


_UNSTABLE = re.compile(r"\b0x[0-9a-f]{6,}", re.I)
"""Ids with an address, which differ in every run: such a test is in neither list."""


def split(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(FAIL_TO_PASS, PASS_TO_PASS), sorted: tests that pass after, by whether they passed before.

    Both runs have the same tests. One that passes after and was not seen before, while others of its module
    were, has a name that changes (a time, an address) or was skipped: it is in neither list.
    """
    passing = sorted(test for test, status in after.items() if status == "PASSED")
    loaded = {test.split("::")[0] for test in before if "::" in test}
    fail_to_pass = [
        test
        for test in passing
        if before.get(test) in FAILING or (test not in before and test.split("::")[0] not in loaded)
    ]
    return (
        tuple(test for test in fail_to_pass if not _UNSTABLE.search(test)),
        tuple(test for test in passing if before.get(test) in PASSING),
    )


def sample(tests: Sequence[str], limit: int) -> tuple[str, ...]:
    """Pick at most `limit` of the tests, spread evenly, always the same ones."""
    if len(tests) <= limit:
        return tuple(tests)
    return tuple(tests[index * len(tests) // limit] for index in range(limit))


def messages(log: str, tests: Sequence[str]) -> dict[str, str]:
    """The message of each test in pytest's summary, or that of its module when that did not load."""
    found: dict[str, str] = {}
    by_length = sorted({*tests, *(test.split("::")[0] for test in tests)}, key=len, reverse=True)
    for line in log.splitlines():
        word, _, rest = line.partition(" ")
        if word not in ("FAILED", "ERROR"):
            continue
        name = next((each for each in by_length if rest == each or rest.startswith(f"{each} - ")), None)
        if name is not None:
            found.setdefault(name, rest[len(name) + 3 :])
    return {
        test: message for test in tests if (message := found.get(test) or found.get(test.split("::")[0], ""))
    }
