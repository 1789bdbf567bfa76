"""Reads rows of the released Orchard GUI layout as trajectories: the steps of one become one path of
messages. Texts of others' rows stay unchanged, calls and results of tools included: no form of them is
certain. Only reasoning before the text is taken apart. Orchard's own export says where thoughts, calls
and results are: these become messages again. A picture that a step no longer shows is known from the
step that did."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.exporters.interface import MARK
from orchard.pipelines.datasets.foreign import (
    ROLES,
    Foreign,
    ReleasedMessage,
    decoded,
    next_node,
    parquet_rows,
    sample_of,
    thought,
)
from orchard.pipelines.domains.gui.exporter import CALL, LAYOUT
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.schemas.identity import digest
from orchard.schemas.messages import RESULT_TAGS, Image, MessageNode, Role, ToolCall
from orchard.schemas.outcomes import ExitStatus
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.pictures import NotAPicture, read_picture

COLUMNS = ("messages", "images", "reward", "status", "metadata")
SOURCE = "orchard-gui"


class _Picture(msgspec.Struct, frozen=True):
    bytes: bytes


class _Row(msgspec.Struct, frozen=True):
    messages: list[ReleasedMessage] | None
    images: list[_Picture] | None
    reward: float | None
    status: str | None


class _Call(msgspec.Struct, frozen=True):
    name: str
    arguments: Any


class _Own(msgspec.Struct, frozen=True):
    """Fields that Orchard's own export adds to the format."""

    places: list[tuple[int, int]] | None = None
    """Message and offset of each picture's mark."""
    thoughts: tuple[int, ...] | None = None
    """Messages whose text begins with reasoning that was apart from it; None: all that begin with a thought.
    """
    calls: tuple[tuple[int, int], ...] = ()
    """Message, and how many calls its text ends with."""
    results: tuple[int, ...] = ()
    """Messages that are results of tools."""
    tools: list[dict[str, Any]] = []
    """Tools that the model could call."""
    exit_status: ExitStatus = ExitStatus.FINISHED
    resolved: bool | None = None
    harness: str = ""
    rollout_id: str = ""


class _Metadata(msgspec.Struct, frozen=True):
    task_id: str = ""
    website: str = ""
    source: str = SOURCE
    model: str = ""
    sample_idx: int = 0
    orchard: _Own = _Own()


@dataclass
class _Step:
    """One row, its texts apart from its pictures."""

    number: int
    known: _Metadata
    fault: str = ""
    """What is wrong with the row, which is then not read further."""
    roles: list[Role] = field(default_factory=list)
    pieces: list[list[str]] = field(default_factory=list)
    """Text of each message, cut where pictures stand."""
    images: list[list[bytes]] = field(default_factory=list)
    """Pictures of each message."""
    reward: float | None = None
    status: str = ""
    metadata: str = "{}"
    digest: str = ""
    """Digest of the row's content."""

    def begins(self, other: "_Step") -> bool:
        """Whether `other` may be a later step of the same trajectory."""
        ours, theirs = self.known.orchard.rollout_id, other.known.orchard.rollout_id
        if ours or theirs:
            return ours == theirs
        said = len(self.roles)
        same = (self.known.task_id, self.known.sample_idx) == (other.known.task_id, other.known.sample_idx)
        if self.fault or other.fault:
            return same
        assistants = [place for place, role in enumerate(self.roles) if role is Role.ASSISTANT]
        return (
            same
            and said < len(other.roles)
            and self.roles == other.roles[:said]
            and all(self.pieces[place] == other.pieces[place] for place in assistants)
        )


def read_gui_rows(files: Sequence[Path], blobs: BlobStore, harness: str) -> Iterator[Foreign | LeftOut]:
    """The trajectories of Parquet files in the released layout, and those that are not in it; the pictures
    become blobs."""
    for steps in _runs(files):
        if isinstance(steps, LeftOut):
            yield steps
            continue
        try:
            yield _trajectory(steps, blobs, harness)
        except DatasetError as error:
            first, last = steps[0].number, steps[-1].number
            yield LeftOut(f"row {first}" if first == last else f"rows {first} to {last}", str(error))


def _runs(files: Sequence[Path]) -> Iterator[list[_Step] | LeftOut]:
    """The steps of each trajectory."""
    steps: list[_Step] = []
    for number, row in parquet_rows(files, COLUMNS):
        if isinstance(row, LeftOut):
            yield row
            continue
        step = _step(number, row)
        if steps and not steps[-1].begins(step):
            yield steps
            steps = []
        steps.append(step)
    if steps:
        yield steps


def _step(number: int, row: dict[str, Any]) -> _Step:
    """Read one row. A row with unreadable metadata is a trajectory of its own."""
    known = _Metadata(task_id=f"row {number}")
    try:
        known = decoded("metadata", row["metadata"] or "{}", _Metadata)
        return _read(number, known, row)
    except DatasetError as error:
        return _Step(number, known, str(error))


def _read(number: int, known: _Metadata, row: dict[str, Any]) -> _Step:
    """Read a row's texts and pictures. Raises DatasetError, whose message is equal for rows with the same
    fault but for the number of the message."""
    try:
        said = msgspec.convert(row, _Row)
    except msgspec.ValidationError as error:
        raise DatasetError(str(error)) from error
    messages, metadata = said.messages or [], row["metadata"] or "{}"
    roles = [ROLES[message.role] for message in messages]
    texts = [message.content or "" for message in messages]
    pictures = [image.bytes for image in said.images or ()]
    if Role.ASSISTANT not in roles:
        raise DatasetError("messages: no message of the assistant")
    places = known.orchard.places
    if places is None:
        places = [(place, at) for place, text in enumerate(texts) for at in _found(text)]
    if len(places) != len(pictures):
        raise DatasetError(f"images: their number is not that of the marks {MARK} in the messages")
    pieces, images = [], []
    for place, text in enumerate(texts):
        cuts = [at for index, at in places if index == place]
        starts = [0, *(at + len(MARK) for at in cuts)]
        pieces.append([text[a:b] for a, b in zip(starts, [*cuts, len(text)], strict=True)])
        images.append([pictures[n] for n, (index, _) in enumerate(places) if index == place])
    status = said.status or ""
    content = [roles, texts, pictures, said.reward, status, decoded("metadata", metadata, Any)]
    return _Step(
        number,
        known,
        roles=roles,
        pieces=pieces,
        images=images,
        reward=said.reward,
        status=status,
        metadata=metadata,
        digest=digest(content),
    )


def _found(text: str) -> Iterator[int]:
    at = text.find(MARK)
    while at >= 0:
        yield at
        at = text.find(MARK, at + len(MARK))


def _trajectory(steps: Sequence[_Step], blobs: BlobStore, harness: str) -> Foreign:
    """The trajectory of some steps. Raises DatasetError where any of them is at fault: its content is
    unknown."""
    for step in steps:
        if step.fault:
            raise DatasetError(step.fault)
    last = steps[-1]
    shown: dict[int, tuple[list[str], list[bytes]]] = {}
    plain: dict[int, str] = {}
    """Texts of messages whose pictures a later step does not show any more."""
    for step in steps:
        for place, found in enumerate(zip(step.pieces, step.images, strict=True)):
            if found[1]:
                shown[place] = found
            else:
                plain[place] = found[0][0]
    captions = {place: _caption(shown[place][0], plain[place]) for place in shown if place in plain}
    usual = Counter(filter(None, captions.values())).most_common(1)
    known, own = last.known, last.known.orchard
    counts, results = dict(own.calls), frozenset(own.results)
    nodes: list[MessageNode] = []
    asked: list[str] = []
    """Calls of the last answer without a result yet."""
    for place, role in enumerate(last.roles):
        pieces, pictures = shown.get(place, (last.pieces[place], []))
        if place in results:
            if role is not Role.USER or not asked:
                raise DatasetError(f"messages[{place}]: a result that no call asked for")
            pieces = _unframed(pieces)
        caption = captions.get(place, usual[0][0] if usual else "")
        text, images = _placed(pieces, pictures, caption, blobs)
        apart = role is Role.ASSISTANT and (own.thoughts is None or place in own.thoughts)
        reasoning, text = thought(text) if apart else ("", text)
        count = counts.get(place, 0) if role is Role.ASSISTANT else 0
        text, calls = _calls(text, count, place)
        answers = ""
        if place in results:
            role, answers = Role.TOOL, asked.pop(0)
        if role is Role.ASSISTANT:
            asked = [call.id for call in calls]
        nodes.append(next_node(nodes, role, text, reasoning, calls, answers, images))
    for call in asked:  # rows end with an answer: what came of its calls is not in them
        nodes.append(next_node(nodes, Role.TOOL, "", answers=call))
    sample = sample_of([step.digest for step in steps])
    resolved = own.resolved
    if resolved is None and last.reward is not None:
        resolved = last.reward > 0
    return Foreign(
        task_id=known.task_id or f"{SOURCE}-{sample}",
        source=known.source or SOURCE,
        repo=known.website,
        harness=own.harness or harness,
        model=known.model,
        sample=sample,
        row=steps[0].number,
        nodes=nodes,
        exit_status=own.exit_status,
        resolved=resolved,
        reward=last.reward,
        layout=LAYOUT,
        tools="[]" if own.thoughts is None else json.dumps(own.tools, ensure_ascii=False),
        metadata=json.dumps({**json.loads(last.metadata), "status": last.status}, ensure_ascii=False),
        flags=("steps_left_out",) if len(steps) < last.roles.count(Role.ASSISTANT) else (),
    )


def _unframed(pieces: Sequence[str]) -> list[str]:
    """The text of a result without its frame."""
    found = list(pieces)
    found[0] = found[0].removeprefix(RESULT_TAGS[0])
    found[-1] = found[-1].removesuffix(RESULT_TAGS[1])
    return found


def _calls(text: str, count: int, place: int) -> tuple[str, tuple[ToolCall, ...]]:
    """A text without the calls at its end, and the calls. Raises DatasetError."""
    calls: list[ToolCall] = []
    for at in reversed(range(count)):
        text, mark, block = text.rpartition(CALL[0])
        try:
            said = msgspec.json.decode(block.removesuffix(CALL[1]), type=_Call) if mark else None
        except (msgspec.DecodeError, RecursionError) as error:
            raise DatasetError(f"messages[{place}]: a call that cannot be read") from error
        if said is None:
            raise DatasetError(f"messages[{place}]: fewer calls than the metadata says")
        arguments = said.arguments
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.insert(0, ToolCall(id=f"{place}-{at}", name=said.name, arguments=arguments))
        text = text.removesuffix("\n")
    return text, tuple(calls)


def _caption(pieces: Sequence[str], plain: str) -> str:
    """The text before the first picture that is left out with it; empty where that cannot be told."""
    rest = "".join(pieces[1:])
    kept = plain.removesuffix(rest)
    if len(pieces) != 2 or kept + rest != plain or not pieces[0].startswith(kept):
        return ""
    return pieces[0][len(kept) :]


def _placed(
    pieces: Sequence[str], pictures: Iterable[bytes], caption: str, blobs: BlobStore
) -> tuple[str, tuple[Image, ...]]:
    """The text of a message without marks and captions, and its pictures at their places in it."""
    own = [*(piece.removesuffix(caption) for piece in pieces[:-1]), pieces[-1]]
    images = []
    for data, at, piece, kept in zip(pictures, accumulate(map(len, own)), pieces, own, strict=False):
        try:
            found = read_picture(data)
        except NotAPicture as error:
            raise DatasetError(f"images: a picture cannot be decoded: {error}") from error
        images.append(
            Image(
                blob=blobs.put(data, found.media_type),
                media_type=found.media_type,
                width=found.width,
                height=found.height,
                at=at,
                caption=piece[len(kept) :],
            )
        )
    return "".join(own), tuple(images)
