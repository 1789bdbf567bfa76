"""A sample of the forging suite, on every layout, through the real grader; `make bench-forgery` runs all."""

from pathlib import Path

from tests.forgery.__main__ import page, run
from tests.forgery.honest import HONEST
from tests.forgery.layouts import all_layouts
from tests.forgery.tricks import TRICKS

SAMPLE = {
    "flat": (
        "tox.ini loads a plug-in",
        "equal to everything",
        "with a script and a scratch test left behind",
    ),
    "src": ("prints and exits at import", "looks its answer up in the test file", "the gold patch"),
    "repairs": ("a context diff beside a fuzzy one", "the body of every test is skipped"),
}
"""One of each kind: a file, an answer, the runner, output, patch text; and what is honest."""


async def test_a_sample_is_not_forged_and_what_is_honest_is_rewarded(tmp_path: Path) -> None:
    chosen = [
        (trick, layout)
        for layout, names in SAMPLE.items()
        for trick in (*TRICKS, *HONEST)
        if trick.name in names
    ]
    assert len(chosen) == sum(map(len, SAMPLE.values()))
    found, cpu = await run(tmp_path, chosen, list(SAMPLE), concurrency=2)
    assert {f"{each.trick.name} on {each.layout}: {each.layer}" for each in found if each.wrong} == set()
    assert "| tricks | 6 | 0 | 0 | |" in page(found, 1.0, 2, cpu) and cpu > 0


def test_every_trick_has_a_name_of_its_own_and_there_are_enough() -> None:
    names = [trick.name for trick in (*TRICKS, *HONEST)]
    assert len(set(names)) == len(names)
    assert len(TRICKS) >= 80
    assert len(all_layouts()) == 3
