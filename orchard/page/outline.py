"""The outline of a rollout: a line for each turn, where to jump to, and rollouts like it."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from orchard.actions.rollout import ShownRollout
from orchard.actions.rollout_turns import ShownTurn
from orchard.page import texts
from orchard.page.search_index import words_of

TITLE = 90
"""Maximum characters of a turn's title."""
LONG = 400
"""Turns above which an outline leaves out most of those that are not shown."""
_COMMAND = re.compile(r'^\{"(?:command|cmd|script)":\s*"((?:[^"\\]|\\.)*)')
_COMMON_WORDS = 12
"""Maximum number of a command's words that are searched for."""


class OutlineLink(NamedTuple):
    title: str
    address: str


def command_of(arguments: str) -> str:
    """Command of a call whose JSON may be cut; the arguments themselves for a call of another kind."""
    found = _COMMAND.match(arguments)
    if not found:
        return arguments
    try:
        return str(json.loads(f'"{found[1]}"'))
    except ValueError:
        return found[1]


def title_of(turn: ShownTurn) -> str:
    """First line of the turn's first call."""
    if not turn.asked:
        return "no call" if turn.number else "the prompt"
    call = turn.asked[0]
    said = command_of(call["arguments"]).strip().partition("\n")[0]
    name = "" if said != call["arguments"].strip() else f"{call['name']} "
    return texts.visible(name + said)[:TITLE]


def outlined(found: ShownRollout) -> list[tuple[ShownTurn, str]]:
    """Turns and their titles; of a long rollout the window, where others begin, and turns with an error."""
    every, window = found.turns, {turn.number for turn in found.window}
    step = max(len(found.window), 1) if len(every) > LONG else 1
    chosen = [t for at, t in enumerate(every) if at % step == 0 or t.errors or t.number in window]
    return [(turn, title_of(turn)) for turn in chosen]


def first_error(turns: Sequence[ShownTurn]) -> int | None:
    """Number of the first turn in which a command failed."""
    return next((turn.number for turn in turns if turn.errors), None)


def submission_turn(found: ShownRollout) -> int | None:
    """Number of the turn that submitted; None for a rollout that ended otherwise."""
    if not found.outcome or found.outcome["exit_status"] != "submitted" or not found.turns:
        return None
    return found.turns[-1].number or None


def most_telling(found: ShownRollout) -> Mapping[str, Any] | None:
    """The rollout of the same task to read beside this one: with another outcome, if there is one."""
    differs = [row for row in found.others if row["outcome"] != found.outcome_word]
    return next(iter(differs or found.others), None)


def alike(found: ShownRollout, failing: Sequence[str]) -> list[OutlineLink]:
    """Searches for rollouts that failed the same tests, or gave the same commands."""
    links = [OutlineLink(f"fail {name}", "/rollouts?" + urlencode({"failing": name})) for name in failing]
    for command in _telling_commands(found.turns):
        words = words_of(command.replace('"', " "))[:_COMMON_WORDS]
        if words:
            query = {"text": " ".join(words), "role": "assistant"}
            links.append(OutlineLink(f"run {command[:TITLE]}", "/rollouts?" + urlencode(query)))
    return links


def _telling_commands(turns: Sequence[ShownTurn]) -> list[str]:
    """The command that was repeated most, and the first one of the first turn that failed."""
    said = [command_of(call["arguments"]).strip() for turn in turns for call in turn.asked]
    repeated = [command for command, times in Counter(said).most_common(1) if times > 1]
    failed = [command_of(turn.asked[0]["arguments"]).strip() for turn in turns if turn.errors and turn.asked]
    found = dict.fromkeys([*failed[:1], *repeated])
    return [" ".join(command.split()) for command in found if command]
