"""Parses times of a world, which fixtures write relative to the task's now. Pure."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_RELATIVE = re.compile(r"now((?:[+-]\d{1,5}[mhdw])*)(?:@([01]\d|2[0-3]):([0-5]\d))?")
_STEP = re.compile(r"([+-]\d+)([mhdw])")
_IN_TEXT = re.compile(r"\{\{(now[^{}]*)\}\}")


def read_time(text: str) -> datetime:
    """Parses an ISO 8601 time; without a zone it is UTC. Raises ValueError."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def moment(text: str, now: datetime) -> datetime | None:
    """Parses a relative time such as `now-2d` or `now+1w@09:00`; None for other text. Raises ValueError if
    the result is out of range."""
    found = _RELATIVE.fullmatch(text)
    if found is None:
        return None
    at = now
    for count, unit in _STEP.findall(found[1]):
        try:
            at += timedelta(**{_UNITS[unit]: int(count)})
        except OverflowError as error:
            raise ValueError(f"the time {text[:60]!r} is in no calendar") from error
    if found[2]:
        at = at.replace(hour=int(found[2]), minute=int(found[3]), second=0, microsecond=0)
    return at


def resolved(value: Any, now: datetime, times: frozenset[str] = frozenset(), name: str = "") -> Any:
    """Resolves a fixture's times: the fields in `times`, and `{{now+3d}}` in any text as a date.

    Raises ValueError if a time field holds no time.
    """
    match value:
        case dict():
            return {key: resolved(each, now, times, key) for key, each in value.items()}
        case list():
            return [resolved(each, now, times, name) for each in value]
        case str() if name in times:
            if (at := moment(value, now)) is None:
                at = read_time(value)
            return at.isoformat()
        case str() if "{{" in value:
            return _IN_TEXT.sub(lambda found: _date(found, now), value)
        case _:
            return value


def _date(found: re.Match[str], now: datetime) -> str:
    at = moment(found[1], now)
    if at is None:
        return found[0]
    return at.isoformat(timespec="minutes") if "@" in found[1] else at.date().isoformat()
