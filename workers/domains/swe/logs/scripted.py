"""Reads the statuses that a dataset's own parser printed as JSON behind a mark (`statuses-json`)."""

import json
from collections.abc import Mapping

from orchard.workers.domains.swe.logs.lines import Parser

MARK = ">>>>> statuses of tests"
_WORDS = {"PASS": "PASSED", "FAIL": "FAILED", "SKIP": "SKIPPED"}
_STATUSES = frozenset({"PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL"})


def _statuses(log: str) -> dict[str, str]:
    """`{"tests": [{"name": ..., "status": ...}]}`, or an object with a status for each name; any other word
    is an error."""
    _, _, said = log.rpartition(f"\n{MARK}\n")
    try:
        found = json.loads(said)
        if isinstance(found.get("tests"), list):
            found = {test["name"]: test["status"] for test in found["tests"]}
        words = {str(name): str(word).upper() for name, word in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    words = {name: _WORDS.get(word, word) for name, word in words.items()}
    return {name: word if word in _STATUSES else "ERROR" for name, word in words.items()}


SCRIPTED_PARSERS: Mapping[str, Parser] = {"statuses-json": _statuses}
