"""Finds where a call belongs among the messages that a program has sent before, a forest, by their content
alone.

A program sends its whole conversation with each call. The parent of a call is the end of the longest recorded
path that its messages begin with, so compaction, sub-agents and retries become branches or separate trees.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from orchard.schemas.identity import canonical
from orchard.schemas.messages import Role, ToolCall
from orchard.workers.gateway.wire_types import ProgramMessage, as_object, is_unnamed


class RecordedPrefix(NamedTuple):
    """How many of a call's messages are recorded."""

    known: int
    """Number of recorded messages, from the first."""
    node: str | None
    """Node id of the last recorded message; None if the call begins a new tree."""


_Key = tuple[Role, str, tuple[tuple[str, bytes], ...]]


class _Sent(NamedTuple):
    """What tells messages of one key apart, where a program sends it."""

    ids: tuple[str, ...]
    reasoning: str


class Forest:
    """Recorded messages of one attempt, by their parents, as the program knows them."""

    def __init__(self) -> None:
        self._children: defaultdict[tuple[str | None, _Key], list[str]] = defaultdict(list)
        self._order: dict[str, int] = {}
        self._sent: dict[str, _Sent] = {}

    def add(self, parent: str | None, said: ProgramMessage, node: str) -> None:
        """Records a message under its node id, as sent by or to the program. Repeating it has no effect."""
        siblings = self._children[parent, _key(said)]
        if node not in siblings:
            siblings.append(node)
            self._order.setdefault(node, len(self._order))
            self._sent.setdefault(node, _sent(said))

    def match(self, messages: Sequence[ProgramMessage]) -> RecordedPrefix:
        """Returns the longest recorded path that `messages` begin with. Of several, those with the reasoning
        that a program sends, and of these the most recent one."""
        found, ends = RecordedPrefix(0, None), list[str | None]([None])
        for number, said in enumerate(messages, 1):
            key, sent = _key(said), _sent(said)
            equal = [node for end in ends for node in self._children.get((end, key), ())]
            equal = [node for node in equal if _same(sent.ids, self._sent[node].ids)]
            if not equal:
                break
            thought = [node for node in equal if self._sent[node].reasoning == sent.reasoning]
            ends = [*(thought if sent.reasoning and thought else equal)]
            found = RecordedPrefix(number, max(filter(None, ends), key=self._order.__getitem__))
        return found


def _key(said: ProgramMessage) -> _Key:
    """Returns the parts of a message that every program repeats when it sends it again: not outer white
    space, the layout of arguments, or those that are null."""
    return said.role, said.text.strip(), tuple((call.name, _given(call)) for call in said.tool_calls)


def _given(call: ToolCall) -> bytes:
    given = as_object(call.arguments).items()
    return canonical({name: value for name, value in given if value is not None})


def _sent(said: ProgramMessage) -> _Sent:
    return _Sent((*(call.id for call in said.tool_calls), said.tool_call_id), said.reasoning.strip())


def _same(ids: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two messages have the same ids, except those that a program left out."""
    pairs = zip(ids, others, strict=True)
    return all(one == other or is_unnamed(one) or is_unnamed(other) for one, other in pairs)


def superseded(
    replies_to: Iterable[tuple[str | None, str]], continued: Collection[str | None]
) -> frozenset[str]:
    """Returns the node ids of replies that do not count: the program repeated the call and continued from
    another reply.

    `replies_to` has parent and node of each reply, in order; `continued` are the nodes that are parents of
    others. Of several replies to one path those that were continued count; if none was, the last.
    """
    replies: defaultdict[str | None, list[str]] = defaultdict(list)
    for parent, node in replies_to:
        replies[parent].append(node)
    left: set[str] = set()
    for nodes in replies.values():
        consumed = {node for node in nodes if node in continued} or {nodes[-1]}
        left.update(node for node in nodes if node not in consumed)
    return frozenset(left)
