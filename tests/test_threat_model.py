"""The threat model keeps its word: every row names a test that exists, or a risk that is explained."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
DOCUMENT = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
THREATS = ("Threats", "On a cluster")
RISKS = "Residual risks"

_TEST = re.compile(r"`([^`]+\.py(?:::\w+)+)`")
_RISK = re.compile(r"residual: `([^`]+)`")
_BORDER = re.compile(r"^- \*\*(B\d+)\*\*", re.MULTILINE)


class Threat(NamedTuple):
    """One row of a table of threats."""

    name: str
    kind: str
    border: str
    threat: str
    mitigation: str
    shown_by: str

    @property
    def tests(self) -> list[str]:
        return _TEST.findall(self.shown_by)

    @property
    def risks(self) -> list[str]:
        return _RISK.findall(self.shown_by)


class Risk(NamedTuple):
    """One row of the table of residual risks."""

    name: str
    remains: str
    reason: str
    removal: str


def rows(document: str, heading: str) -> Iterator[list[str]]:
    """The cells of the table below a heading, without its first two lines."""
    section = document.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def threats(document: str) -> list[Threat]:
    return [Threat(*cells) for heading in THREATS for cells in rows(document, heading)]


def risks(document: str) -> list[Risk]:
    return [
        Risk(name.strip("`"), remains, reason, removal)
        for name, remains, reason, removal in rows(document, RISKS)
    ]


@cache
def names_of_tests(path: Path) -> frozenset[str]:
    """`test_x` and `TestY::test_x` of a file, without importing it."""
    if not path.is_file():
        return frozenset()
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        owner = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(owner + function.name)
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test_"))


def exists(test: str) -> bool:
    path, _, name = test.partition("::")
    return path.startswith("tests/") and name in names_of_tests(ROOT / path)


def complaints(document: str) -> list[str]:
    """What is wrong with a threat model, one sentence each."""
    found: list[str] = []
    listed, explained = threats(document), risks(document)
    named = [risk.name for risk in explained]
    borders = set(_BORDER.findall(document))
    for threat in listed:
        if not threat.tests and not threat.risks:
            found.append(f"{threat.name} has neither a test nor a residual risk")
        found += [
            f"{threat.name} names {test}, which does not exist" for test in threat.tests if not exists(test)
        ]
        found += [
            f"{threat.name} names the unexplained risk {risk}" for risk in threat.risks if risk not in named
        ]
        left = _RISK.sub("", _TEST.sub("", threat.shown_by)).strip()
        if left:
            found.append(f"{threat.name} shows what is neither a test nor a risk: {left}")
        if threat.kind not in tuple("STRIDE"):
            found.append(f"{threat.name} is of no kind: {threat.kind}")
        if threat.border not in borders:
            found.append(f"{threat.name} lies at the unknown border {threat.border}")
        if not threat.threat or not threat.mitigation:
            found.append(f"{threat.name} has an empty cell")
    used = {risk for threat in listed for risk in threat.risks}
    for risk in explained:
        if not (risk.remains and risk.reason and risk.removal):
            found.append(f"the risk {risk.name} lacks its reason or its removal")
        if risk.name not in used:
            found.append(f"no row has the risk {risk.name}")
    names = [threat.name for threat in listed] + named
    found += [f"{name} occurs twice" for name in sorted({name for name in names if names.count(name) > 1})]
    return found


def test_every_row_names_a_test_that_exists_or_an_explained_risk() -> None:
    assert complaints(DOCUMENT) == []


def test_every_kind_of_threat_and_every_border_has_a_row() -> None:
    now = [Threat(*cells) for cells in rows(DOCUMENT, THREATS[0])]
    assert {threat.kind for threat in now} == set("STRIDE")
    assert {threat.border for threat in now} == set(_BORDER.findall(DOCUMENT))


def test_the_summary_at_the_head_names_explained_risks() -> None:
    summary = DOCUMENT.partition("**In short.**")[2].partition("\n\nEvery row")[0]
    named = set(re.findall(r"`([a-z-]+)`", summary))
    assert named and named <= {risk.name for risk in risks(DOCUMENT)}


def test_threats_on_a_cluster_are_in_their_table() -> None:
    for number, heading in enumerate(THREATS):
        assert all(Threat(*cells).name.startswith("K") == bool(number) for cells in rows(DOCUMENT, heading))


def changed(old: str, new: str) -> list[str]:
    assert old in DOCUMENT
    return complaints(DOCUMENT.replace(old, new, 1))


def test_it_finds_what_is_wrong() -> None:
    fork_bomb = "`tests/injector/test_isolation.py::test_a_fork_bomb_stays_inside`"
    missing = fork_bomb.replace("stays", "strays")
    assert changed(fork_bomb, "") == ["D1 has neither a test nor a residual risk"]
    assert changed(fork_bomb, missing) == [f"D1 names {missing.strip('`')}, which does not exist"]
    assert changed(fork_bomb, "by hand") == [
        "D1 has neither a test nor a residual risk",
        "D1 shows what is neither a test nor a risk: by hand",
    ]
    assert changed("residual: `no-tls-in-orchestrator`", "residual: `quiet`") == [
        "I7 names the unexplained risk quiet",
        "no row has the risk no-tls-in-orchestrator",
    ]
    assert changed("| D1 | D | B1 |", "| D2 | X | B10 |") == [
        "D2 is of no kind: X",
        "D2 lies at the unknown border B10",
        "D2 occurs twice",
    ]
