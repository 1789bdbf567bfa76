"""Whatever tells somebody to run an `orchard` command names one that exists, with options that it has."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchard.cli.listed import FLAGS, SHARED, Listed, commands

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
ROOMS = ("schemas", "streams", "storage", "injector", "workers", "pipelines", "orchard")
HINT = re.compile(r"`orchard ([^`]+)`")
EXAMPLE = re.compile(r"^ *(?:\$ )?orchard ((?![^`\n]*…)[^`\n#|>]+)", re.M)


def texts(path: Path) -> Iterator[str]:
    """Every string of a module, `X` for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.JoinedStr(values=parts):
                yield "".join(part.value if isinstance(part, ast.Constant) else "X" for part in parts)  # type: ignore[misc]
            case ast.Constant(value=str(text)):
                yield text


def hints() -> set[str]:
    found = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for text in texts(path):
                found |= {" ".join(hint.split()) for hint in HINT.findall(text)}
                if path.relative_to(ROOT).parts[:2] in (("orchard", "cli"), ("orchard", "domains")):
                    found |= set(EXAMPLE.findall(text))
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        found |= set(EXAMPLE.findall(page.read_text(encoding="utf-8")))
    return found


def wrong(hint: str, commands: dict[str, Any]) -> str:
    """What the hint names that does not exist; empty when all of it does."""
    words = [word for word in shlex.split(hint.replace("...", "").replace("'", '"')) if word != "X"]
    while words and words[0] in (*SHARED, *FLAGS, "--help", "--version"):
        words.pop(0)
    if not words:
        return ""
    if words[0] not in commands:
        return f"no command {words[0]!r} in: orchard {hint}"
    command = commands[words[0]]
    below = getattr(command, "commands", {})
    named = next((word for word in words[1:2] if word in below), None)
    if below and len(words) > 1 and named is None and not words[1].endswith(".toml") and words[1] != "--help":
        return f"no command {words[1]!r} in: orchard {hint}"
    command = below.get(named or ("run" if "run" in below else ""), command)
    known = {
        "--help",
        *SHARED,
        *FLAGS,
        *(option for one in command.params for option in (*one.opts, *one.secondary_opts)),
    }
    given = {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"}
    return f"no option {', '.join(given - known)} in: orchard {hint}" if given - known else ""


def test_each_command_that_is_named_exists() -> None:
    known = {name: Listed(name, *place).real() for name, place in commands().items()}
    found = hints()
    assert len(found) > 60
    assert [text for hint in sorted(found) if (text := wrong(hint, known))] == []
