"""Formats numbers the same on every page: `12,345`, `1.2 M`, `3 min 05 s`, `64.3 %`."""

from datetime import UTC, datetime
from typing import Any

from orchard.actions.reporter import duration as long_duration

NONE = "–"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """About three digits: `930`, `12.3 k`, `4.56 M`."""
    if value is None:
        return NONE
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g} {unit}"
    return f"{value:,.0f}" if size >= 100 or value == int(value) else f"{value:.3g}"


def share(value: float | None) -> str:
    """Formats a fraction of 1 in per cent."""
    return NONE if value is None else f"{100 * value:.1f} %"


def usd(value: float | None) -> str:
    """Formats dollars, with enough digits for small prices."""
    if value is None:
        return NONE
    return f"${value:,.2f}" if value >= 1 or not value else f"${value:.3g}"


def duration(value: float | None) -> str:
    """Formats seconds; those below ten with a decimal."""
    if value is None:
        return NONE
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 9.95 else long_duration(value)


def ago(value: datetime | None) -> str:
    """Formats the time since a UTC time."""
    if value is None:
        return NONE
    seconds = max((datetime.now(UTC).replace(tzinfo=None) - value).total_seconds(), 0.0)
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:.0f} days ago"
    if seconds >= 3600:
        return f"{seconds // 3600:.0f} h ago"
    return f"{long_duration(seconds)} ago"


def moment(value: datetime | None) -> str:
    return NONE if value is None else f"{value:%Y-%m-%d %H:%M:%S}"


def score(value: float | None) -> str:
    """A reward: `+1`, `−1`, `+0.25`."""
    return NONE if value is None else f"{value:+.3g}".replace("-", "−")


FILTERS: dict[str, Any] = {
    "count": count,
    "short": short,
    "share": share,
    "usd": usd,
    "duration": duration,
    "ago": ago,
    "moment": moment,
    "score": score,
}
"""Filters by their name in templates."""
