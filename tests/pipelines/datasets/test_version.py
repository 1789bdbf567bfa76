"""The code version of a dataset covers what decides its rows, and nothing that reaches them is forgotten."""

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from orchard.pipelines.datasets.version import ROOT, sources
from orchard.workers.domain import domains

DECIDES_NO_ROW = {
    "pipelines/*/errors.py": "names of errors",
    "pipelines/domain.py": "what its records name is in their digests",
    "pipelines/models/directories.py": "loads a processor, whose files are in the tokenizer's digest",
    "storage/blobs.py": "bytes by their digest",
    "storage/delta.py": "which files a table has",
    "storage/durable.py": "how a file is written",
    "storage/errors.py": "names of errors",
    "storage/location.py": "where a store is",
    "storage/pins.py": "keeps files from being removed",
    "storage/table_log.py": "whether the log of a table is whole",
    "storage/tables.py": "what the writer has put into a table stays there",
    "workers/discovery.py": "finds domains, which name their files",
    "workers/domain.py": "what its records name is in their digests",
    "workers/plugins.py": "how plug-ins are loaded",
    "workers/harnesses/programs/*.py": "their names and class alone: the tools of a program are in the log",
    "workers/harnesses/bash_loop.py": "the loop: what came of it is in the log",
    "workers/harnesses/interface.py": "the loop: what came of it is in the log",
    "workers/llm/answers.py": "the type of an answer",
    "workers/episode/machine.py": "the type of a command's result",
    "workers/episode/networks.py": "whether a task had a network: what its prompt said of that is in the log",
}
"""By pattern, why a module that a build imports may change without another code version. What only such a
module imports is as good as excepted."""


def test_every_module_that_a_build_imports_is_in_the_version_or_excepted_with_a_reason() -> None:
    files = [*sources(), *(file for domain in domains().values() for file in domain.files())]
    covered = {path.relative_to(ROOT).as_posix() for path in files}
    seen, waiting = set[str](), {"pipelines/datasets/build.py"}
    excepted, forgotten = set[str](), set[str]()
    while waiting:
        file = waiting.pop()
        seen.add(file)
        if file not in covered and (reasons := {one for one in DECIDES_NO_ROW if fnmatch(file, one)}):
            excepted |= reasons
            continue
        if file not in covered:
            forgotten.add(file)
        waiting |= set(imported(ROOT / file)) - seen
    assert not forgotten
    assert excepted == set(DECIDES_NO_ROW), "an exception that is not needed"


def imported(file: Path) -> Iterator[str]:
    """Modules of ours that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            inside = name.removeprefix("orchard.").replace(".", "/")
            for candidate in (f"{inside}.py", f"{inside}/__init__.py"):
                if name.startswith("orchard.") and (ROOT / candidate).is_file():
                    yield candidate
