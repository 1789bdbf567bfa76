"""The working directory of an image that only its Dockerfile tells of."""

from pathlib import Path

import pytest

from orchard.pipelines.tasks.working_directories import working_directory

SAID = {
    "FROM debian:12\n": "/",
    "FROM debian:12\nWORKDIR /a\nWORKDIR b\n": "/a/b",
    "FROM debian:12\nworkdir\t/a\n": "/a",
    'FROM debian:12\r\nWORKDIR /a\r\nUSER nobody\r\nENTRYPOINT ["x"]\r\n': "/a",
    "FROM debian:12 AS base\nWORKDIR /a\nFROM other\nWORKDIR /b\nFROM --platform=x Base\nWORKDIR c\n": "/a/c",
    "FROM debian:12 AS base\nWORKDIR /a\nFROM debian:12\n": "/",
    "FROM debian:12\nWORKDIR \\\n  # why\n  /a\n": "/a",
    "FROM debian:12\nRUN x && \\\nWORKDIR /no\nWORKDIR '/a b'\n": "/a b",
    "FROM debian:12\nWORKDIR /a\nRUN <<EOF cat\nWORKDIR /no\nEOF\n": "/a",
    'FROM debian:12\nWORKDIR /a\nCOPY <<"A" <<-B /x/\nWORKDIR /no\nA\nWORKDIR /no\n\tB\n': "/a",
}


@pytest.mark.parametrize("text", SAID)
def test_the_last_stage_and_those_it_is_from_say_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "Dockerfile").write_text(text, newline="")
    assert working_directory(tmp_path / "Dockerfile") == SAID[text]


def test_a_variable_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian:12\nARG HERE=/a\nWORKDIR ${HERE}/b\n")
    with pytest.raises(ValueError, match=r"has WORKDIR \${HERE}/b, .* write workdir"):
        working_directory(tmp_path / "Dockerfile")
