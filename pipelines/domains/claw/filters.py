"""Finds what is wrong with an idea, before anything is written of it. Pure."""

import re
from collections.abc import Collection

from orchard.pipelines.domains.claw.drafts import Idea
from orchard.schemas.synthesis import Check
from orchard.workers.domains.claw.services import SERVICES

_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)
"""Letters and digits of any script; each sign of those that put no blanks between words."""
_ALIKE = 0.9
"""Share of words that two ideas may have in common before they are the same."""
_UNSAFE = re.compile(
    r"\b(passwords?|credentials?|api keys?|private keys?|blackmail|threaten|phishing|malware|"
    r"everything (?:in|from) (?:the|my) (?:account|inbox)|without (?:me|anyone) (?:knowing|noticing))\b",
    re.IGNORECASE,
)


def words(idea: Idea) -> frozenset[str]:
    return words_of(f"{idea.title}: {idea.goal}")


def words_of(text: str) -> frozenset[str]:
    """Words of an idea given as text, `TITLE: GOAL`."""
    return frozenset(_WORD.findall(text.lower()))


def wrong(idea: Idea, known: Collection[frozenset[str]]) -> tuple[Check, str] | None:
    """The first fault of an idea; `known` are the words of earlier ideas."""
    if absent := [name for name in idea.services if name not in SERVICES]:
        return Check.INFEASIBLE, f"there is no service {absent[0]!r}: there is {', '.join(SERVICES)}"
    if not idea.services:
        return Check.INFEASIBLE, "it names no service"
    if found := _UNSAFE.search(f"{idea.title} {idea.goal}"):
        return Check.UNSAFE, f"an assistant must not do this: {found[0]!r}"
    own = words(idea)
    if any(len(own & other) >= _ALIKE * len(own | other) for other in known):
        return Check.DUPLICATE, "an earlier idea says the same"
    return None
