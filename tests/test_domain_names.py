"""The core names no domain: it imports nothing of one, and no name or text in its code is a domain's."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ("workers", "pipelines", "injector", "orchard", "schemas/plugins.py")
DOMAINS = sorted(path.name for path in (ROOT / "workers" / "domains").iterdir() if path.is_dir())
PROGRAMS = re.compile(r"mini.swe.agent|minisweagent", re.IGNORECASE)
"""Names of programs of others that hold a domain's."""
PUBLIC = {("orchard/plugins.py", "swe")}
"""The struct `SWETests`, which packages of others import from there."""


def core_files(room: str) -> list[Path]:
    """Python files of a room outside of `domains/`, or the one file."""
    found = [ROOT / room] if room.endswith(".py") else sorted((ROOT / room).rglob("*.py"))
    return [path for path in found if "domains" not in path.relative_to(ROOT).parts]


def words(path: Path) -> Iterator[str]:
    """Names and texts in the code of a file, without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(body := getattr(node, "body", None), list)
        for statement in body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in prose:
                yield text
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=name):
                yield name
            case ast.ImportFrom(module=str(name)):
                yield name


def named(text: str) -> list[str]:
    """The domains that a text names as a word, also as one of snake case or camel case."""
    found = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", PROGRAMS.sub("", text))}
    return [domain for domain in DOMAINS if domain in found]


@pytest.mark.long
@pytest.mark.parametrize("room", CORE)
def test_no_file_of_the_core_names_a_domain(room: str) -> None:
    files = core_files(room)
    assert files
    found = {
        (str(path.relative_to(ROOT)), name) for path in files for word in words(path) for name in named(word)
    }
    assert found - PUBLIC == set()


@pytest.mark.parametrize(
    ("text", "domains"),
    [
        ("orchard.workers.domains.swe.grader", ["swe"]),
        ("SWETests", ["swe"]),
        ("GuiTask", ["gui"]),
        ("claw_world", ["claw"]),
        ("MINI_SWE_AGENT", []),
        ("zeroclaw", []),
        ("ANSWERS", []),
        ("GUIDE", []),
    ],
)
def test_a_name_is_told_from_a_word_that_holds_it(text: str, domains: list[str]) -> None:
    assert named(text) == domains
