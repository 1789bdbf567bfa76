"""Two releases as a task: what counts as source and test, what the patches hold, what the statement says."""

import pytest

from orchard.pipelines.domains.swe.before_after import messages, sample, split
from orchard.pipelines.domains.swe.layout import declared_requirements, installed_metadata, source_root
from orchard.pipelines.domains.swe.releases import (
    FileKind,
    ReleasePair,
    analyse,
    catalogue,
    choose_pairs,
    conceal,
    kind_of,
    statement,
)
from orchard.pipelines.tasks.errors import NotATask, TaskError

PAIR = ReleasePair(package="adder", old="1.0.0", new="1.1.0")
OLD = {
    "PKG-INFO": b"Metadata-Version: 2.1\nName: adder\nVersion: 1.0.0\n",
    "CHANGES.rst": b"Changes\n=======\n\n1.0.0\n-----\n\n- First.\n",
    "src/adder/__init__.py": b'__version__ = "1.0.0"\n\n\ndef add(a, b):\n    return a - b\n',
    "src/adder/version.py": b"VERSION = (1, 0, 0)\n",
    "src/adder.egg-info/PKG-INFO": b"Version: 1.0.0\n",
    "tests/test_adder.py": b"def test_nothing():\n    pass\n",
    "tests/test_other.py": b"def test_other():\n    pass\n",
}
NEW = {
    "PKG-INFO": b"Metadata-Version: 2.1\nName: adder\nVersion: 1.1.0\n",
    "CHANGES.rst": b"Changes\n=======\n\n1.1.0\n-----\n\n- add() adds.\n\n1.0.0\n-----\n\n- First.\n",
    "src/adder/__init__.py": b'__version__ = "1.1.0"\n\n\ndef add(a, b):\n    return a + b\n',
    "src/adder/version.py": b"VERSION = (1, 1, 0)\n",
    "src/adder.egg-info/PKG-INFO": b"Version: 1.1.0\n",
    "tests/test_adder.py": b"from adder import add\n\n\ndef test_adds():\n    assert add(1, 2) == 3\n",
    "tests/test_other.py": b"def test_other():\n    pass\n",
}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("src/pkg/core.py", FileKind.SOURCE),
        ("pkg.py", FileKind.SOURCE),
        ("pkg/data/table.json", FileKind.SOURCE),
        ("pkg/history.py", FileKind.SOURCE),
        ("tests/data/sample.json", FileKind.TEST),
        ("pkg/tests/test_core.py", FileKind.TEST),
        ("test_pkg.py", FileKind.TEST),
        ("conftest.py", FileKind.TEST),
        ("CHANGELOG.md", FileKind.CHANGELOG),
        ("docs/changes.rst", FileKind.CHANGELOG),
        ("HISTORY", FileKind.CHANGELOG),
        ("README.rst", FileKind.DOCUMENTATION),
        ("docs/conf.py", FileKind.DOCUMENTATION),
        ("pyproject.toml", FileKind.PACKAGING),
        (".github/workflows/ci.yml", FileKind.PACKAGING),
        ("PKG-INFO", FileKind.BUILD_OUTPUT),
        ("src/pkg.egg-info/SOURCES.txt", FileKind.BUILD_OUTPUT),
    ],
)
def test_a_file_is_classified_by_its_name(path: str, kind: FileKind) -> None:
    assert kind_of(path) is kind


def test_the_patches_part_source_from_tests() -> None:
    change = analyse(PAIR, OLD, NEW)
    assert "return a + b" in change.gold_patch
    assert "tests/" not in change.gold_patch
    assert change.test_files == ("tests/test_adder.py",)
    assert "src/" not in change.test_patch


def test_a_version_bump_is_no_part_of_the_solution() -> None:
    change = analyse(PAIR, OLD, NEW)
    assert "1.1.0" not in change.gold_patch
    assert "version.py" not in change.gold_patch


def test_the_repository_is_the_older_release_without_build_output() -> None:
    base = analyse(PAIR, OLD, NEW).base
    assert base["src/adder/__init__.py"] == OLD["src/adder/__init__.py"]
    assert not [path for path in base if "PKG-INFO" in path]


def test_the_changed_tests_are_run_and_those_of_changed_modules() -> None:
    new = {**NEW, "tests/test_version.py": b"def test_version():\n    pass\n"}
    old = {**OLD, "tests/test_version.py": b"def test_version():\n    pass\n"}
    new["src/adder/version.py"] += b"NAME = 'adder'\n"
    assert analyse(PAIR, old, new).run_files == ("tests/test_adder.py", "tests/test_version.py")


def test_the_notes_are_what_the_changelog_gained() -> None:
    notes = analyse(PAIR, OLD, NEW).notes
    assert "- add() adds." in notes
    assert "First" not in notes


def test_without_a_changelog_the_readme_speaks() -> None:
    old = {**OLD, "CHANGES.rst": b"", "README.rst": b"Adder\n\nHistory\n\n- 1.0.0 First\n"}
    new = {**NEW, "CHANGES.rst": b"", "README.rst": b"Adder\n\nHistory\n\n- 1.1.0 It adds\n- 1.0.0 First\n"}
    assert analyse(PAIR, old, new).notes == "- 1.1.0 It adds"


def test_a_release_without_new_tests_is_no_task() -> None:
    new = {**NEW, "tests/test_adder.py": OLD["tests/test_adder.py"]}
    with pytest.raises(NotATask) as refused:
        analyse(PAIR, OLD, new)
    assert refused.value.reason == "no_test_change"


def test_a_release_of_documentation_is_no_task() -> None:
    new = {**NEW, "src/adder/__init__.py": OLD["src/adder/__init__.py"]}
    with pytest.raises(NotATask) as refused:
        analyse(PAIR, OLD, new)
    assert refused.value.reason == "no_source_change"


def test_a_binary_fixture_stays_out_of_the_patches() -> None:
    change = analyse(PAIR, OLD, {**NEW, "tests/sample.bin": b"\0\1"})
    assert "sample.bin" not in change.test_patch


def test_the_statement_names_what_fails_and_keeps_the_solution_back() -> None:
    change = analyse(PAIR, OLD, NEW)
    test = "tests/test_adder.py::test_adds"
    text = statement(PAIR, change, [test], {test: "assert -1 == 3"}, workdir="/testbed", python="python")
    assert "- add() adds." in text
    assert f"`{test}`: assert -1 == 3" in text
    assert "return a + b" not in text


def test_notes_that_quote_the_solution_lose_those_lines() -> None:
    gold = "+++ b/x.py\n+    return combine(left, right, strict=True)\n"
    notes = "Use this:\n\n    return combine(left, right, strict=True)\n\nDone."
    assert conceal(notes, gold) == "Use this:\n\n\nDone."


def test_pairs_are_neighbours_newest_first() -> None:
    chosen = choose_pairs("adder", ["1.0", "1.1", "1.2", "2.0"], limit=2)
    assert [(pair.old, pair.new) for pair in chosen] == [("1.2", "2.0"), ("1.1", "1.2")]


def test_outcomes_are_split_by_what_passed_before() -> None:
    before = {"t.py::a": "FAILED", "t.py::b": "PASSED", "t.py::c": "PASSED"}
    after = {"t.py::a": "PASSED", "t.py::b": "PASSED", "t.py::c": "FAILED"}
    assert split(before, after) == (("t.py::a",), ("t.py::b",))


def test_every_test_of_a_module_that_did_not_load_failed() -> None:
    before = {"t.py": "ERROR", "u.py::b": "PASSED"}
    after = {"t.py::a": "PASSED", "t.py::b[<object at 0x7f00aa11>]": "PASSED", "u.py::b": "PASSED"}
    assert split(before, after) == (("t.py::a",), ("u.py::b",))


def test_a_test_whose_name_changes_is_in_neither_list() -> None:
    before = {"t.py::a[00:50:47]": "PASSED", "t.py::b": "FAILED"}
    after = {"t.py::a[00:50:48]": "PASSED", "t.py::b": "PASSED"}
    assert split(before, after) == (("t.py::b",), ())


def test_a_sample_is_even_and_always_the_same() -> None:
    assert sample("abcdefghij", 5) == ("a", "c", "e", "g", "i")
    assert sample("abc", 5) == ("a", "b", "c")


def test_messages_come_from_the_summary_or_from_the_module() -> None:
    log = "FAILED t.py::a - assert 1 == 2\nERROR u.py - ImportError: no name\nFAILED t.py::ab - other\n"
    assert messages(log, ["t.py::a", "u.py::x", "t.py::c"]) == {
        "t.py::a": "assert 1 == 2",
        "u.py::x": "ImportError: no name",
    }


@pytest.mark.parametrize(
    ("paths", "root"),
    [
        (["src/pkg/__init__.py", "setup.py"], "src"),
        (["src/pkg.py"], "src"),
        (["lib/pkg/__init__.py"], "lib"),
        (["pkg/__init__.py", "tests/test_a.py"], ""),
        (["pkg.py", "src/notes.txt"], ""),
    ],
)
def test_the_source_root_is_found(paths: list[str], root: str) -> None:
    assert source_root(dict.fromkeys(paths, b"")) == root


def test_the_release_counts_as_installed_from_the_repository() -> None:
    tree = {**OLD, "src/adder.egg-info/entry_points.txt": b"[console_scripts]\nadd = adder:main\n"}
    files = installed_metadata("Adder.Plus", "1.0.0", tree)
    assert files["Adder_Plus-1.0.0.dist-info/METADATA"] == OLD["PKG-INFO"]
    assert b"add = adder:main" in files["Adder_Plus-1.0.0.dist-info/entry_points.txt"]
    assert files["_adder_plus_source.pth"] == b"/testbed/src\n"


def test_declared_requirements_are_those_without_extras() -> None:
    info = b"Name: x\nRequires-Dist: six>=1.0\nRequires-Dist: pytest; extra == 'test'\n\nBody\n"
    assert declared_requirements({"PKG-INFO": info}) == ["six>=1.0"]


def test_the_catalogue_takes_its_packages_in_turns() -> None:
    pairs = catalogue()
    assert len(pairs) == len({pair.task_id for pair in pairs}) >= 28
    assert len({pair.package for pair in pairs[:12]}) == 12


def test_an_unknown_package_of_the_catalogue_is_named() -> None:
    with pytest.raises(TaskError, match="no package 'nothing'"):
        catalogue(["nothing"])
