"""Links, commands, options, modules and messages in documents and docstrings are real."""

import ast
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from orchard.cli.app import app
from orchard.cli.reference import PAGES, walk
from orchard.reference.glossary import COLUMNS, TABLES, VIEWS
from orchard.reference.page import anchor
from orchard.schemas.outcomes import AbortCause
from orchard.storage import tables, views

ROOT = Path(__file__).parent.parent
FOLDERS = ("schemas", "streams", "storage", "injector", "workers", "pipelines", "orchard", "infra", "tests")
DECISIONS = ROOT / "docs" / "decisions"
PAGES_OF_PEOPLE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted(
    file
    for folder in FOLDERS
    for file in (ROOT / folder).rglob("*.py")  # links to folders are not followed
)
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"^    +(.*)$", re.MULTILINE)
INLINE = re.compile(r"(?<!`)(`{1,2})(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


def unfenced(text: str) -> str:
    return FENCED.sub("", text)


# --- pages that are written from the code --------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_reference_page_is_what_the_code_says(name: str) -> None:
    committed = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert committed == PAGES[name](), "run `make schemas`"


def test_each_table_and_view_is_explained_and_no_other() -> None:
    assert set(TABLES) == set(tables.TABLES)
    assert set(VIEWS) == set(views.VIEWS)
    assert set(COLUMNS) <= {*TABLES, *VIEWS}


# --- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES_OF_PEOPLE, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [target for target in LINK.findall(unfenced(page.read_text())) if not leads(page, target)]
    assert not broken


def leads(page: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return True  # an address elsewhere
    place, _, heading = target.partition("#")
    file = (page.parent / place).resolve() if place else page
    return file.exists() and (not heading or f"#{heading}" in anchors(file))


@cache
def anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", unfenced(file.read_text()), re.MULTILINE)
    return {anchor(LINK.sub("]", heading)) for heading in headings}


@pytest.mark.long
def test_every_page_is_found_from_the_readme() -> None:
    found: set[Path] = set()
    waiting = [ROOT / "README.md", *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md"))]
    while waiting:
        page = waiting.pop()
        found.add(page)
        for target in LINK.findall(unfenced(page.read_text())):
            place = (page.parent / target.partition("#")[0]).resolve()
            near = place.glob("*.md") if place.is_dir() else [place]
            waiting += [one for one in near if one.suffix == ".md" and one.exists() and one not in found]
    assert [named(page) for page in PAGES_OF_PEOPLE if page not in found] == []


def test_each_promise_of_the_readme_has_a_command_or_a_link() -> None:
    promises = (ROOT / "README.md").read_text().partition("## What it promises")[2].partition("\n## ")[0]
    points = re.findall(r"^- .*(?:\n  .*)*", promises, re.MULTILINE)
    assert len(points) > 5
    assert [point for point in points if not LINK.search(point) and not INLINE.search(point)] == []


def test_the_index_names_every_document() -> None:
    """Folders with an index of their own are named by it."""
    index = ROOT / "docs" / "README.md"
    named_there = {
        (index.parent / target.partition("#")[0]).resolve() for target in LINK.findall(index.read_text())
    }
    own = {page.parent for page in (ROOT / "docs").glob("*/README.md")}
    every = [file for kind in ("md", "json", "ipynb") for file in (ROOT / "docs").rglob(f"*.{kind}")]
    listed = [file for file in every if file != index and not own & {file.parent, *file.parents}]
    assert [named(file) for file in listed if file not in named_there] == []
    assert [named(page) for page in own if page / "README.md" not in named_there] == []


# --- commands ------------------------------------------------------------------------------------


@cache
def commands() -> dict[tuple[str, ...], set[str]]:
    """Words of each command to its options, those of all commands included."""
    root = typer.main.get_command(app)
    shared = options(root)
    return {tuple(path.split()): options(command) | shared for path, command in walk(root, "orchard")}


def options(command: Any) -> set[str]:
    return {"--help", *(name for one in command.params for name in (*one.opts, *one.secondary_opts))}


def lines_of_code(text: str) -> Iterator[str]:
    """Lines of blocks and pieces of code in a Markdown page."""
    for _, language, block in FENCED.findall(text):
        if language not in ("python", "toml", "sql", "text", "mermaid"):
            yield from block.replace("\\\n", " ").splitlines()
    yield from INDENTED.findall(unfenced(text))
    for _, piece in INLINE.findall(unfenced(text)):
        yield " ".join(piece.split())


def invocations(text: str, program: str) -> Iterator[list[str]]:
    for line in lines_of_code(text):
        for part in re.split(r"&&|;|\|(?=\s*\w+ )|<<", line.partition("  #")[0]):
            try:
                words = shlex.split(re.sub(r"^\w*[#$] +", "", part.strip()))
            except ValueError:
                continue  # a sentence with an apostrophe
            if words and words[0].rpartition("/")[2] == program:
                yield words[1:]


@pytest.mark.parametrize("page", PAGES_OF_PEOPLE, ids=named)
def test_commands_and_options_exist(page: Path) -> None:
    assert [fault for words in invocations(page.read_text(), "orchard") if (fault := wrong(words))] == []


def wrong(words: list[str]) -> str | None:
    """Why these words after `orchard` are no command; None for one that is."""
    known = commands()
    shared = options(typer.main.get_command(app))
    while words and words[0] in shared:  # options before the command, each with a value
        words = words[1:] if words[0] in ("--version", "--help") else words[2:]
    if not words or words[0] == "...":
        return None
    if words[0].startswith("-"):
        return f"`orchard` has no {words[0]}"
    heads = [word.split("|") for word in words]
    for name in heads[0]:
        below = {path for path in known if path[1] == name}
        if not below:
            return f"there is no `orchard {name}`"
        if below == {("orchard", name)}:
            found = [("orchard", name)]
        elif name in ("eval", "rl") and words[1:] and words[1].endswith(".toml"):
            found = [("orchard", name, "run")]
        elif len(words) == 1:
            continue  # a group, named as such
        else:
            found = [("orchard", name, each) for each in heads[1]]
        for path in found:
            if path not in known:
                return f"there is no `{' '.join(path)}`"
            given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            if unknown := given - known[path]:
                return f"`{' '.join(path)}` has no {', '.join(sorted(unknown))}"
    return None


OF_OTHER_PROGRAMS = {"--privileged", "--nproc-per-node", "--numstat", "--verbose", "--volume"} | {
    "--enable-auto-tool-choice",
    "--tool-call-parser",
}
"""Options of docker, torchrun, git, ctest and vLLM."""
ITS_OWN = re.compile(r'add_argument\(\s*"(--[a-z-]+)"')


@pytest.mark.long
def test_options_in_messages_exist() -> None:
    """In the front door all that its texts name; elsewhere those that a text puts between backticks."""
    known = set().union(OF_OTHER_PROGRAMS, *commands().values())
    faults = []
    for file in SOURCES:
        room = file.relative_to(ROOT).parts
        if room[0] == "tests" or room[:2] in (("orchard", "adapters"), ("orchard", "reference")):
            continue
        pattern = re.compile(
            r"(?:^|[\s`(])(--[a-z][a-z-]+)" if room[0] == "orchard" else r"`(--[a-z][a-z-]+)"
        )
        own = set(ITS_OWN.findall(programs())) if room[0] == "injector" else set()
        for text in texts(file):
            faults += [f"{named(file)}: {name}" for name in pattern.findall(text) if name not in known | own]
    assert not faults


@cache
def programs() -> str:
    """Source of the sandbox service, whose programs have options of their own."""
    return "\n".join(file.read_text() for file in SOURCES if named(file).startswith("injector/"))


def texts(file: Path) -> Iterator[str]:
    """Texts of a module that are sentences, pieces of f-strings included."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value


@pytest.mark.parametrize("page", PAGES_OF_PEOPLE, ids=named)
def test_make_targets_and_modules_exist(page: Path) -> None:
    text = page.read_text()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {words[0] for words in invocations(text, "make") if words and words[0].islower()}
    assert asked <= targets
    modules = set(re.findall(r"python3? (?:-P )?-m ((?:orchard|tests)[\w.]*)", text))
    assert [module for module in modules if not importlib.util.find_spec(module)] == []


# --- what is cited -------------------------------------------------------------------------------

FILE = re.compile(r"(?<![\w/.<*-])((?:[\w.-]+/)*[\w-][\w.-]*\.md)\b")
PLACE = re.compile(
    r"(?<![\w/.<-])((?:schemas|streams|storage|injector|workers|pipelines|infra|tests/\w+)/[\w./-]*\w(?![\w*])"
    r"|docs/[\w./-]+\.(?:json|png))"
)
DECISION = re.compile(r"\bdecisions? (\d+)")
MODULE = re.compile(
    r"\borchard\.(?:schemas|streams|storage|injector|workers|pipelines|cli|reference)(?:\.\w+)+"
)
NOWHERE = re.compile(r"\bissue \d+|\bdesign/\w+|\.md, (?:section|promise|point)s? \d+", re.IGNORECASE)
"""What only those can read who wrote it."""


@pytest.mark.parametrize("page", PAGES_OF_PEOPLE, ids=named)
def test_a_page_cites_what_exists(page: Path) -> None:
    text = LINK.sub("]", unfenced(page.read_text()))
    assert list(cites_nothing(text, page)) == []


def test_docstrings_and_comments_cite_what_exists() -> None:
    faults = [
        f"{named(file)}: {fault}" for file in SOURCES for fault in cites_nothing(said(file.read_text()), file)
    ]
    assert not faults


def said(source: str) -> str:
    """Texts between three quotation marks, which docstrings are, and comments."""
    return "\n".join(
        [*re.findall(r'"""(.*?)"""', source, re.DOTALL), *re.findall(r"# (.*)$", source, re.MULTILINE)]
    )


def cites_nothing(text: str, file: Path) -> Iterator[str]:
    """Citations of what is not in the repository."""
    roots = (ROOT, ROOT / "docs", ROOT / "docs" / "reference", file.parent)
    for name in FILE.findall(text):
        ours = "/" not in name or (ROOT / name.partition("/")[0]).exists()  # and no file of the reader's
        if ours and not any((root / name).exists() for root in roots):
            yield name
    yield from (name for name in PLACE.findall(text) if not (ROOT / name).exists())
    for number in DECISION.findall(text):
        if int(number) not in decided():
            yield f"decision {number}"
    yield from (name for name in MODULE.findall(text) if not importable(name))
    yield from NOWHERE.findall(text)


@cache
def decided() -> set[int]:
    """Numbers of the decisions that have a page or a line in the index."""
    pages = {int(page.name[:4]) for page in DECISIONS.rglob("[0-9]*.md")}
    lines = re.findall(r"^\| (\d+)", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    return pages | {int(number) for number in lines}


def test_a_decision_is_one_screen() -> None:
    pages = DECISIONS.rglob("[0-9]*.md")
    assert [named(page) for page in pages if len(page.read_text().splitlines()) > 50] == []


@cache
def importable(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    module, _, attribute = name.rpartition(".")
    try:
        if importlib.util.find_spec(name):
            return True
    except ModuleNotFoundError:
        return importable(module) and hasattr(resolved(module), attribute) if module else False
    return hasattr(importlib.import_module(module), attribute)


def resolved(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


GLOSSARY_ROW = re.compile(
    r"^\| (?P<word>[^|]+) \| [^|]+ \| `(?P<name>\w+)` in `(?P<file>[\w/]+\.py)` \|$", re.MULTILINE
)


def test_the_glossary_names_classes_that_exist() -> None:
    rows = list(GLOSSARY_ROW.finditer((ROOT / "docs" / "concepts.md").read_text()))
    assert len(rows) > 40
    missing = [
        row["word"]
        for row in rows
        if not re.search(rf"^class {row['name']}\b", (ROOT / row["file"]).read_text(), re.MULTILINE)
    ]
    assert not missing


def test_the_glossary_has_every_cause_of_an_abort_once() -> None:
    section = (ROOT / "docs" / "concepts.md").read_text().partition("## Causes of an abort")[2]
    groups = re.findall(r"^\| (?:infrastructure|environment|user)[^|]* \| ([^|]+) \|", section, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(groups))) == sorted(AbortCause)


def test_recover_has_a_remedy_for_every_cause_of_an_abort() -> None:
    page = (ROOT / "docs" / "how-to" / "recover.md").read_text()
    assert set(AbortCause) <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


# --- troubleshooting -----------------------------------------------------------------------------


def sentences() -> str:
    """The production code with texts of several lines in one, and `...` for what is put into them."""
    files = [file for file in SOURCES if not file.is_relative_to(ROOT / "tests")]
    whole = "\n".join(file.read_text() for file in files)
    joined = re.sub(r"""["']\s*\n\s*f?["']""", "", whole)
    return re.sub(r"\{[^{}\n]*\}", "...", joined)


def test_messages_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    first = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    quoted = [piece.strip() for cell in first for _, piece in INLINE.findall(cell)]
    assert len(quoted) > 40
    code = sentences()
    patterns = {piece: re.escape(piece).replace(r"\.\.\.", ".*") for piece in quoted}
    assert [piece for piece, pattern in patterns.items() if not re.search(pattern, code)] == []
