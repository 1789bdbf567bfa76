"""A sheet in the making: which files are run again after a change."""

import pytest

from orchard.workers.domains.swe.sheets import trials
from orchard.workers.domains.swe.sheets.drafts import Draft, KnownTest
from orchard.workers.domains.swe.sheets.sites import Treatment
from orchard.workers.domains.swe.sheets.told import Told, ToldTest
from orchard.workers.domains.swe.sheets.trials import SheetTrials
from orchard.workers.domains.swe.testing import TestRun, ToldRun

A, B, HELP = "tests/test_a.py", "tests/test_b.py", "tests/help.py"


class Files(dict):
    async def write(self, path, data):
        self[path] = data


@pytest.fixture
def ran(monkeypatch):
    """Which files each run had."""
    runs = []

    async def run_tests(*_, files, **__):
        runs.append(list(files))
        told = {file: Told(tests={f"{file}::test_x": ToldTest(status=f"run {len(runs)}")}) for file in files}
        by_file = {file: ToldRun(told=told[file], seconds=1.0) for file in files}
        return TestRun(statuses={}, exit_code=0, log="", by_file=by_file)

    monkeypatch.setattr(trials, "run_tests", run_tests)
    return runs


async def test_a_file_runs_again_where_it_or_what_others_import_is_another(ran, task):
    made = SheetTrials(task, task.grading, [A, B], {HELP}, Files(), None)

    async def statuses(files=None, again=(), **texts):
        run = await made.run({A: "a", B: "b", HELP: "h", **texts}, files, again=again)
        return [test.status for test in run.told.tests.values()], run.seconds

    assert await statuses() == (["run 1", "run 1"], 2.0)
    assert await statuses() == (["run 1", "run 1"], 2.0)
    assert await statuses(again={B}) == (["run 1", "run 2"], 2.0)
    assert await statuses(**{A: "other"}) == (["run 3", "run 2"], 2.0)
    assert await statuses(files={B}) == (["run 2"], 1.0)
    assert await statuses() == (["run 4", "run 2"], 2.0), "what was written and not run has told nothing"
    assert await statuses(**{HELP: "other"}) == (["run 5", "run 5"], 2.0)
    assert ran == [[A, B], [B], [A], [A], [A, B]]


def test_a_function_is_treated_one_step_less_strictly_a_round_however_many_of_its_rows_deviate():
    draft = Draft({A: "def test_x(a):\n    assert a\n"}, lambda _: True)
    rows = [
        KnownTest(
            id=f"{A}::test_x[{at}]", function="test_x", file=A, status="PASSED", visits=[], again=[], base=[]
        )
        for at in range(9)
    ]
    for step in list(Treatment)[1:]:
        draft.degrade_all(rows)
        assert draft.treatments[A, "test_x"] == step
    assert not draft.left_alone
    draft.degrade_all(rows)
    assert draft.left_alone == {A}
