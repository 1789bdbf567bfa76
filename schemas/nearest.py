"""Says which known name an unknown one may stand for."""

from collections.abc import Iterable
from difflib import get_close_matches

_SHOWN = 5


def meant(name: str, known: Iterable[str]) -> str:
    """End of a sentence on an unknown name: the nearest known one, else the names that there are."""
    there = sorted(set(known))
    if close := get_close_matches(name, there, n=1, cutoff=0.6):
        return f"did you mean {close[0]!r}?"
    more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    return f"there is {', '.join(map(repr, there[:_SHOWN])) or 'none'}{more}"
