"""Which files of a repository's tests help its test files with assertions. Pure."""

import ast
import posixpath
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from orchard.workers.domains.swe.commands import TEXTS


def imported_files(file: str, source: str, files: Collection[str]) -> set[str]:
    """Returns the files of the tests among `files` that a module imports: those with `test` in their path,
    and texts that it names, if it runs doctests.

    Other modules are what is tested.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    parents = list(map(str, PurePosixPath(file).parents))
    found = set()
    for module, level in _modules(tree):
        above = parents[level - 1 : level] if level else [*parents, "src"]
        for folder in above:
            stem = str(PurePosixPath(folder, module.replace(".", "/")))
            found |= {f"{stem}.py", f"{stem}/__init__.py"}
    texts = set(_texts(tree, parents[0])) if "doctest" in source else set()
    return {each for each in found & set(files) if each != file and is_of_tests(each)} | texts & set(files)


def _texts(tree: ast.AST, folder: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(TEXTS):
            yield from (posixpath.normpath(posixpath.join(each, node.value)) for each in (folder, ""))


def _modules(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module, node.level
            for alias in node.names:
                yield f"{module}.{alias.name}".strip("."), node.level


def is_of_tests(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return parts[-1] != "conftest.py" and any("test" in part.lower() for part in parts)
