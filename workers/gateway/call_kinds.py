"""Classifies the calls of a program by their text, tools and headers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import Role, ToolCall
from orchard.workers.gateway.wire_types import ProgramMessage, ProgramRequest, as_object

SHORT = 6000
"""Maximum characters of a conversation that can be a request for a title."""
_LINE = 40
"""Minimum characters of a line that counts as copied if it occurs in two texts."""
_SUBAGENT_HEADERS = (
    "x-claude-code-agent-id",
    "x-codex-parent-thread-id",
    "x-openai-subagent",
    "x-parent-session-id",
)


class Root(NamedTuple):
    """The start of a conversation, which distinguishes one agent from another."""

    system: str
    tools: frozenset[str]


def root_of(ask: ProgramRequest) -> Root:
    first = ask.messages[0]
    names = (tool.get("function", {}) for tool in ask.tools)
    tools = frozenset(str(each.get("name")) for each in names if isinstance(each, dict))
    return Root(first.text if first.role is Role.SYSTEM else "", tools)


def kind_of(
    ask: ProgramRequest,
    headers: Mapping[str, str],
    *,
    continues: CallKind | None,
    quotes_reply: bool,
    main: Root | None,
) -> CallKind:
    """Returns the kind of a call. `headers` have lower-case names.

    `continues` is the kind of the call whose reply this one continues from, or None; `quotes_reply` is
    whether its unrecorded messages quote an earlier reply (`quotes`); `main` is the root of the rollout's
    main conversation, None before it has begun.
    """
    if ask.compacts or headers.get("x-openai-subagent") == "compact":
        return CallKind.COMPACTION
    if any(headers.get(name) for name in _SUBAGENT_HEADERS):
        return CallKind.SUBAGENT
    if ask.max_tokens == 1:
        return CallKind.PROBE
    if continues is not None:
        return CallKind.SUBAGENT if continues is CallKind.SUBAGENT else CallKind.MAIN
    if quotes_reply:
        return CallKind.COMPACTION
    if not ask.tools and sum(len(said.text) for said in ask.messages) <= SHORT:
        return CallKind.TITLE
    return CallKind.SUBAGENT if main is not None and root_of(ask) != main else CallKind.MAIN


class ProgramText:
    """The text in some messages that the model did not write, indexed for many searches."""

    def __init__(self, messages: Sequence[ProgramMessage]) -> None:
        self._text = "\n".join(said.text for said in messages if said.role is not Role.ASSISTANT)
        self._words = frozenset(self._text.split())

    def has(self, part: str) -> bool:
        """Whether the text contains `part`. All words of `part` except the first and the last must then be
        words of the text, which is checked first because it is fast and nearly always decides."""
        return self._words.issuperset(part.split()[1:-1]) and part in self._text


def quotes(told: ProgramText, reply: str) -> bool:
    """Whether at least half of the long lines of `reply` occur in the text: programs remove tags from a
    summary and add words around it."""
    lines = [line for each in reply.splitlines() if len(line := each.strip()) >= _LINE]
    return bool(lines) and 2 * sum(map(told.has, lines)) >= len(lines)


def delegates(call: ToolCall, told: ProgramText) -> bool:
    """Whether a long argument of a call occurs in the text, which means that the call delegated this
    conversation."""
    arguments = as_object(call.arguments).values()
    given = (word.strip() for word in arguments if isinstance(word, str))
    return any(len(word) >= _LINE and told.has(word) for word in given)
