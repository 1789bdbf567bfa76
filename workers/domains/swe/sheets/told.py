"""Reads what the processes of the tests report, which nobody may trust. Pure."""

import base64
import json
import zlib
from typing import Any

import msgspec

from orchard.workers.domains.swe.logs.parsers import SEVERITY
from orchard.workers.domains.swe.sheets.child import ANSWER_LIMIT
from orchard.workers.domains.swe.sheets.sheet import Visit

_LIMIT = 20 * 1024 * 1024
"""Bytes of one process's report."""
_LINES = 200_000
"""Lines of it that are read."""
_LEAVES = 100
"""Answers that one line may have."""
_TOO_LONG = {"deep": ""}
_dumps = json.JSONEncoder(separators=(",", ":")).encode


class ToldTest(msgspec.Struct, kw_only=True):
    status: str = ""
    """The worst that was reported; empty for a test that did not end."""
    visits: list[Visit] = []


class Told(msgspec.Struct, kw_only=True):
    """The reports of all processes of one run."""

    tests: dict[str, ToldTest] = {}
    """By the framework's id, in the order in which they began."""
    tokens: set[int] = set()
    """Numbers of the tokens that were used."""

    def add(self, report: str, file: str) -> bool:
        """Adds the report of the process that ran `file`, which is believed about that file alone; returns
        whether it finished."""
        raw = zlib.decompressobj().decompress(base64.b64decode(report), _LIMIT)
        done, test = False, ToldTest()
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
            elif isinstance(name := said.get("test"), str) and name.split("::")[0] == file:
                self._end(name, said.get("status"))
            elif isinstance(number := said.get("token"), int):
                self.tokens.add(number)
            elif isinstance(number := said.get("ask"), int):
                test.visits.append(_visit(number, said, small=len(line) <= ANSWER_LIMIT))
        return done

    def _end(self, name: str, status: Any) -> None:
        test = self.tests.setdefault(name, ToldTest())
        if isinstance(status, str) and SEVERITY.get(status, -1) >= SEVERITY.get(test.status, -1):
            test.status = status


def _visit(number: int, said: dict[str, Any], *, small: bool) -> Visit:
    got, key = said.get("got"), said.get("key")
    answers = got[:_LEAVES] if isinstance(got, list) else []
    return Visit(
        ask=number,
        got=answers if small else list(map(_fitting, answers)),
        key=key if isinstance(key, list) else None,
    )


def _fitting(answer: Any) -> Any:
    """Returns the answer; one that says nothing for a longer one than `child.py` tells, which could take the
    worker hours to read."""
    try:
        return answer if len(_dumps(answer)) <= ANSWER_LIMIT else _TOO_LONG
    except RecursionError:
        return _TOO_LONG
