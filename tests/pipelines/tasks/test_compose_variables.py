"""Variables in compose files, by the compose specification, where nobody sets any."""

import pytest

from orchard.pipelines.tasks.compose_variables import interpolated, variables


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plain", "plain"),
        ("pa$$word $$5 $${X}", "pa$word $5 ${X}"),
        ("postgres://app:${DB_PASSWORD:-secret}@db/app", "postgres://app:secret@db/app"),
        ("${A-1}${B:-2}", "12"),
        ("${A:-${B:-inner}}!", "inner!"),
        ("${A:-a$$b}", "a$b"),
        ("${A:-}${B-}", ""),
        ("[${A:+set}${A+set}]", "[]"),
    ],
)
def test_defaults_are_taken(text: str, said: str) -> None:
    assert interpolated(text) == said


@pytest.mark.parametrize(
    "text", ["$HOME", "${HOME}", "a${KEY:?must be set}b", "${KEY?no}", "${A:-${B}}", "${A:-$B}"]
)
def test_what_only_a_machine_could_say_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="taken from the machine"):
        interpolated(text)


@pytest.mark.parametrize("text", ["$", "5$ a", "${", "${A:-b", "${}", "${A B}", "${1}"])
def test_what_compose_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"dollar sign|cannot read|not closed"):
        interpolated(text)


def test_both_forms_of_a_list_are_read() -> None:
    assert variables(["A=1=2", "B"]) == {"A": "1=2", "B": ""}
    assert variables({"A": True, "B": None, "C": 1.5}) == {"A": "true", "B": "", "C": "1.5"}
