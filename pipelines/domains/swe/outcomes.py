"""What two test runs, before and after the gold patch, say about each test. Pure."""

import re
from collections.abc import Mapping, Sequence

from orchard.workers.domains.swe.verdict import FAILING, PASSING

_UNSTABLE = re.compile(r"\b0x[0-9a-f]{6,}", re.I)
"""Ids that hold an address differ in every run; of a module that did not load nothing can be compared."""


def split(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(FAIL_TO_PASS, PASS_TO_PASS), sorted: tests that pass after, by whether they passed before.

    Both runs have the same tests. One that passes after and was not seen before, while others of its module
    were, has a name that changes (a time, an address) or was skipped: it is in neither list.
    """
    passing = sorted(test for test, status in after.items() if status == "PASSED")
    loaded = {test.split("::")[0] for test in before if "::" in test}
    fail_to_pass = [
        test
        for test in passing
        if before.get(test) in FAILING or (test not in before and test.split("::")[0] not in loaded)
    ]
    return (
        tuple(test for test in fail_to_pass if not _UNSTABLE.search(test)),
        tuple(test for test in passing if before.get(test) in PASSING),
    )


def sample(tests: Sequence[str], limit: int) -> tuple[str, ...]:
    """At most `limit` of the tests, spread evenly, always the same ones."""
    if len(tests) <= limit:
        return tuple(tests)
    return tuple(tests[index * len(tests) // limit] for index in range(limit))


def messages(log: str, tests: Sequence[str]) -> dict[str, str]:
    """For each test its message in pytest's summary, or that of its module when that did not load."""
    found: dict[str, str] = {}
    by_length = sorted({*tests, *(test.split("::")[0] for test in tests)}, key=len, reverse=True)
    for line in log.splitlines():
        word, _, rest = line.partition(" ")
        if word not in ("FAILED", "ERROR"):
            continue
        name = next((each for each in by_length if rest == each or rest.startswith(f"{each} - ")), None)
        if name is not None:
            found.setdefault(name, rest[len(name) + 3 :])
    return {
        test: message for test in tests if (message := found.get(test) or found.get(test.split("::")[0], ""))
    }
