"""Words and tests of a rollout's task, and which tests decided its grade."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.tasks import Task, judging_tests
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import BlobCorrupt, BlobMissing

PASSED = ("PASSED", "XFAIL")
SHOWN = 300
"""Maximum number of tests shown of a group."""


class GradedTests(NamedTuple):
    """Tests that mean the same for the grade."""

    title: str
    tests: list[tuple[str, str]]
    """Name and status of each."""
    decided: bool
    """Whether they are why the rollout is not resolved."""


def read_task(blobs: BlobStore, sha256: str | None) -> Task | None:
    """Reads a task; None if it cannot be read, as that of an import."""
    if not sha256:
        return None
    try:
        return msgspec.json.decode(blobs.get(BlobRef(sha256=sha256, size=0)), type=Task)
    except (BlobMissing, BlobCorrupt, msgspec.DecodeError):
        return None


def grouped(tests: Mapping[str, str], task: Task | None) -> list[GradedTests]:
    """All tests by what they mean, those that decided first."""
    to_pass, to_stay = judging_tests(task.grading) if task else ((), ())
    named = {**dict.fromkeys(to_stay, "stay"), **dict.fromkeys(to_pass, "pass")}
    found: dict[tuple[str, bool], list[tuple[str, str]]] = {}
    for name, status in sorted(tests.items()):
        means = named.get(name, "")
        good = status in PASSED or (means == "stay" and status == "SKIPPED")
        found.setdefault((means, good), []).append((name, status))
    titles = {
        ("pass", False): "had to pass and did not",
        ("stay", False): "passed before and broke",
        ("", False): "failed, and counted for nothing" if named else "failed",
        ("pass", True): "had to pass and did",
        ("stay", True): "had to stay passing and did",
        ("", True): "passed, and counted for nothing" if named else "passed",
    }
    return [
        GradedTests(title, found[key], not key[1] and (bool(key[0]) or not named))
        for key, title in titles.items()
        if key in found
    ]
