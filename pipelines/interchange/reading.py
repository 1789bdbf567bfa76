"""Reads ATIF files as trajectories for the log: one conversation and its subagents become one tree of
messages."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec

from orchard.pipelines.datasets.importing import Foreign
from orchard.pipelines.interchange import atif
from orchard.pipelines.interchange.export import KEY
from orchard.pipelines.interchange.measured import Phases, call_of, took
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.schemas.llm_calls import CallKind, LLMCall
from orchard.schemas.messages import Image, MessageNode, Role, TokenRecord, ToolCall, node_id
from orchard.schemas.outcomes import ExitStatus
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.pictures import NotAPicture, read_picture

LAYOUT = "atif"
SOURCE = "atif"
_LARGEST = 32 * 1024 * 1024
"""Maximum bytes of a picture."""
_ROLES = {"system": Role.SYSTEM, "user": Role.USER, "agent": Role.ASSISTANT}


class _Own(msgspec.Struct, frozen=True):
    """Fields that Orchard's own export adds to the format."""

    task_id: str = ""
    task_source: str = ""
    repo: str = ""
    exit_status: ExitStatus = ExitStatus.FINISHED
    resolved: bool | msgspec.UnsetType | None = msgspec.UNSET
    """Unset: another program wrote the file, and the grade is beside it."""
    arguments: str | None = None
    """Arguments of a call in the model's own spelling."""
    captions: tuple[str, ...] = ()
    """Captions of the pictures of a message."""


def _own(record: atif.Trajectory | atif.AtifToolCall | atif.Step | atif.Result) -> _Own:
    return msgspec.convert((record.extra or {}).get(KEY, {}), _Own)


class _Verdict(msgspec.Struct, frozen=True):
    rewards: dict[str, float] | None = None


class _Trial(Phases, frozen=True, kw_only=True):
    """The files that Harbor writes beside a trial's trajectory."""

    task_name: str
    source: str | None = None
    verifier_result: _Verdict | None = None


def trajectory_files(places: Iterable[Path]) -> list[Path | LeftOut]:
    """The files themselves; in a directory, all trajectory.json below it, or else its JSON files."""
    found: list[Path | LeftOut] = []
    for place in places:
        if place.is_dir():
            inside = sorted(place.rglob("trajectory.json")) or sorted(place.glob("*.json"))
            found += inside or [LeftOut(str(place), "it has no trajectory.json, and no JSON file")]
        else:
            found.append(place)
    return found


def read_trajectories(
    files: Iterable[Path | LeftOut], blobs: BlobStore | None = None
) -> Iterator[Foreign | LeftOut]:
    """The trajectories of ATIF files, and the files that are none; pictures beside a file become blobs,
    others are left out of the message."""
    for number, file in enumerate(files):
        if isinstance(file, LeftOut):
            yield file
            continue
        try:
            raw = file.read_bytes()
            one = _foreign(number, file, raw, msgspec.json.decode(raw, type=atif.Trajectory), blobs)
        except OSError as error:
            yield LeftOut(str(file), f"it cannot be read: {error}")
        except (ValueError, RecursionError) as error:
            yield LeftOut(str(file), f"it is no trajectory in ATIF: {error}")
        else:
            yield one


def _foreign(number: int, file: Path, raw: bytes, found: atif.Trajectory, blobs: BlobStore | None) -> Foreign:
    if not found.schema_version.startswith("ATIF-v1."):
        raise ValueError(f"schema_version {found.schema_version!r} is not known: 1.x is")
    known = _own(found)
    trial = _trial(file)
    nodes: dict[str, MessageNode] = {}
    calls: dict[str, LLMCall] = {}
    flags: set[str] = set()
    read = partial(_placed, file.parent, blobs, flags)
    leaf = _add(nodes, calls, found, read, None)
    for other in found.subagent_trajectories or ():
        _add(nodes, calls, other, read, CallKind.SUBAGENT)
    if found.continued_trajectory_ref:
        flags.add("continued_elsewhere")
    resolved = _resolved(trial) if isinstance(known.resolved, msgspec.UnsetType) else known.resolved
    if resolved is None:
        flags.add("not_graded")
    return Foreign(
        task_id=known.task_id or (trial.task_name if trial else None) or found.session_id or file.stem,
        source=known.task_source or (trial.source if trial else None) or SOURCE,
        repo=known.repo,
        harness=found.agent.name,
        model=found.agent.model_name or "",
        sample=int.from_bytes(sha256(raw).digest()[:3]),  # importing the same file twice is one import
        row=number,
        nodes=list(nodes.values()),
        leaf=leaf,
        exit_status=known.exit_status,
        resolved=resolved,
        layout=LAYOUT,
        tools=msgspec.json.encode(found.agent.tool_definitions or []).decode(),
        metadata=msgspec.json.encode(
            {"agent": found.agent.version, "session_id": found.session_id, "notes": found.notes}
        ).decode(),
        flags=tuple(sorted(flags)),
        took=took(found, trial),
        calls=tuple(calls.values()),
    )


def _trial(file: Path) -> _Trial | None:
    """The trial of a file in Harbor's layout: TRIAL/agent/trajectory.json beside TRIAL/result.json."""
    result = file.resolve().parent.parent / "result.json"
    if file.parent.name != "agent" or not result.is_file():
        return None
    return msgspec.json.decode(result.read_bytes(), type=_Trial)


def _resolved(trial: _Trial | None) -> bool | None:
    rewards = trial.verifier_result.rewards if trial and trial.verifier_result else None
    return None if not rewards or "reward" not in rewards else rewards["reward"] == 1


_Read = Callable[[atif.Content | None, Sequence[str]], tuple[str, tuple[Image, ...]]]
"""Reads text and pictures of a content, with the pictures' captions."""


def _add(
    nodes: dict[str, MessageNode],
    calls_made: dict[str, LLMCall],
    found: atif.Trajectory,
    read: _Read,
    kind: CallKind | None,
) -> str:
    """Add the messages of one conversation, and the calls of the model by message; returns the id of its
    last. Copied context is the same path again."""
    parent: str | None = None
    turn = 0
    for number, step in enumerate(found.steps, start=1):
        if step.step_id != number:
            raise ValueError(f"step {number} is numbered {step.step_id}")
        role = _ROLES[step.source]
        turn += role is Role.ASSISTANT
        calls = tuple(_call(call) for call in step.tool_calls or ())
        said = read(step.message, _own(step).captions)
        tokens = _tokens(step.metrics)
        before = parent
        parent = _node(nodes, parent, turn, role, said, step.reasoning_content or "", calls, "", tokens)
        if role is Role.ASSISTANT and (made := call_of(step, found.agent, before, parent, turn, kind)):
            calls_made.setdefault(parent, made)
        for result in step.observation.results if step.observation else ():
            said = read(result.content, _own(result).captions)
            parent = _node(nodes, parent, turn, Role.TOOL, said, "", (), result.source_call_id or "", None)
    if turn == 0:
        raise ValueError("it has no step of the agent")
    assert parent is not None
    return parent


def _node(
    nodes: dict[str, MessageNode],
    parent: str | None,
    turn: int,
    role: Role,
    said: tuple[str, tuple[Image, ...]],
    reasoning: str,
    calls: Sequence[ToolCall],
    answers: str,
    tokens: TokenRecord | None,
) -> str:
    text, images = said
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
) -> tuple[str, tuple[Image, ...]]:
    """Text and pictures of a content. A picture that is not beside the file leaves a mark and a flag."""
    text, images = "", list[Image]()
    for part in atif.parts_of(content):
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
    return text, tuple(images)


def _beside(directory: Path, source: atif.PictureSource) -> bytes | None:
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
    )
