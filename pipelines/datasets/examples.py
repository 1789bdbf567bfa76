"""Turns a trajectory into an example: which turns train, where it ends, and why it may be left out.

Pure. Resolved: every assistant turn trains. Unresolved: only those in rise segments; what comes before
stays as context, and all after the last trained turn is cut off, because it cannot train.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from orchard.pipelines.datasets.errors import ExampleError, MaskError
from orchard.pipelines.datasets.forms import Message
from orchard.pipelines.datasets.rows import Origin, Row, Segment
from orchard.pipelines.datasets.settings import DatasetSettings
from orchard.pipelines.datasets.tokenization import Conversation, Encoded
from orchard.pipelines.trajectories.reading import LEAKED_ERRORS, assistants
from orchard.pipelines.values.curves import rise_segments
from orchard.schemas.decoding import Unreadable, decode_text
from orchard.schemas.messages import RESULT_TAGS, Image, MessageNode, Role
from orchard.schemas.outcomes import ExitStatus
from orchard.workers.episode.prompts import chat_messages


class Candidate(Origin, frozen=True, kw_only=True):
    """A graded rollout that a dataset may take, with its values if it has any."""

    leaf: str | None
    start_sequence: int
    gold_files: int = 0
    gold_lines: int = 0
    task_state: str = ""
    """`imported`, `valid` or `rejected`; empty where the log does not have the task."""
    harness_version: str | None = None
    tools: str = ""
    """JSON text; imported trajectories alone have it."""
    layout: str = ""
    """Released layout that an imported trajectory came in."""
    base: float = 0.0
    curve: tuple[float, ...] = ()
    value_sequence: int = 0
    """Sequence of its annotation's event; 0: not annotated."""
    turns: int = 0
    published_rules: bool = False
    teacher: str = ""
    """Model that took over; empty: none did."""


class ExampleDrop(StrEnum):
    """Why a trajectory gave no example. The values are keys of the manifest's counts."""

    NO_MESSAGES = "dropped_no_messages"
    OTHER_STEPS = "dropped_values_of_other_steps"
    NO_SEGMENT = "dropped_no_segment"
    OTHER_AUTHORS = "dropped_other_authors"
    UNDEFINED_TOOL = "dropped_undefined_tool"
    UNPARSED_ACTION = "dropped_unparsed_action"
    TOO_LONG = "dropped_too_long"
    FULLY_MASKED = "dropped_fully_masked"
    TEMPLATE = "dropped_template_refuses"
    NOT_AS_SAID = "dropped_tokens_not_as_said"
    PICTURES = "dropped_pictures"
    UNKNOWN_PICTURES = "dropped_unknown_which_pictures_were_shown"


@dataclass(frozen=True)
class ExampleDraft:
    """An example before its tokens."""

    candidate: Candidate
    conversation: Conversation
    trained: tuple[int, ...]
    segments: tuple[Segment, ...]
    masked: int
    """Turns that would have trained but for a fault in them."""
    images: tuple[Image, ...] = ()
    """Pictures of the conversation, in their order."""
    messages: Sequence[Message] = ()
    """The row's messages, where they differ from the conversation's: with parts for pictures."""
    of_turn: bool = False
    """Whether it was cut to one turn already."""


def draft(
    candidate: Candidate,
    path: Sequence[MessageNode],
    tools: tuple[dict[str, Any], ...],
    known: Collection[str],
    settings: DatasetSettings,
    own: Collection[str] | None = None,
    number: int = 0,
    cut: Collection[tuple[str, str]] = (),
    said: Collection[str] | None = None,
) -> ExampleDraft | ExampleDrop:
    """The example that a trajectory gives, or why it gives none.

    `known` are the names of its tools, `cut` answers that a limit ended, by rollout id and node id. Of
    a program's forest, `path` is branch `number`, and only answers in `own` (node ids) train. With `said`
    only answers in it do, those of the authors whose turns train.
    """
    turns = assistants(path)
    if not turns:
        return ExampleDrop.NO_MESSAGES
    segments: tuple[Segment, ...] = ()
    if candidate.resolved or settings.selection.preferences:
        trained = list(range(len(turns)))
    else:
        if len(candidate.curve) != len(turns):
            return ExampleDrop.OTHER_STEPS
        segments = segments_of(candidate, settings, leaked_steps(path))
        trained = [step for run in segments for step in range(run.first, run.last + 1)]
    if not trained:
        return ExampleDrop.NO_SEGMENT
    if own is not None:
        trained = [step for step in trained if turns[step].node_id in own]
        if not trained:
            return ExampleDrop.FULLY_MASKED
    if said is not None:
        trained = [step for step in trained if turns[step].node_id in said]
        if not trained:
            return ExampleDrop.OTHER_AUTHORS
    asked = range(max(trained) + 1) if own is None and said is None else trained
    finished = candidate.exit_status == ExitStatus.FINISHED
    may_say = trained if own is not None else [len(turns) - 1] if finished else []
    faults = _faults(path, {step: turns[step] for step in asked}, known, may_say)
    if faults and settings.filters.bad_turns == "drop":
        return min(faults.values())
    good = tuple(step for step in trained if step not in faults)
    if not good:
        return ExampleDrop.FULLY_MASKED
    end = next(index for index, node in enumerate(path) if node is turns[good[-1]]) + 1
    tokens = {index: node.tokens.ids for index, node in enumerate(path[:end]) if node.tokens}
    conversation = Conversation(
        name=f"{candidate.rollout_id}.{candidate.attempt}.{number}",
        messages=chat_messages(list(path))[:end],  # of the whole path: the last call has its result there
        tools=tools,
        stored=tokens if settings.stored_tokens else {},
        cut={index for index, node in enumerate(path[:end]) if (candidate.rollout_id, node.node_id) in cut},
    )
    return ExampleDraft(candidate, conversation, good, segments, len(trained) - len(good))


def segments_of(
    candidate: Candidate, settings: DatasetSettings, leaked: Collection[int] = ()
) -> tuple[Segment, ...]:
    """The rise segments of an unresolved trajectory."""
    submitted = candidate.exit_status == ExitStatus.SUBMITTED
    barren = {*leaked, *([len(candidate.curve) - 1] if submitted else [])}
    values = settings.values
    runs = rise_segments(
        candidate.base, candidate.curve, eps=values.eps, barren=barren, convention=values.segments
    )
    return tuple(Segment(run.first, run.last) for run in runs)


def finished(
    one: ExampleDraft, encoded: Encoded | ExampleError, tools_json: str, settings: DatasetSettings
) -> list[Row | ExampleDrop]:
    """The rows of a draft whose conversation was tokenized: one, or with `pairs` one for each trained
    turn."""
    if one.of_turn or not settings.pairs or isinstance(encoded, ExampleError):
        return [finish(one, encoded, tools_json, settings)]
    return [_pair(one, encoded, step, tools_json, settings) for step in one.trained]


def _pair(
    one: ExampleDraft, encoded: Encoded, step: int, tools_json: str, settings: DatasetSettings
) -> Row | ExampleDrop:
    """The example of one turn: its answer trains, all before it is context, cut from the left."""
    first, stop = encoded.spans[step]
    most = settings.filters.max_tokens
    if stop - first > most:
        return ExampleDrop.TOO_LONG
    begin = max(stop - most, 0)
    turns = [at for at, said in enumerate(one.conversation.messages) if said["role"] == Role.ASSISTANT]
    conversation = Conversation(
        name=f"{one.conversation.name}.{step}",
        messages=one.conversation.messages[: turns[step] + 1],
        tools=one.conversation.tools,
        stored=one.conversation.stored,
    )
    cut = Encoded(
        input_ids=encoded.input_ids[begin:stop],
        spans=tuple((max(a - begin, 0), max(b - begin, 0)) for a, b in encoded.spans[: step + 1]),
        stored=encoded.stored,
    )
    part = ExampleDraft(one.candidate, conversation, (step,), one.segments, one.masked)
    return finish(part, cut, tools_json, settings)


def finish(
    one: ExampleDraft, encoded: Encoded | ExampleError, tools_json: str, settings: DatasetSettings
) -> Row | ExampleDrop:
    """The row of a draft whose conversation was tokenized, or why it has none."""
    if isinstance(encoded, ExampleError):
        return ExampleDrop.NOT_AS_SAID if isinstance(encoded, MaskError) else ExampleDrop.TEMPLATE
    end = encoded.spans[-1][1]  # what the template writes after the last turn trains nothing
    input_ids = encoded.input_ids[:end]
    if len(input_ids) > settings.filters.max_tokens:
        return ExampleDrop.TOO_LONG
    loss_mask = np.zeros(end, np.int8)
    for step in one.trained:
        first, stop = encoded.spans[step]
        loss_mask[first:stop] = 1
    if not loss_mask.any():
        return ExampleDrop.FULLY_MASKED
    candidate = one.candidate
    return Row(
        **{name: getattr(candidate, name) for name in Origin.__struct_fields__},
        example_id=one.conversation.name,
        annotator="" if candidate.resolved else settings.values.annotator,
        turns=len(encoded.spans),
        trained_turns=one.trained,
        segments=one.segments,
        stored_turns=sum(step in encoded.stored for step in one.trained),
        value_sequence=0 if candidate.resolved else candidate.value_sequence,
        messages=msgspec.json.encode(one.messages or one.conversation.messages).decode(),
        tools=tools_json,
        input_ids=input_ids,
        loss_mask=loss_mask,
        images=tuple(image.blob.sha256 for image in one.images),
    )


def leaked_steps(path: Iterable[MessageNode]) -> set[int]:
    """Steps whose observation is an infrastructure error. Orchard's own rollouts have none: they abort."""
    return {
        node.turn - 1
        for node in path
        if node.role is not Role.ASSISTANT
        and node.turn > 0
        and node.content.lstrip().startswith(LEAKED_ERRORS)
    }


def _faults(
    path: Sequence[MessageNode],
    turns: Mapping[int, MessageNode],
    known: Collection[str],
    may_say: Collection[int],
) -> dict[int, ExampleDrop]:
    """Maps steps to their fault. An action that parsed was executed, so a result answers it. Steps in
    `may_say` need no call: the one with which a rollout ends, and those of programs. Without tools the
    text is the action, and the user's next message is its result; so it is where the user role carries
    a tool's result, since the model wrote its calls into its text."""
    executed = {(node.turn, node.tool_call_id) for node in path if node.role is Role.TOOL}
    answered = {
        node.turn
        for node in path
        if node.role is Role.USER and (not known or node.content.startswith(RESULT_TAGS[0]))
    }
    faults: dict[int, ExampleDrop] = {}
    for step, node in turns.items():
        silent = not node.content and not node.tool_calls  # the words in its place are the harness's
        if any(call.name not in known for call in node.tool_calls):
            faults[step] = ExampleDrop.UNDEFINED_TOOL
        elif (
            silent
            or not all(_is_object(call.arguments) for call in node.tool_calls)
            or not (
                any((node.turn, call.id) in executed for call in node.tool_calls)
                or ((step in may_say or node.turn in answered) and not node.tool_calls)
            )
        ):
            faults[step] = ExampleDrop.UNPARSED_ACTION
    return faults


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(decode_text(arguments), dict)
    except Unreadable:
        return False
