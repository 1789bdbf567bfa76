"""SWE grading with real git and real pytest runs."""

import msgspec
import pytest

from orchard.schemas.outcomes import AbortCause
from orchard.schemas.protection import Protected
from orchard.schemas.sandboxes import OUTPUT_LIMIT
from orchard.workers.domains.swe.preparing import paths_to_restore
from orchard.workers.domains.swe.testing import between_markers
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import grade
from tests.workers.conftest import RUNNER


def with_grading(task, **changes):
    return msgspec.structs.replace(task, grading=msgspec.structs.replace(task.grading, **changes))


@pytest.fixture
def judged(machine, blobs, pristine):
    async def run(task, submission, **rules):
        return await grade(task, submission, machine, timeout=120.0, blobs=blobs, pristine=pristine, **rules)

    return run


@pytest.mark.long
async def test_the_gold_patch_resolves(judged, task, blobs):
    reward = await judged(task, task.gold_patch)
    assert (reward.value, reward.resolved) == (1.0, True)
    assert set(reward.tests.values()) == {"PASSED"}
    assert "test_label" in blobs.get(reward.log).decode()


@pytest.mark.long
async def test_tests_too_strange_for_a_sheet_are_judged_inside(judged, task, monkeypatch):
    def strange(*_):
        raise IndexError("a form that nobody thought of")

    monkeypatch.setattr("orchard.workers.domains.swe.sheets.drafts.trim", strange)
    reward = await judged(task, task.gold_patch)
    assert (reward.resolved, reward.protected) == (True, Protected.INSIDE)


@pytest.mark.long
async def test_the_empty_patch_does_not(judged, task):
    reward = await judged(task, "")
    assert (reward.value, reward.resolved) == (-1.0, False)
    # The new test file imports a name that exists, so the old tests run and pass.
    assert reward.parts == {"fail_to_pass": 0.0, "pass_to_pass": 1.0}


async def test_half_a_fix_is_not_resolved(judged, quick_task, shop):
    half = shop.diff({"shop/sums.py": shop.MODULE.replace("return name\n", "return name.strip()\n")})
    reward = await judged(quick_task, half)
    assert not reward.resolved
    assert reward.parts["fail_to_pass"] == 0.5


@pytest.mark.parametrize("submission", ["I could not do it.\n", "diff --git a/x b/x\nnonsense\n"])
async def test_a_submission_that_is_no_patch_is_unresolved_without_a_test_run(
    judged, quick_task, machine, submission
):
    reward = await judged(quick_task, submission)
    assert not reward.resolved
    assert set(reward.tests.values()) == {"MISSING"}
    assert not any("tests.sh" in command for command in machine.commands)


async def test_a_patch_with_wrong_context_is_for_published_rules_only(judged, quick_task, shop):
    """The outermost context lines do not match, and the blobs it names are not there to merge with."""
    lines = quick_task.gold_patch.split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith("@@")) + 1
    lines[first] = " something else"
    lines = [line for line in lines if not line.startswith("index ")]
    reward = await judged(quick_task, "\n".join(lines))
    assert (reward.resolved, reward.detail) == (False, "the patch does not apply")
    assert shop.git("status", "--porcelain") == ""
    published = await judged(quick_task, "\n".join(lines), published=True)
    assert published.resolved
    assert "patch --batch" in published.detail
    assert published.grader == "swe-tests-published"


async def test_a_rung_that_fails_leaves_nothing_behind(judged, quick_task, shop):
    """One good hunk and one hopeless hunk: --reject applies the first, and that must not stay."""
    other = shop.diff({"shop/__init__.py": '"""Shops."""\n'})
    hopeless = quick_task.gold_patch.replace("-    return name\n", "-    nothing like it\n")
    reward = await judged(quick_task, other + hopeless)
    assert reward.detail == "the patch does not apply"
    assert shop.git("status", "--porcelain") == ""


async def test_tests_that_the_patch_rewrites_are_restored(judged, quick_task, shop):
    cheat = shop.diff({"tests/test_sums.py": "def test_label():\n    pass\n"})
    assert not (await judged(quick_task, cheat)).resolved


@pytest.mark.long
async def test_a_planted_conftest_is_undone(judged, task, shop):
    hook = (
        "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
        "    outcome = yield\n    outcome.get_result().outcome = 'passed'\n"
    )
    reward = await judged(task, shop.diff({"tests/conftest.py": hook}))
    assert (reward.value, reward.cause) == (-1.0, "refused")


@pytest.mark.long
async def test_a_syntax_error_is_the_models(judged, task, shop):
    reward = await judged(task, shop.diff({"shop/sums.py": "def total(:\n"}))
    assert not reward.resolved
    assert set(reward.tests.values()) == {"MISSING"}


@pytest.mark.long
async def test_a_patch_that_kills_the_test_runner_is_the_models(judged, task, shop):
    killer = shop.diff({"shop/sums.py": "import os\nos._exit(7)\n"})
    reward = await judged(task, killer)
    assert not reward.resolved
    assert "exit code 7" in reward.detail


@pytest.mark.long
async def test_a_patch_that_hangs_the_tests_is_the_models(judged, quick_task, shop):
    hanging = shop.diff({"shop/sums.py": "while True:\n    pass\n"})
    reward = await judged(with_grading(quick_task, timeout_seconds=4.0), hanging)
    assert not reward.resolved
    assert "never end" in reward.detail


@pytest.mark.long
async def test_passing_tests_with_a_failing_exit_are_not_resolved(judged, task, shop):
    bad_end = "import atexit, os\natexit.register(os._exit, 3)\n"
    reward = await judged(task, shop.diff({"shop/sums.py": bad_end + shop.FIXED}))
    assert reward.parts["fail_to_pass"] == 1.0
    assert not reward.resolved


TAP = """\
python - <<'END'
from shop.sums import average, total
print("\\033[32mok\\033[39m 1 total [of two]" if total([1, 2]) == 3 else "not ok")
try:
    held = average([]) == 0
except ZeroDivisionError:
    held = False
print("ok" if held else "not ok", "2 average of nothing")
raise SystemExit(not held)
END"""


KARMA = """\
python - <<'END'
from shop.sums import average
browser = "Chrome 90.0 (Linux x86_64)"
try:
    held = average([]) == 0
except ZeroDivisionError:
    held = False
print("" if held else f"{browser} average of nothing FAILED")
print(f"{browser}: Executed 9 of 9" if held else f"{browser}: Executed 9 of 9 (1 FAILED)")
raise SystemExit(not held)
END"""


@pytest.mark.parametrize("solved", [True, False])
@pytest.mark.parametrize(
    ("parser", "command", "fail_to_pass", "pass_to_pass"),
    [
        ("tap", TAP, "average of nothing", "total [of two]"),
        ("chart-failures", KARMA, "average of nothing ", "total "),  # what its log does not name has passed
    ],
    ids=["tap", "failures alone"],
)
async def test_tests_of_other_languages_are_judged_by_what_is_printed(
    judged, quick_task, parser, command, fail_to_pass, pass_to_pass, solved
):
    other = with_grading(
        quick_task,
        test_command=command,
        parser=parser,
        fail_to_pass=(fail_to_pass,),
        pass_to_pass=(pass_to_pass,),
    )
    reward = await judged(other, other.gold_patch if solved else "")
    assert reward.resolved is solved
    assert reward.tests == {fail_to_pass: "PASSED" if solved else "FAILED", pass_to_pass: "PASSED"}


@pytest.mark.parametrize("said", ["", "Chrome 90.0 (Linux x86_64): Executed 0 of 0", "0 passing"])
async def test_a_list_of_failures_of_no_tests_says_nothing(judged, quick_task, said):
    """A browser that does not start has no failures either."""
    nothing = with_grading(
        quick_task, test_command=f"echo '{said}'", parser="chart-failures", fail_to_pass=("average ",)
    )
    with pytest.raises(InfrastructureError) as caught:
        await judged(nothing, nothing.gold_patch)
    assert caught.value.cause is AbortCause.GRADER_FAILED


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"test_command": "no-such-program"},
        {"test_command": "python -m pytest -rA tests/test_absent.py"},
        {"pre_commands": ("exit 3",)},
        {"test_patch": "diff --git a/tests/test_sums.py b/tests/test_sums.py\nnonsense\n"},
    ],
    ids=["runner missing", "usage error", "preparation fails", "test patch broken"],
)
async def test_a_broken_environment_is_never_a_reward(judged, task, changes):
    with pytest.raises(InfrastructureError) as caught:
        await judged(with_grading(task, **changes), task.gold_patch)
    assert caught.value.cause is AbortCause.GRADER_FAILED


CUT = "print more than is kept"
NOISE = "        print('noise ' * 2000)\n        try:\n"


async def test_tests_whose_output_is_cut_are_not_missing(judged, quick_task, machine):
    """A test whose line may be in what is left out has not failed."""
    machine.keeps = 8000
    loud = with_grading(quick_task, test_command=RUNNER.replace("        try:\n", NOISE))
    with pytest.raises(InfrastructureError, match=CUT) as caught:
        await judged(loud, loud.gold_patch)
    assert caught.value.cause is AbortCause.GRADER_FAILED
    machine.keeps = 200_000
    assert (await judged(loud, loud.gold_patch)).resolved


@pytest.mark.long
async def test_reports_of_files_are_found_whatever_is_cut(judged, task, shop, machine):
    """Each report names its file: a lost one does not shift those behind it."""
    names = [f"tests/test_more_{number}.py" for number in range(6)]
    loud = "def test_it():\n    print('noise ' * 2000)\n"
    shop.write(dict.fromkeys(names, loud))
    shop.git("add", ".")
    shop.git("commit", "-qm", "more")
    several = with_grading(
        msgspec.structs.replace(task, base_commit=shop.git("rev-parse", "HEAD").strip()),
        test_command=f"python -m pytest -p no:cacheprovider -rA tests/test_sums.py {' '.join(names)}",
        pass_to_pass=(*task.grading.pass_to_pass, *(f"{name}::test_it" for name in names)),
    )
    machine.keeps = 40_000
    with pytest.raises(InfrastructureError, match=CUT):
        await judged(several, several.gold_patch)
    machine.keeps = OUTPUT_LIMIT
    reward = await judged(several, several.gold_patch)
    assert reward.resolved and set(reward.tests.values()) == {"PASSED"}


@pytest.mark.parametrize("solvable", [True, False])
async def test_tests_that_need_more_memory_with_the_solution_too_say_nothing(
    judged, quick_task, machine, solvable
):
    """Also where they report a failure, as of a worker process that was killed."""
    run = machine.run

    async def starved(command, **given):
        outcome = await run(command, **given)
        return msgspec.structs.replace(outcome, out_of_memory="tests.sh" in command)

    machine.run = starved
    failing = (
        quick_task if solvable else with_grading(quick_task, fail_to_pass=("tests/test_sums.py::test_gone",))
    )
    if solvable:
        assert not (await judged(failing, "")).resolved
    else:
        with pytest.raises(InfrastructureError) as caught:
            await judged(failing, "")
        assert caught.value.cause is AbortCause.SANDBOX_OUT_OF_MEMORY


async def test_a_missing_base_commit_is_the_graders_failure(judged, task):
    lost = msgspec.structs.replace(task, base_commit="1" * 40)
    with pytest.raises(InfrastructureError, match="holds no git repository with the commit"):
        await judged(lost, task.gold_patch)


@pytest.mark.parametrize("changes", [{"parser": "cobol"}, {"fail_to_pass": ()}])
async def test_a_task_that_nobody_can_judge_is_invalid(judged, task, changes):
    with pytest.raises(InfrastructureError) as caught:
        await judged(with_grading(task, **changes), "")
    assert caught.value.cause is AbortCause.INVALID_REQUEST


async def test_uncommitted_changes_of_the_image_survive_a_reset(judged, quick_task, shop):
    """Images may come with changes that are not committed; grading must not lose them between tries."""
    shop.write({"shop/local.py": "VALUE = 1\n", "shop/__init__.py": "from shop import local\n"})
    hopeless = quick_task.gold_patch.replace("-    return name", "-    nothing like it")
    await judged(quick_task, hopeless)
    assert (shop.directory / "shop/local.py").exists()
    assert (shop.directory / "shop/__init__.py").read_text() == "from shop import local\n"


async def test_hooks_that_the_gold_patch_has_are_kept(task, shop):
    hook = shop.diff({"tests/conftest.py": "import shop\n"})
    with_hook = msgspec.structs.replace(task, gold_patch=task.gold_patch + hook)
    assert "tests/conftest.py" in paths_to_restore(task, task.grading, hook)
    assert "tests/conftest.py" not in paths_to_restore(with_hook, task.grading, hook)


async def test_junit_and_timing(judged, task):
    """A report printed after the run, its exit code kept, names without durations."""
    junit = with_grading(
        task,
        parser="junit",
        strip_timing=True,
        test_command=(
            "python -m pytest -p no:cacheprovider -q --junitxml=report.xml tests/test_sums.py > /dev/null\n"
            "code=$?; cat report.xml; rm report.xml; exit $code"
        ),
        fail_to_pass=("tests/test_sums.py::test_label [12 ms]",),
        pass_to_pass=("tests.test_sums::test_total",),
    )
    assert (await judged(junit, task.gold_patch)).resolved


def test_a_log_ends_at_the_last_marker():
    output = "noise\nM start\nPASSED a\nM end\nmore\n\nM end 1\n"
    assert between_markers(output, "M") == ("PASSED a\nM end\nmore\n", 1)


def test_a_log_without_an_end_has_no_exit_code():
    assert between_markers("\nM start\nPASSED a\n", "M") == ("PASSED a\n", None)


async def test_set_up_commands_run_before_the_patch_is_applied(judged, quick_task, shop):
    """Scale-SWE images stand at another commit until their commands have run."""
    command = f"git checkout -q {quick_task.base_commit}"
    shop.write({"shop/later.py": "VALUE = 2\n"})
    shop.git("add", "-A")
    shop.git("commit", "-qm", "a later commit")
    ready = msgspec.structs.replace(quick_task, setup_commands=(command,))
    assert (await judged(ready, ready.gold_patch)).resolved
    assert not (shop.directory / "shop/later.py").exists()


async def test_set_up_commands_that_fail_are_the_tasks_fault(judged, quick_task):
    broken = msgspec.structs.replace(quick_task, setup_commands=("exit 9",))
    with pytest.raises(InfrastructureError) as caught:
        await judged(broken, broken.gold_patch)
    assert caught.value.cause is AbortCause.INVALID_REQUEST


async def test_a_submission_that_ruins_the_machine_is_the_models(judged, quick_task, shop):
    """What the control run needs must not be within the submission's reach."""
    ruin = "import os, shutil\nshutil.rmtree('tests')\nos._exit(9)\n"
    reward = await judged(quick_task, shop.diff({"shop/sums.py": ruin}))
    assert (reward.value, reward.resolved) == (-1.0, False)
    assert "with this patch the tests give no result" in reward.detail
