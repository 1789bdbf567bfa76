"""Judges a run of a question sheet: which of the task's tests were answered rightly. Pure."""

import msgspec

from orchard.workers.domains.swe.sheets.sheet import Sheet, problem
from orchard.workers.domains.swe.testing import TestRun
from orchard.workers.domains.swe.verdict import DOUBTFUL, FAILING


def answered_run(sheet: Sheet, run: TestRun) -> TestRun:
    """Returns the run with the statuses of the task's own tests; its log says what was answered wrongly.

    A test that ended well and answered otherwise than the known solution is FAILED. One that did not end, or
    was not run, has no status.
    """
    named = {test.name for test in sheet.tests.values()}
    statuses = {
        name: status
        for name, status in run.statuses.items()
        # `judge` takes a status for that of the name before its first blank.
        if name not in sheet.tests and name.split(" ", 1)[0] not in named
    }
    wrong = []
    for name, test in sheet.tests.items():
        told = run.told.tests.get(name)
        if told is None or not told.status:
            statuses.pop(test.name, None)
            continue
        statuses[test.name] = told.status
        if told.status in DOUBTFUL and told.status != test.status:
            continue
        if told.status not in FAILING and (said := problem(sheet.conditions, test.visits, told.visits)):
            statuses[test.name] = "FAILED"
            line = next(
                (
                    sheet.lines[wanted.ask]
                    for wanted, visit in zip(test.visits, told.visits, strict=False)
                    if problem(sheet.conditions, [wanted], [visit])
                ),
                None,
            )
            where = "" if line is None else f", line {line} of its file"
            wrong.append(f"FAILED {test.name}{where}: {said}\n")
    log = run.log + ("\n== answers ==\n" + "".join(wrong) if wrong else "")
    return msgspec.structs.replace(run, statuses=statuses, log=log)


def otherwise_than_gold(sheet: Sheet, statuses: dict[str, str]) -> set[str]:
    """Returns the tests that are skipped, or fail as expected, though they pass with the gold patch."""
    return {
        test.name
        for test in sheet.tests.values()
        if statuses.get(test.name) in DOUBTFUL and statuses[test.name] != test.status
    }
