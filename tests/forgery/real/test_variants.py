"""What the suite makes of a known solution: the same behaviour in other words, or one mistake."""

import ast

from orchard.pipelines.domains.swe.repairs import Split, repair_files, repair_tasks
from tests.forgery.real.forgers import FORGERS
from tests.forgery.real.others import others
from tests.forgery.real.submissions import Source, applied
from tests.forgery.real.variants import honest_variants, mutants, renamed_locals

MODULE = """
import re

_LIMIT = 3


def outer(given, *, named=1):
    total = given + named
    kept = [total for total in range(given)]

    def inner():
        return kept

    try:
        return total + len(inner())
    except ValueError as error:
        raise TypeError(str(error)) from error


def reads_itself(given):
    local = given
    return locals()
"""


def test_locals_get_other_names_and_nothing_else_does() -> None:
    text = renamed_locals(MODULE)
    assert "total_kept = given + named" in text and "error_kept" in text
    assert "return kept\n" in text and "local = given" in text and "_LIMIT = 3" in text
    before: dict[str, object] = {}
    after: dict[str, object] = {}
    exec(MODULE, before)
    exec(text, after)
    assert before["outer"](4) == after["outer"](4, named=1) == 9  # type: ignore[operator]


def _sources() -> list[Source]:
    return [
        Source(task=task, base=(base := repair_files([task])), gold=applied(base, task.gold_patch))
        for task in repair_tasks(20, 35, Split.TRAIN)
    ]


def _answers(source: Source, submission: str) -> list[object]:
    """What the module's function gives for the calls of its tests."""
    (path,) = source.modules
    space: dict[str, object] = {}
    exec(applied(source.base, submission)[path], space)
    calls = [line.strip("+ ").removeprefix("assert ") for line in source.grading.test_patch.splitlines()]
    asked = [call.split(" == ")[0] for call in calls if " == " in call]
    return [eval(each, space) for each in asked]


def test_honest_variants_answer_as_the_known_solution_and_mutants_are_other_programs() -> None:
    for source in _sources():
        (path,) = source.modules
        right = _answers(source, source.changed({}))
        honest = {**honest_variants(source), **others(source)}
        assert len(others(source)) == 2 and len(set(honest.values())) == len(honest) >= 3
        assert all(_answers(source, submission) == right for submission in honest.values())
        wrong = mutants(source)
        assert wrong and wrong == mutants(source)
        texts = {ast.dump(ast.parse(applied(source.base, each)[path])) for each in wrong.values()}
        assert len(texts) == len(wrong) and ast.dump(ast.parse(source.gold[path])) not in texts


def test_a_forger_repairs_nothing_and_is_a_module_that_python_reads() -> None:
    source = _sources()[0]
    (path,) = source.modules
    for forger in FORGERS:
        changed = applied(source.base, source.forged(forger))
        assert changed[path].startswith(source.base[path])
        compile(changed[path], forger.name, "exec")
