"""Reads what the processes of the tests report, which nobody may trust. Pure."""

import base64
import json
import zlib
from typing import Any

import msgspec

from orchard.workers.domains.swe.logs.parsers import SEVERITY
from orchard.workers.domains.swe.sheets.child import ANSWER_LIMIT, DEPTH
from orchard.workers.domains.swe.sheets.sheet import Visit

_LIMIT = 20 * 1024 * 1024
"""Bytes of one process's report."""
_LINES = 200_000
"""Lines of it that are read."""
_LEAVES = 100
"""Answers that one line may have."""
_DEPTH = 4 * DEPTH
_TOO_LONG = {"deep": ""}
_dumps = json.JSONEncoder(separators=(",", ":")).encode


class ToldTest(msgspec.Struct, kw_only=True):
    status: str = ""
    """The worst that was reported; empty for a test that did not end."""
    visits: list[Visit] = []
    seconds: float = 0.0
    """Of the processor, as it was told."""
    cut_off: bool = False
    """Whether a variant took all its time."""


class Told(msgspec.Struct, kw_only=True):
    """The reports of all processes of one run."""

    tests: dict[str, ToldTest] = {}
    """By the framework's id, in the order in which they began."""
    tokens: set[int] = set()
    """Numbers of the tokens that were used."""
    outside: set[int] = set()
    """Numbers of the assertions that were asked before any test began."""

    def add(self, report: str, file: str) -> bool:
        """Adds the report of the process that ran `file`, which is believed about that file alone; returns
        whether it finished."""
        raw = zlib.decompressobj().decompress(base64.b64decode(report), _LIMIT)
        done, test, began = False, (before := ToldTest()), 0.0
        for line in raw.decode(errors="replace").split("\n", _LINES)[:_LINES]:
            if not line:
                continue
            try:
                said = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(said, dict):
                continue
            done = done or "done" in said
            if isinstance(name := said.get("begin"), str) and name.split("::")[0] == file:
                test = self.tests.setdefault(name, ToldTest())
                began = _time(said)
            elif isinstance(name := said.get("test"), str) and name.split("::")[0] == file:
                self._end(name, said.get("status"), _time(said) - began)
            elif said.get("cut") is True:
                test.cut_off = True
            elif isinstance(number := said.get("token"), int):
                self.tokens.add(number)
            elif isinstance(number := said.get("ask"), int):
                plain = len(line) <= ANSWER_LIMIT and line.count("[") + line.count("{") <= _DEPTH
                test.visits.append(_visit(number, said, plain=plain))
        self.outside |= {visit.ask for visit in before.visits}
        return done

    def too_deep(self) -> set[int]:
        """Returns the assertions of which a value was too much to be told."""
        return {
            visit.ask
            for test in self.tests.values()
            for visit in test.visits
            if any(isinstance(each, dict) and "deep" in each for each in (*visit.got, *(visit.key or ())))
        }

    def join(self, other: "Told") -> None:
        """Adds what the process of another file told."""
        self.tests |= other.tests
        self.tokens |= other.tokens
        self.outside |= other.outside

    def _end(self, name: str, status: Any, seconds: float) -> None:
        test = self.tests.setdefault(name, ToldTest())
        test.seconds = seconds
        if isinstance(status, str) and SEVERITY.get(status, -1) > SEVERITY.get(test.status, -1):
            test.status = status


def _time(said: dict[str, Any]) -> float:
    at = said.get("at")
    return at if isinstance(at, float) else 0.0


def _visit(number: int, said: dict[str, Any], *, plain: bool) -> Visit:
    got, key = said.get("got"), said.get("key")
    answers = got[:_LEAVES] if isinstance(got, list) else []
    return Visit(
        ask=number,
        got=answers if plain else list(map(_fitting, answers)),
        key=key if isinstance(key, list) else None,
    )


def _fitting(answer: Any) -> Any:
    """Returns the answer; one that says nothing for a longer or deeper one than `child.py` tells, which could
    take the worker hours to read."""
    too_long = _is_deeper(answer, _DEPTH) or len(_dumps(answer)) > ANSWER_LIMIT
    return _TOO_LONG if too_long else answer


def _is_deeper(answer: Any, levels: int) -> bool:
    if not isinstance(answer, list | dict):
        return False
    parts = answer if isinstance(answer, list) else answer.values()
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in parts)
