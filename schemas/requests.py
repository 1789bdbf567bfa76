"""Reads requests from a queue: bytes become a request that can be carried out, or a reason why not.

The structs themselves say nothing about ranges, because requests are events too and an event must stay
readable. So the limits that a worker relies on are checked here, in one place.
"""

import math
import re
from functools import cache
from typing import Any, TypeVar

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.decoding import Unreadable, decode, decode_whole
from orchard.schemas.identity import check_name, rollout_id, rollout_stream
from orchard.schemas.quantities import InvalidQuantity, parse_bytes
from orchard.schemas.synthesis import STEPS, SynthesisAction, SynthesisRequest
from orchard.schemas.values import AnnotationRequest


class ProveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the proof or rejection of one task; travels on the prove queue."""

    task: TaskRef
    task_hash: str
    runs: int = 3
    """Times that the known solution, and the empty one, are graded."""
    fence: int = 0
    """Sequence of the answer to the request before; 0 for none. Only an answer stored over it is accepted."""
    failures: int = 0
    """Number of times that infrastructure failed it."""


class JudgeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for another judgement of one finished rollout; travels on the judge queue."""

    campaign: str
    rollout_id: str
    attempt: int
    task: BlobRef
    submission: str
    submission_blob: BlobRef | None
    """Blob of the submission, if it is too long for the request."""
    protocol: str
    """Name and version of the protocol."""
    prompt_hash: str
    """Hash of the protocol's own text: a worker with another text leaves the request to those that have this
    one."""
    model: ModelSpec
    """The model that gives the judgement."""
    timeout_seconds: float
    """Time limit of one answer, with all tries."""
    fence: int = 0
    """Sequence of the answer to the request before: see ProveRequest."""
    failures: int = 0
    """Number of times that infrastructure failed it."""


LONGEST = 31 * 86400.0
"""Maximum of any timeout in seconds: timers of event loops fail somewhere above."""
_SEQUENCES = 2**63 - 1
_COUNTS = 2**31 - 1
_TOKENS = 2**53
_TEXT = 1024
_REASON = 500
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SHA256 = re.compile(r"[0-9a-f]{64}")
S = TypeVar("S", bound=msgspec.Struct)

_ROLLOUTS = msgspec.json.Decoder(RolloutRequest)
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class InvalidRequest(ValueError):
    """A request that nobody can carry out; the text says why."""

    def __init__(self, reason: str, rollout: RolloutRequest | None = None) -> None:
        super().__init__(reason[:_REASON])
        self.rollout = rollout
        """Identity of the requested rollout, all else at its defaults; None if even that is not sure."""


class NewerRequest(InvalidRequest):
    """A request for something that this version does not know: a later worker can carry it out (decision
    0073)."""


def read_rollout_request(body: bytes) -> RolloutRequest:
    """Decodes a rollout request. Raises InvalidRequest, and nothing else, for one that cannot be carried out,
    and NewerRequest for one that a later version can."""
    known, asked = known_part(body, RolloutRequest)
    try:
        request = decode_whole(_ROLLOUTS, known)
    except Unreadable as error:
        raise InvalidRequest(f"not a rollout request: {error}") from error
    try:
        check_identity(request)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    if asked:
        raise NewerRequest(_newer(asked), _bare(request))
    try:
        check_limits(request)
    except ValueError as error:
        raise InvalidRequest(str(error), _bare(request)) from error
    return request


def read_known(body: bytes, kind: type[S], what: str) -> S:
    """The struct in a body, whatever its values; raises as `read_rollout_request` does."""
    known, asked = known_part(body, kind)
    try:
        request: S = decode_whole(_decoder(kind), known)
    except Unreadable as error:
        raise InvalidRequest(f"not {what}: {error}") from error
    if asked:
        raise NewerRequest(_newer(asked))
    return request


@cache
def _decoder(kind: type[S]) -> "msgspec.json.Decoder[S]":
    return msgspec.json.Decoder(kind)


def _newer(asked: list[str]) -> str:
    return f"it asks for {', '.join(asked[:5])}, which only a later version knows"


def _bare(request: RolloutRequest) -> RolloutRequest:
    """Reduces a request to the identity of its rollout, all else at its defaults."""
    return RolloutRequest(
        rollout_id=request.rollout_id,
        campaign=request.campaign,
        task=request.task,
        harness=request.harness,
        model=request.model,
        sample=request.sample,
        fence=request.fence,
    )


def rollout_in(body: bytes) -> RolloutRequest | None:
    """Decodes a rollout request, or the sure part of one that cannot be carried out; None if not even the
    rollout is sure."""
    try:
        return read_rollout_request(body)
    except InvalidRequest as error:
        return error.rollout


def read_annotation_request(body: bytes) -> AnnotationRequest:
    """The request in a body; raises as `read_rollout_request` does."""
    request = read_known(body, AnnotationRequest, "an annotation request")
    try:
        _name("rollout_id", request.rollout_id)
        _name("annotator", request.annotator)
        _name("prompt_version", request.prompt_version)
        _campaign(request.campaign)
        _check_model(request.model)
        _whole("attempt", request.attempt, 0, _COUNTS)
        _whole("first_sequence", request.first_sequence, 0, _SEQUENCES)
        _whole("last_sequence", request.last_sequence, 0, _SEQUENCES)
        _whole("max_tries", request.max_tries, 1, 1000)
        if request.rubric is not None:
            _check_blob("rubric", request.rubric)
        _whole("context_characters", request.context_characters, 1, _COUNTS)
        _whole("failures", request.failures, 0, _COUNTS)
        _seconds("timeout_seconds", request.timeout_seconds)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    return request


def read_prove_request(body: bytes) -> ProveRequest:
    """The proof request in a body; raises as `read_rollout_request` does."""
    request = read_known(body, ProveRequest, "a request to prove a task")
    try:
        _name("task.task_id", request.task.task_id)
        _check_blob("task.blob", request.task.blob)
        if not _SHA256.fullmatch(request.task_hash):
            raise ValueError(f"task_hash is {request.task_hash[:80]!r}: it must be 64 hexadecimal digits")
        _whole("runs", request.runs, 1, 1000)
        _whole("fence", request.fence, 0, _SEQUENCES)
        _whole("failures", request.failures, 0, _COUNTS)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    return request


def read_judge_request(body: bytes) -> JudgeRequest:
    """The request to judge in a body; raises as `read_rollout_request` does."""
    request = read_known(body, JudgeRequest, "a request to judge a rollout")
    try:
        _campaign(request.campaign)
        _name("rollout_id", request.rollout_id)
        _name("protocol", request.protocol)
        _name("prompt_hash", request.prompt_hash)
        _check_model(request.model)
        _check_blob("task", request.task)
        if request.submission_blob is not None:
            _check_blob("submission_blob", request.submission_blob)
        _whole("attempt", request.attempt, 0, _COUNTS)
        _whole("fence", request.fence, 0, _SEQUENCES)
        _whole("failures", request.failures, 0, _COUNTS)
        _seconds("timeout_seconds", request.timeout_seconds)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    return request


def read_synthesis_request(body: bytes) -> SynthesisRequest:
    """The request for a step of a synthesis run in a body; raises as `read_rollout_request` does."""
    request = read_known(body, SynthesisRequest, "a request for a step of a synthesis run")
    try:
        _campaign(request.run)
        if request.step not in STEPS:
            raise ValueError(f"step is {request.step}: it must be one of {', '.join(STEPS)}")
        if request.step is SynthesisAction.WRITE and request.idea is None:
            raise ValueError("idea is missing: write needs the idea of its slot")
        if request.step in (SynthesisAction.PROVE, SynthesisAction.SOLVE) and request.draft is None:
            raise ValueError(f"draft is missing: {request.step} needs the draft of its slot")
        _check_model(request.author)
        _check_model(request.solver)
        for harness in request.harnesses:
            _name("harnesses", harness)
        for what in ("known", "idea", "draft"):
            if (blob := getattr(request, what)) is not None:
                _check_blob(what, blob)
        _whole("slot", request.slot, 0, _COUNTS)
        _whole("turn", request.turn, 0, _COUNTS)
        _whole("rollouts", request.rollouts, 1, 1000)
        _whole("failures", request.failures, 0, _COUNTS)
        _seconds("timeout_seconds", request.timeout_seconds)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    return request


def check_identity(request: RolloutRequest) -> None:
    """Raises ValueError unless it is sure which rollout, and which of its fences, the request is for: with
    another's id it would take that rollout's place."""
    _campaign(request.campaign)
    task = request.task
    _name("task.task_id", task.task_id)
    _name("task.source", task.source, empty=True)
    _name("task.repo", task.repo, empty=True)
    _name("harness", request.harness)
    _name("model.name", request.model.name)
    _whole("sample", request.sample, 0, _COUNTS)
    _whole("fence", request.fence, 0, _SEQUENCES)
    own = rollout_id(request.campaign, task.task_id, request.harness, request.model.name, request.sample)
    stream = rollout_stream(request.rollout_id)
    if request.rollout_id != (f"{own}-{stream}" if stream else own):
        raise ValueError(f"rollout_id is {request.rollout_id[:64]!r}, but that of its parts is {own}")


def check_limits(request: RolloutRequest) -> None:
    """Raises ValueError for a number, name or reference that no worker can do anything with."""
    check_name(request.domain, "domain")
    check_name(request.priority, "priority")
    if request.team:
        check_name(request.team, "team")
    _check_blob("task.blob", request.task.blob)
    _check_model(request.model)
    budget = request.budget
    _whole("budget.steps", budget.steps, 0, _COUNTS)
    _whole("budget.tokens", budget.tokens, 0, _TOKENS)
    _real("budget.cost_usd", budget.cost_usd, 0.0, 1e9)
    _real("budget.wall_seconds", budget.wall_seconds, 0.0, LONGEST)
    for layer in request.timeouts.__struct_fields__:
        _seconds(f"timeouts.{layer}", getattr(request.timeouts, layer))
    if request.harness_version is not None:
        _name("harness_version", request.harness_version)
    if request.takeover is not None:
        _check_model(request.takeover.acting(request.model))
        _whole("takeover.after_turns", request.takeover.after_turns, 0, _COUNTS)
    _whole("max_tries", request.max_tries, 1, _COUNTS)
    _whole("attempt_base", request.attempt_base, 0, _COUNTS // 2)
    _whole("failures", request.failures, 0, _COUNTS // 2)
    if request.memory is not None:
        try:
            parse_bytes(request.memory)
        except InvalidQuantity as error:
            raise ValueError(f"memory: {error}") from error


def _check_model(model: ModelSpec) -> None:
    _name("model.name", model.name)
    _name("model.endpoint", model.endpoint)
    if model.temperature is not None:
        _real("model.temperature", model.temperature, 0.0, 100.0)
    if model.top_p is not None:
        _real("model.top_p", model.top_p, 0.0, 1.0)
    if model.max_tokens is not None:
        _whole("model.max_tokens", model.max_tokens, 1, _COUNTS)


def _check_blob(what: str, blob: BlobRef) -> None:
    if not _SHA256.fullmatch(blob.sha256):
        raise ValueError(f"{what}.sha256 is {blob.sha256[:80]!r}: it must be 64 hexadecimal digits")
    _whole(f"{what}.size", blob.size, 0, _TOKENS)


def _campaign(name: str) -> None:
    """Accepts reserved names too: whether a campaign may be submitted is not decided here."""
    check_name(name, "campaign of the request")


def _name(what: str, text: str, *, empty: bool = False) -> None:
    if len(text) > _TEXT or not (text or empty) or _CONTROL.search(text):
        raise ValueError(
            f"{what} is {text[:40]!r} ({len(text)} characters): it must have 1 to {_TEXT}, without control "
            "characters"
        )


def _whole(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{what} is {str(value)[:40]}: it must be {least} to {most}")


def _real(what: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{what} is {value:g}: it must be {least:g} to {most:g}")


def _seconds(what: str, value: float) -> None:
    if not 0.0 < value <= LONGEST:
        raise ValueError(f"{what} is {value:g} s: it must be over 0 and at most {LONGEST:g}")


def is_as_before(value: object) -> bool:
    """Whether a field with this value asks for nothing (decision 0073).

    A field that a version adds has a default that stands for "as before". So the version before may pass over
    an unknown field with such a value, and over no other: whoever wrote it means something by it.
    """
    return value in (None, False, 0, "", [], {}, ())


def known_part(document: bytes, kind: type[msgspec.Struct]) -> tuple[bytes, list[str]]:
    """Removes the fields that `kind`, and the structs in it, do not have from a JSON document; returns it
    with the paths of those that ask for something. Other faults of the document stay."""
    try:
        value = decode(_ANY, document)
        unknown: list[str] = []
        asked: list[str] = []
        known = _known(value, kind, "", unknown, asked)
        return (msgspec.json.encode(known), asked) if unknown else (document, [])
    except (Unreadable, ValueError, OverflowError, RecursionError):
        return document, []  # the reader of `kind` says what is wrong


def _known(value: Any, kind: Any, path: str, unknown: list[str], asked: list[str]) -> Any:
    if not isinstance(value, dict):
        return value
    fields = _fields(kind)
    found = {}
    for name, inner in value.items():
        place = f"{path}{name}"
        if name in fields:
            of = fields[name]
            found[name] = inner if of is None else _known(inner, of, f"{place}.", unknown, asked)
        else:
            unknown.append(place)
            if not is_as_before(inner):
                asked.append(place)
    return found


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct] | None]:
    """Maps the wire name of each field of a struct to the struct that the field holds, if it holds one."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return {each.encode_name: _struct(each.type) for each in info.fields}


def _struct(type_: msgspec.inspect.Type) -> type[msgspec.Struct] | None:
    """Returns the one struct that a field holds, None for several: these are tagged, and an unknown tag is an
    error."""
    if isinstance(type_, msgspec.inspect.Metadata):
        return _struct(type_.type)
    if isinstance(type_, msgspec.inspect.UnionType):
        found = [inner for inner in map(_struct, type_.types) if inner is not None]
        return found[0] if len(found) == 1 else None
    if isinstance(type_, msgspec.inspect.StructType) and type_.tag is None:
        return type_.cls
    return None
