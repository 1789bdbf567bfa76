"""Reads ATIF and ADP files as trajectories for the log: one conversation and its subagents become one tree of
messages."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path

import msgspec

from orchard.pipelines.datasets.foreign import UNKNOWN_MODEL, Foreign
from orchard.pipelines.interchange import adp, atif
from orchard.pipelines.interchange.conversation import KEY, place
from orchard.pipelines.interchange.documents import SUFFIXES, Document, documents
from orchard.pipelines.interchange.kept import Shape, kept
from orchard.pipelines.interchange.measured import Phases, call_of, time_of, took
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.pipelines.trajectories.reading import path
from orchard.schemas.llm_calls import CallKind, LLMCall
from orchard.schemas.messages import Image, MessageNode, Role, TokenRecord, ToolCall, VersionRun, node_id
from orchard.schemas.outcomes import ExitStatus
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.pictures import NotAPicture, read_picture

_LARGEST = 32 * 1024 * 1024
"""Maximum bytes of a picture."""
_TIMED_OUT = "AgentTimeoutError"
"""Harbor's exception for an agent whose time ran out; the verifier runs all the same."""
_ROLES = {"system": Role.SYSTEM, "user": Role.USER, "agent": Role.ASSISTANT}


class _Own(msgspec.Struct, frozen=True):
    """Fields that Orchard's own export adds to the format."""

    task_id: str = ""
    task_source: str = ""
    repo: str = ""
    exit_status: ExitStatus | msgspec.UnsetType = msgspec.UNSET
    resolved: bool | msgspec.UnsetType | None = msgspec.UNSET
    """Unset: another program wrote the file, and the grade is beside it."""
    arguments: str | None = None
    """Arguments of a call in the model's own spelling."""
    captions: tuple[str, ...] = ()
    """Captions of the pictures of a message."""
    versions: tuple[tuple[int, int], ...] = ()
    """Runs of sampled tokens: index of the first, and policy version."""


_NOTHING = _Own()


def _own(record: atif.Trajectory | atif.AtifToolCall | atif.Step | atif.Result | atif.Metrics) -> _Own:
    return msgspec.convert(record.extra[KEY], _Own) if record.extra and KEY in record.extra else _NOTHING


_ATIF = msgspec.json.Decoder(atif.Trajectory)


class _Verdict(msgspec.Struct, frozen=True):
    rewards: dict[str, float] | None = None


class _Exception(msgspec.Struct, frozen=True):
    exception_type: str = "unknown"


class _Trial(Phases, frozen=True, kw_only=True):
    """The files that Harbor writes beside a trial's trajectory."""

    task_name: str
    source: str | None = None
    verifier_result: _Verdict | None = None
    exception_info: _Exception | None = None

    @property
    def exception(self) -> str:
        """Name of the exception that ended the trial, or its agent; empty for none."""
        return self.exception_info.exception_type if self.exception_info else ""


class _Kind(msgspec.Struct, frozen=True):
    """The fields that tell an ADP trajectory from one of ATIF."""

    content: msgspec.Raw = msgspec.Raw()
    steps: msgspec.Raw = msgspec.Raw()


@dataclass
class _Tree:
    """What a document becomes: messages, calls and times by message."""

    read: "_Read"
    nodes: dict[str, MessageNode] = field(default_factory=dict)
    calls: dict[str, LLMCall] = field(default_factory=dict)
    times: dict[str, datetime] = field(default_factory=dict)
    begun: dict[str, str] = field(default_factory=dict)
    """The message that a result names as the origin of an embedded trajectory, by that one's id."""


def trajectory_files(places: Iterable[Path]) -> list[Path | LeftOut]:
    """The files themselves; in a directory, all trajectory.json below it, or else its files of JSON."""
    found: list[Path | LeftOut] = []
    for place_ in places:
        if place_.is_dir():
            inside = sorted(place_.rglob("trajectory.json")) or sorted(
                file for file in place_.iterdir() if file.name.endswith(SUFFIXES)
            )
            found += inside or [LeftOut(str(place_), "it has no trajectory.json, and no file of JSON")]
        else:
            found.append(place_)
    return found


def read_trajectories(
    files: Iterable[Path | LeftOut], blobs: BlobStore | None = None, ungraded: bool | None = None
) -> Iterator[Foreign | LeftOut]:
    """The trajectories of ATIF and ADP files, and the documents that are none; one document is in memory.
    Pictures beside a file become blobs, others are left out of the message. `ungraded` is the grade of those
    that have none."""
    number = 0
    trial_of = lru_cache(maxsize=1)(_trial)
    for file in files:
        if isinstance(file, LeftOut):
            yield file
            number += 1
            continue
        try:
            for document in documents(file):
                try:
                    yield _foreign(number, file, *_parsed(document), trial_of(file), blobs, ungraded)
                except OSError as error:
                    yield LeftOut(document.name, f"it cannot be read: {error}")
                except (ValueError, RecursionError) as error:
                    yield LeftOut(document.name, f"it is no trajectory in ATIF or ADP: {error}")
                number += 1
        except (OSError, EOFError, zlib.error) as error:
            yield LeftOut(str(file), f"it cannot be read: {error}")
            number += 1


def _parsed(document: Document) -> tuple[str, atif.Trajectory]:
    """The layout, and the trajectory in ATIF. As Harbor does, numbers in texts are taken for numbers."""
    try:
        found = _ATIF.decode(document.raw)
    except msgspec.ValidationError as error:
        kind = msgspec.json.decode(document.raw, type=_Kind)
        if bytes(kind.content) and not bytes(kind.steps):
            return "adp", adp.as_atif(msgspec.json.decode(document.raw, type=adp.AdpTrajectory))
        try:
            found = msgspec.json.decode(document.raw, type=atif.Trajectory, strict=False)
        except msgspec.ValidationError:
            raise error from None
    if not (found.schema_version or atif.VERSION).startswith("ATIF-v1."):
        raise ValueError(f"schema_version {found.schema_version!r} is not known: 1.x is")
    return "atif", found


def _foreign(
    number: int,
    file: Path,
    layout: str,
    found: atif.Trajectory,
    trial: _Trial | None,
    blobs: BlobStore | None,
    ungraded: bool | None,
) -> Foreign:
    known = _own(found)
    flags: set[str] = set()
    tree = _Tree(partial(_placed, file.parent, blobs, flags))
    shape, written = _add(tree, found, None, None)
    if not any(node.role is Role.ASSISTANT for node in path(tree.nodes, shape.leaf)):
        raise ValueError("it has no step of the agent")
    if found.continued_trajectory_ref:
        flags.add("continued_elsewhere")
    resolved = _resolved(trial) if isinstance(known.resolved, msgspec.UnsetType) else known.resolved
    if resolved is None:
        resolved = ungraded
        flags.add("not_graded" if ungraded is None else "grade_assumed")
    ended = known.exit_status
    if isinstance(ended, msgspec.UnsetType):
        exception = trial.exception if trial else ""
        ended = ExitStatus.TIME_LIMIT if exception == _TIMED_OUT else ExitStatus.FINISHED
        if exception and exception != _TIMED_OUT:
            flags.add("trial_failed")
    model = found.agent.model_name or ""
    stored = kept(written, shape, tree.nodes, tree.calls, model or UNKNOWN_MODEL, blobs)
    about = {"agent": found.agent.version, "session_id": found.session_id, "notes": found.notes}
    return Foreign(
        task_id=known.task_id
        or (trial.task_name if trial else None)
        or found.session_id
        or found.trajectory_id
        or file.stem,
        source=known.task_source or (trial.source if trial else None) or layout,
        repo=known.repo,
        harness=found.agent.name,
        model=model,
        # importing the same document twice is one import
        sample=int.from_bytes(sha256(msgspec.json.encode(found)).digest()[:6]),
        row=number,
        nodes=list(tree.nodes.values()),
        leaf=shape.leaf,
        exit_status=ended,
        resolved=resolved,
        layout=layout,
        tools=msgspec.json.encode(found.agent.tool_definitions or []).decode(),
        metadata=msgspec.json.encode(about | msgspec.to_builtins(stored)).decode(),
        flags=tuple(sorted(flags)),
        took=took(found, trial),
        calls=tuple(tree.calls.values()),
        times=tree.times,
    )


def _trial(file: Path) -> _Trial | None:
    """The trial of a file in Harbor's layout: TRIAL/agent/trajectory.json beside TRIAL/result.json."""
    result = file.resolve().parent.parent / "result.json"
    if file.parent.name != "agent" or not result.is_file():
        return None
    try:
        return msgspec.json.decode(result.read_bytes(), type=_Trial)
    except msgspec.DecodeError as error:
        raise ValueError(f"its trial cannot be read in {result}: {error}") from error


def _resolved(trial: _Trial | None) -> bool | None:
    """Whether the trial's verifier found the task solved; None: unknown. Harbor also verifies after an agent
    whose program failed, which may have had no model to ask: that it solved nothing says nothing."""
    rewards = trial.verifier_result.rewards if trial and trial.verifier_result else None
    if trial is None or not rewards or "reward" not in rewards:
        return None
    solved = rewards["reward"] == 1
    return solved if solved or trial.exception in ("", _TIMED_OUT) else None


_Read = Callable[[atif.Content | None, Sequence[str]], tuple[str, tuple[Image, ...], atif.Content | None]]
"""Reads text and pictures of a content, with the pictures' captions; returns also the content with the places
of those pictures in an export."""


def _add(
    tree: _Tree, found: atif.Trajectory, kind: CallKind | None, origin: str | None
) -> tuple[Shape, atif.Trajectory]:
    """Add the messages of a conversation and of those embedded in it, and the calls of the model.
    Copied context is the same path again. Returns also the trajectory as an export writes it."""
    parent: str | None = None
    turn = 0
    steps = []
    for number, step in enumerate(found.steps, start=1):
        if step.step_id != number:
            raise ValueError(f"step {number} is numbered {step.step_id}")
        role = _ROLES[step.source]
        turn += role is Role.ASSISTANT
        calls = tuple(_call(call) for call in step.tool_calls or ())
        text, images, message = tree.read(step.message, _own(step).captions)
        tokens = _tokens(step.metrics)
        before = parent
        parent = _node(
            tree.nodes, parent, turn, role, text, images, step.reasoning_content or "", calls, "", tokens
        )
        asked = parent
        if (time := time_of(step)) is not None:
            tree.times.setdefault(parent, time)
        if role is Role.ASSISTANT:
            made = call_of(step, found.agent, before, parent, turn, kind, origin)
            if made is not None:
                tree.calls.setdefault(parent, made)
                origin = None
        results = []
        for result in step.observation.results if step.observation else ():
            refs = result.subagent_trajectory_ref or ()
            tree.begun.update((ref.trajectory_id, asked) for ref in refs if ref.trajectory_id)
            if refs and result.content is None and result.source_call_id is None:
                results.append(result)  # it refers, and the agent saw nothing
                continue
            text, images, content = tree.read(result.content, _own(result).captions)
            answers = result.source_call_id or ""
            parent = _node(tree.nodes, parent, turn, Role.TOOL, text, images, "", (), answers, None)
            if time is not None:
                tree.times.setdefault(parent, time)
            same = content is result.content
            results.append(result if same else msgspec.structs.replace(result, content=content))
        steps.append(_written(step, message, results))
    if parent is None:
        raise ValueError("it has no step")
    inside = [
        _add(tree, other, CallKind.SUBAGENT, tree.begun.get(other.trajectory_id or ""))
        for other in found.subagent_trajectories or ()
    ]
    written = msgspec.structs.replace(
        found,
        schema_version=atif.VERSION,
        steps=steps,
        subagent_trajectories=[each for _, each in inside] or None,
    )
    return Shape(leaf=parent, inside=[each for each, _ in inside]), written


def _written(step: atif.Step, message: atif.Content | None, results: list[atif.Result]) -> atif.Step:
    """The step with its message and results as an export writes them."""
    seen = step.observation
    if seen is not None and any(
        ours is not theirs for ours, theirs in zip(results, seen.results, strict=True)
    ):
        step = msgspec.structs.replace(step, observation=msgspec.structs.replace(seen, results=results))
    return step if message is step.message else msgspec.structs.replace(step, message=message or "")


def _node(
    nodes: dict[str, MessageNode],
    parent: str | None,
    turn: int,
    role: Role,
    text: str,
    images: tuple[Image, ...],
    reasoning: str,
    calls: Sequence[ToolCall],
    answers: str,
    tokens: TokenRecord | None,
) -> str:
    name = node_id(parent, role, text, tuple(calls), answers, images)
    node = MessageNode(
        node_id=name,
        parent=parent,
        role=role,
        turn=turn,
        content=text,
        reasoning=reasoning,
        tool_calls=tuple(calls),
        tool_call_id=answers,
        tokens=tokens,
        images=images,
    )
    nodes.setdefault(name, node)
    return name


def _placed(
    directory: Path,
    blobs: BlobStore | None,
    flags: set[str],
    content: atif.Content | None,
    captions: Sequence[str],
) -> tuple[str, tuple[Image, ...], atif.Content | None]:
    """Text and pictures of a content, and the content with the pictures' places in an export. A picture that
    is not beside the file leaves a mark and a flag."""
    if content is None or isinstance(content, str):
        return content or "", (), content
    text, images, parts = "", list[Image](), list[atif.Part]()
    for part in content:
        if part.extra is not None:
            flags.add("extra_of_a_part_left_out")
            part = msgspec.structs.replace(part, extra=None)
        parts.append(part)
        if part.type == "text":
            text += part.text or ""
            continue
        data = _beside(directory, part.source) if part.type == "image" and part.source else None
        try:
            picture = read_picture(data or b"") if blobs is not None else None
        except NotAPicture:
            picture = None
        if blobs is None or picture is None:
            text += f"[{part.type}: not shown]"
            flags.add("pictures_left_out")
            continue
        caption = captions[len(images)] if len(images) < len(captions) else ""
        text = text.removesuffix(caption)
        images.append(
            Image(
                blob=blobs.put(picture.data, picture.media_type),
                media_type=picture.media_type,
                width=picture.width,
                height=picture.height,
                at=len(text),
                caption=caption,
            )
        )
        shown = atif.MediaSource(media_type=picture.media_type, path=place(images[-1]))
        parts[-1] = atif.Part(type="image", source=shown)
    return text, tuple(images), parts


def _beside(directory: Path, source: atif.MediaSource) -> bytes | None:
    """Read a file in the directory of a trajectory; None for one elsewhere: a foreign trajectory may name
    no file of this machine."""
    try:
        file = (directory / source.path).resolve()
        inside = file.is_relative_to(directory.resolve()) and file.is_file()
        return file.read_bytes() if inside and file.stat().st_size <= _LARGEST else None
    except (OSError, ValueError):
        return None


def _call(call: atif.AtifToolCall) -> ToolCall:
    exact = _own(call).arguments
    arguments = msgspec.json.encode(call.arguments).decode() if exact is None else exact
    return ToolCall(id=call.tool_call_id, name=call.function_name, arguments=arguments)


def _tokens(metrics: atif.Metrics | None) -> TokenRecord | None:
    if metrics is None or not metrics.completion_token_ids:
        return None
    if metrics.logprobs and len(metrics.logprobs) != len(metrics.completion_token_ids):
        raise ValueError("a step has another number of log-probabilities than of tokens")
    return TokenRecord(
        ids=tuple(metrics.completion_token_ids),
        logprobs=tuple(metrics.logprobs or ()),
        prompt_ids=tuple(metrics.prompt_token_ids or ()),
        versions=tuple(VersionRun(start=start, version=version) for start, version in _own(metrics).versions),
    )
