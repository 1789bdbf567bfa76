"""The core names no domain: what it needs of one, it asks the domain's record."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("pipelines",)
DOMAINS = re.compile(r"(?<![a-z])(swe|gui|claw)(?![a-z])", re.IGNORECASE)
OTHERS = re.compile(r"mini[-_]swe[-_]agent", re.IGNORECASE)
"""Names of programs that have a domain's name in them."""


def texts(tree: ast.AST) -> Iterator[str]:
    """Names, modules and text literals of a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text):
                yield text
            case ast.keyword(arg=str(text)) | ast.alias(name=text) | ast.ImportFrom(module=str(text)):
                yield text
            case ast.FunctionDef(name=text) | ast.AsyncFunctionDef(name=text) | ast.ClassDef(name=text):
                yield text


def named(source: str) -> set[str]:
    """Domains that a module names."""
    found = (DOMAINS.findall(OTHERS.sub("", text)) for text in texts(ast.parse(source)))
    return {name.lower() for names in found for name in names}


def test_a_name_of_a_domain_is_seen_wherever_it_stands() -> None:
    for source in (
        "from orchard.pipelines.domains.gui import proof",
        "import orchard.schemas.claw",
        "layout = 'orchard-swe'",
        "def read_gui_rows(): ...",
        "run(claw=1)",
    ):
        assert named(source), source
    assert not named("harness = 'mini-swe-agent'\ngrading: SWETests\ngrade_distinguished = 'guide, claws'")


@pytest.mark.parametrize("room", ROOMS)
def test_the_core_of_a_room_names_no_domain(room: str) -> None:
    files = [file for file in sorted((ROOT / room).rglob("*.py")) if "domains" not in file.parts]
    assert files, f"room {room} is empty"
    naming = {
        file.relative_to(ROOT).as_posix(): names
        for file in files
        if (names := named(file.read_text(encoding="utf-8")))
    }
    assert naming == {}
