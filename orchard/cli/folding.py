"""Groups a rollout's messages: the main conversation message by message, the others folded."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from orchard.schemas.llm_calls import CallKind

BESIDE = frozenset({CallKind.SUBAGENT, CallKind.TITLE, CallKind.PROBE})

Message = dict[str, Any]


class Folded(NamedTuple):
    """Messages shown together."""

    kind: CallKind | None
    """Kind of a conversation beside the main one; None: one message of the main one."""
    messages: list[Message]


def parts(messages: Sequence[Message], kinds: Mapping[str, str | None]) -> Iterator[Folded]:
    """Yields groups in the order of the log; a conversation beside the main one is whole where it begins.

    `kinds` has the call's kind by the node that it made. A tree is what its first call is.
    """
    roots: dict[str, str] = {}
    trees: dict[str, list[Message]] = {}
    found: dict[str, str] = {}
    for message in messages:
        node: str = message["node_id"]
        root: str = roots.get(message["parent"]) or node
        roots[node] = root
        trees.setdefault(root, []).append(message)
        if (kind := kinds.get(node)) is not None:
            found.setdefault(root, kind)
    for message in messages:
        root = roots[message["node_id"]]
        kind = CallKind(found.get(root, CallKind.MAIN))
        if kind not in BESIDE:
            yield Folded(None, [message])
        elif message["node_id"] == root:
            yield Folded(kind, trees[root])
