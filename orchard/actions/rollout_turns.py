"""The path of messages of a rollout as turns, with the conversations that leave it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchard.schemas.llm_calls import CallKind
from orchard.storage.reader import Row


@dataclass(frozen=True)
class ShownPicture:
    rollout: str
    node: str
    turn: int
    sha256: str
    width: int
    height: int
    calls: tuple[Row, ...] = ()
    """Name and arguments of the model's next calls, if this is the newest picture before them."""


@dataclass(frozen=True)
class ShownTurn:
    """Figures of one turn of the shown path."""

    number: int
    nodes: list[str]
    asked: list[Row]
    """Name, and the beginning of the arguments, of each call of a tool."""
    errors: int
    """Commands that failed or whose time was up."""
    model: float | None
    """Seconds of the model's calls; None where one is not known, as in imports. So are the other figures."""
    command: float | None
    wait: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    branches: "list[SideConversation]" = field(default_factory=list)

    @property
    def seconds(self) -> float | None:
        """Total seconds of the turn."""
        found: float | None = _known((self.model, self.command, self.wait))
        return found


@dataclass(frozen=True)
class SideConversation:
    """A conversation beside the shown path."""

    kind: CallKind
    leaf: str
    messages: int
    turns: int
    at: int
    """Turn of the shown path at which the conversation branches off or begins."""


def path_to(nodes: dict[str, Row], leaf: str | None) -> list[str]:
    """Node ids from the root to `leaf`, or to the newest message if the leaf is unknown."""
    at = leaf if leaf in nodes else next(reversed(nodes), None)
    found: list[str] = []
    while at is not None and at in nodes and len(found) <= len(nodes):
        found.append(at)
        at = nodes[at]["parent"]
    return found[::-1]


def turns_of(path: Sequence[str], nodes: dict[str, Row], calls: dict[str, Row]) -> list[ShownTurn]:
    grouped: dict[int, list[str]] = {}
    for node in path:
        grouped.setdefault(nodes[node]["turn"], []).append(node)
    turns, before = [], None
    for number, members in grouped.items():
        messages = [nodes[node] for node in members]
        made = [calls[node] for node in members if node in calls]
        results = [row for row in messages if row["role"] == "tool"]
        answers = [calls.get(row["node_id"], {}) for row in messages if row["role"] == "assistant"]
        model = _known((call.get("seconds") for call in answers), none=0.0)
        command = _known((row["seconds"] for row in results), none=0.0)
        end = messages[-1]["time"]
        took = (end - before).total_seconds() if before is not None else 0.0
        before = end
        known = model is not None and command is not None
        turns.append(
            ShownTurn(
                number=number,
                nodes=members,
                asked=[call for row in messages for call in row["asked"] or ()],
                errors=sum(bool(row["returncode"] or row["timed_out"]) for row in results),
                model=model,
                command=command,
                wait=max(took - model - command, 0.0) if known else None,
                prompt_tokens=_known(call["prompt_tokens"] for call in made),
                completion_tokens=_known(call["completion_tokens"] for call in made),
                cost_usd=_known(call["cost_usd"] for call in made),
            )
        )
    by_turn: dict[int, list[SideConversation]] = {}
    for branch in _branches(path, nodes, calls):
        by_turn.setdefault(branch.at, []).append(branch)
    return [replace(turn, branches=by_turn.get(turn.number, [])) for turn in turns]


def pictures_of(rollout: str, path: Sequence[str], nodes: dict[str, Row]) -> list[ShownPicture]:
    """Pictures of a path of messages, each with the calls that follow its last appearance."""
    found: list[ShownPicture] = []
    since: list[int] = []
    for node in path:
        row = nodes[node]
        if row["role"] == "assistant" and since:
            found[since[-1]] = replace(found[since[-1]], calls=tuple(row["asked"] or ()))
            since = []
        for image in row["images"] or ():
            since.append(len(found))
            found.append(
                ShownPicture(rollout, node, row["turn"], image["sha256"], image["width"], image["height"])
            )
    return found


def _known(numbers: Iterable[Any], none: float | None = None) -> Any:
    """Sums numbers; None if one is unknown, and `none` without numbers."""
    found = list(numbers)
    return None if None in found else sum(found) if found else none


def _branches(
    path: Sequence[str], nodes: dict[str, Row], calls: dict[str, Row]
) -> Iterable[SideConversation]:
    """Conversations beside the path, by the message where they leave it. Nested branches count as one."""
    on, roots = set(path), dict[str, str]()
    members: dict[str, list[str]] = {}
    for node, row in nodes.items():
        if node not in on:
            root = roots.get(row["parent"] or "", node)
            roots[node] = root
            members.setdefault(root, []).append(node)
    for root, found in members.items():
        made = [calls[node] for node in found if node in calls]
        kinds = [call["call_kind"] for call in made if call["call_kind"]]
        origin = next((call["derived_from"] for call in made if call["derived_from"]), None)
        start = nodes[root]
        fork = start["parent"] if start["parent"] in on else origin if origin in on else None
        if fork is None:
            earlier = [node for node in path if nodes[node]["sequence"] < start["sequence"]]
            fork = earlier[-1] if earlier else next(iter(path), None)
        yield SideConversation(
            kind=CallKind(kinds[0]) if kinds else CallKind.MAIN,
            leaf=found[-1],
            messages=len(found),
            turns=len({nodes[node]["turn"] for node in found if nodes[node]["role"] == "assistant"}),
            at=nodes[fork]["turn"] if fork is not None else 0,
        )
