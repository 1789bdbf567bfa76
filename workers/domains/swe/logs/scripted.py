"""Reads the statuses that a dataset's own parser printed as JSON behind a mark (`statuses-json`)."""

import json
from collections import Counter
from collections.abc import Mapping

from orchard.workers.domains.swe.logs.lines import Parser

MARK = ">>>>> statuses of tests"
_WORDS = {"PASS": "PASSED", "FAIL": "FAILED", "SKIP": "SKIPPED"}
_STATUSES = frozenset({"PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL"})


def _statuses(log: str) -> dict[str, str]:
    """`{"tests": [{"name": ..., "status": ...}]}`, or an object with a status for each name; any other word
    is an error.

    Of a name that is twice in the list one pass counts, in whichever order, as in the families' own code
    (`swe_bench_pro_eval.py`, which NeMo Gym has too: the set of the names that passed). A name that is twice
    in an object is an error: the functions that make one return a dictionary.
    """
    _, _, said = log.rpartition(f"\n{MARK}\n")
    try:
        found = json.loads(said, object_pairs_hook=_once)
        if isinstance(found.get("tests"), list):
            pairs = [(test["name"], test["status"]) for test in found["tests"]]
        else:
            pairs = list(found.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    statuses: dict[str, str] = {}
    for name, word in pairs:
        if statuses.get(str(name)) != "PASSED":
            statuses[str(name)] = _status(str(word).upper())
    return statuses


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    times = Counter(name for name, _ in pairs)
    return {name: value if times[name] == 1 else "ERROR" for name, value in pairs}


def _status(word: str) -> str:
    word = _WORDS.get(word, word)
    return word if word in _STATUSES else "ERROR"


SCRIPTED_PARSERS: Mapping[str, Parser] = {"statuses-json": _statuses}
