"""The import floors of the architecture: imports between rooms point one way only."""

import ast
import importlib.machinery
import importlib.util
import re
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MAY_IMPORT: dict[str, set[str]] = {
    "schemas": set(),
    "streams": {"schemas"},
    "storage": {"schemas", "streams"},
    "injector": {"schemas"},
    "workers": {"schemas", "streams", "storage", "injector"},
    "pipelines": {"schemas", "streams", "storage", "injector", "workers"},
    "orchard": {"schemas", "streams", "storage", "injector", "workers", "pipelines"},
}


def imported(path: Path) -> set[str]:
    """Rooms and top-level packages that a file imports, wherever in the file."""
    return {room_of(module) for module in modules(path)}


def modules(path: Path) -> set[str]:
    """Dotted names of what a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_of(module: str) -> str:
    """`streams` for `orchard.streams.pull`; the first part of what is not in a room."""
    first, second = (*module.split("."), "")[:2]
    return second if first == "orchard" and second in MAY_IMPORT else first


@pytest.mark.long
@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_rooms_above_it(room: str) -> None:
    # `injector/sdk` is packaging: its package `orchard_env` stands on its own, on `orchard`.
    files = sorted(path for path in (ROOT / room).rglob("*.py") if "sdk" not in path.parts)
    assert files, f"room {room} is empty"
    forbidden = set(MAY_IMPORT) - MAY_IMPORT[room] - {room} | {"tests"}
    climbing = {str(path.relative_to(ROOT)): names for path in files if (names := imported(path) & forbidden)}
    assert climbing == {}


def test_workers_take_only_blobs_from_storage() -> None:
    taken = {
        module.rpartition(".")[0]
        for path in (ROOT / "workers").rglob("*.py")
        for module in modules(path)
        if room_of(module) == "storage"
    }
    assert taken <= {"orchard.storage.blobs", "orchard.storage.errors"}


def test_the_agent_imports_only_the_standard_library_and_aiohttp() -> None:
    ours = set(MAY_IMPORT) - {"injector"}
    for path in (ROOT / "injector" / "agent").rglob("*.py"):
        third_party = imported(path) - set(sys.stdlib_module_names) - {"aiohttp", "yarl", "injector"}
        if path.name == "layers.py":  # the standard library's own, for Pythons before it
            third_party -= {"backports", "compression"}
        assert third_party == set(), f"{path} imports {third_party}"
        assert imported(path) & ours == set()
        for module in modules(path):
            if room_of(module) == "injector":
                assert module.startswith("orchard.injector.agent"), f"{path} imports {module}"


@pytest.mark.long
@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - {"orchard"}))
def test_no_module_imports_one_that_imports_it(room: str) -> None:
    """For types alone neither."""
    files = {
        ".".join(("orchard", *path.with_suffix("").relative_to(ROOT).parts)): path
        for path in (ROOT / room).rglob("*.py")
    }
    graph = {
        name: {module if module in files else module.rpartition(".")[0] for module in modules(path)}
        & set(files)
        for name, path in files.items()
    }
    assert set(TopologicalSorter(graph).static_order()) == set(files)  # CycleError names a cycle


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_every_room_says_what_it_is_for(room: str) -> None:
    module = ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(module)


def test_no_file_has_a_name_that_says_nothing() -> None:
    nothing = {"utils", "util", "helpers", "helper", "common", "base", "misc"}
    assert [path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.py") if path.stem in nothing] == []


@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - {"orchard"}))
def test_every_room_is_importable_below_orchard_alone(room: str) -> None:
    assert (ROOT / "orchard" / room).resolve() == ROOT / room
    assert importlib.util.find_spec(f"orchard.{room}") is not None
    elsewhere = [path for path in sys.path if Path(path).resolve() != ROOT]
    assert importlib.machinery.PathFinder.find_spec(room, elsewhere) is None


@pytest.mark.long
def test_a_python_that_is_started_takes_nothing_from_the_folder_it_starts_in() -> None:
    """A user's `orchard.py` or `schemas.py` there would be taken for ours."""
    for room in MAY_IMPORT:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.List | ast.Tuple):
                    words = [ast.unparse(word) for word in node.elts]
                    if {"'-m'", "'-c'"} & {*words} and "sys.executable" in words:
                        assert "'-P'" in words, f"{path}: {words}"


PRODUCT = {
    path: ast.parse(path.read_text(encoding="utf-8"))
    for room in MAY_IMPORT
    for path in (ROOT / room).rglob("*.py")
}
NO_SUBJECT = re.compile(
    r"(?:Of|By|As|In|With|At|To|For|From|Where|Until|Beside|Behind|Among|Whom?|How much)\b"
)


@pytest.mark.long
def test_one_module_alone_imports_openai() -> None:
    """It takes most of a second, and workers have a client of their own."""
    found = [path for path in PRODUCT if "openai" in imported(path)]
    assert found == [ROOT / "orchard" / "actions" / "endpoint_calls.py"]


@pytest.mark.long
def test_no_two_packages_import_each_other() -> None:
    """A package is a folder below a room, or the modules of a room that are in none."""
    names = {
        ".".join(("orchard", *path.with_suffix("").relative_to(ROOT).parts))
        .replace("orchard.orchard.", "orchard.")
        .removesuffix(".__init__"): path
        for path in PRODUCT
    }
    arrows = {
        (package_of(path), package_of(names[module]))
        for path in PRODUCT
        for module in names_in(path)
        if module in names
    }
    assert {(one, other) for one, other in arrows if one < other and (other, one) in arrows} == set()


def names_in(path: Path) -> set[str]:
    """Dotted names of what a file imports, and of the modules that it takes names of."""
    found = modules(path)
    return found | {name.rpartition(".")[0] for name in found}


def package_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).parts
    return parts[:2] if len(parts) > 2 else parts[:1]


def test_a_class_has_a_name_of_its_own() -> None:
    classes = Counter(
        node.name
        for tree in PRODUCT.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    shared = {name: count for name, count in classes.items() if count > 1}
    assert sum(shared.values()) < 0.03 * classes.total(), shared


def test_docstrings_are_sentences_with_a_subject() -> None:
    texts = [
        (path, each.value.value.strip())
        for path, tree in PRODUCT.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for each in node.body
        if isinstance(each, ast.Expr)
        and isinstance(each.value, ast.Constant)
        and isinstance(each.value.value, str)
    ]
    bare = [(str(path.relative_to(ROOT)), text[:60]) for path, text in texts if NO_SUBJECT.match(text)]
    assert len(bare) < 0.01 * len(texts), bare
