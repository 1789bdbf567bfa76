"""Tests run before and after a change, in one sandbox: which it makes pass, and which stay."""

from collections.abc import Mapping

import msgspec

from orchard.pipelines.domains.swe import outcomes
from orchard.pipelines.tasks.errors import NotATask
from orchard.workers.domains.swe.commands import Framework, recognised
from orchard.workers.domains.swe.logs.parsers import parse
from orchard.workers.episode.sandboxes import SandboxMachine

PASS_TO_PASS_LIMIT = 300
"""Tests that must keep passing, at most: every graded rollout reports each of them."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How a test command is tried."""

    command: str
    """Shell line, run in `workdir`; its output is read by `parser`."""
    workdir: str
    seconds: float
    """Limit of one run; a slower suite makes no task."""
    parser: str = "pytest"
    environment: Mapping[str, str] = {}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the two runs showed."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    messages: dict[str, str]
    """For each test that fails before, its line in pytest's summary."""


def reporting(command: str, parser: str = "") -> tuple[str, str]:
    """The command, made to name each test and its result, and the parser of what it prints."""
    call = recognised(command)
    if call is None:
        return command, parser or "pytest"
    if call.framework is Framework.UNITTEST:
        return (command if " -v" in command else f"{command} -v"), parser or "unittest"
    return f"{command} -rA -p no:cacheprovider --continue-on-collection-errors", parser or "pytest"


async def tried(trial: Trial, machine: SandboxMachine, test_patch: str, gold_patch: str) -> Found:
    """Bring the tests, run, bring the change, run again. Raises NotATask where the change makes none pass."""
    await _apply(machine, test_patch, "the tests", trial.workdir)
    before = await _run(trial, machine, "before the change")
    await _apply(machine, gold_patch, "the change of the source", trial.workdir)
    after = await _run(trial, machine, "after the change")
    fail_to_pass, pass_to_pass = outcomes.split(parse(trial.parser, before), parse(trial.parser, after))
    if not fail_to_pass and not pass_to_pass:
        raise NotATask(
            "tests_do_not_run",
            f"the {trial.parser} output of `{trial.command}` shows no test that passes after the change "
            f"(plug-ins of pytest are loaded only by `-p NAME`); it ends with: {after.strip()[-300:]}",
        )
    if not fail_to_pass:
        raise NotATask("no_fail_to_pass", "no test fails before the change and passes after it")
    return Found(
        fail_to_pass=fail_to_pass,
        pass_to_pass=outcomes.sample(pass_to_pass, PASS_TO_PASS_LIMIT),
        messages=outcomes.messages(before, fail_to_pass),
    )


async def _run(trial: Trial, machine: SandboxMachine, when: str) -> str:
    outcome = await machine.run(
        trial.command,
        timeout=trial.seconds,
        cwd=trial.workdir,
        env={**trial.environment, "COLUMNS": "400"},  # pytest cuts the messages of its summary to the width
    )
    if outcome.timed_out:
        raise NotATask("tests_time_out", f"{when} the tests run over {trial.seconds:g} s")
    return outcome.output


async def _apply(machine: SandboxMachine, patch: str, what: str, workdir: str) -> None:
    if not patch:
        return
    await machine.write("/tmp/change.diff", patch.encode())
    outcome = await machine.run("git apply /tmp/change.diff", timeout=60.0, cwd=workdir)
    if outcome.returncode != 0:
        raise NotATask("patch_does_not_apply", f"{what}: {outcome.output.strip()[-300:]}")
