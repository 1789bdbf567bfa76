"""Requests at the boundary: 10,000 mutants become a request that can be carried out, or a reason."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import Budget, ModelSpec, RolloutRequest, TaskRef, Timeouts
from orchard.schemas.identity import rollout_id
from orchard.schemas.quantities import InvalidQuantity, parse_bytes, parse_cores
from orchard.schemas.requests import (
    LONGEST,
    InvalidRequest,
    JudgeRequest,
    NewerRequest,
    ProveRequest,
    check_limits,
    read_annotation_request,
    read_judge_request,
    read_prove_request,
    read_rollout_request,
    read_synthesis_request,
)
from orchard.schemas.synthesis import SynthesisAction, SynthesisRequest
from orchard.schemas.values import AnnotationRequest
from tests.mutations import DEEP, mutants

REQUEST = RolloutRequest(
    rollout_id=rollout_id("demo", "t1", "mini-swe-agent", "m", 3),
    campaign="demo",
    task=TaskRef(task_id="t1", source="s", repo="a/b", blob=BlobRef(sha256="ab" * 32, size=7)),
    harness="mini-swe-agent",
    model=ModelSpec(name="m", temperature=0.5, max_tokens=100),
    sample=3,
    memory="2Gi",
)
ANNOTATION = AnnotationRequest(
    rollout_id="0" * 24,
    attempt=1,
    campaign="demo",
    annotator="judge",
    model=ModelSpec(name="m"),
    prompt_version="v1",
    first_sequence=1,
    last_sequence=9,
)


PROOF = ProveRequest(task=REQUEST.task, task_hash="cd" * 32, fence=4)
JUDGEMENT = JudgeRequest(
    campaign="demo",
    rollout_id="0" * 24,
    attempt=1,
    task=REQUEST.task.blob,
    submission="{}",
    submission_blob=None,
    protocol="orchard-2",
    prompt_hash="ef" * 8,
    model=ModelSpec(name="m"),
    timeout_seconds=60.0,
)
STEP = SynthesisRequest(
    run="demo",
    seed=1,
    step=SynthesisAction.SOLVE,
    slot=3,
    author=ModelSpec(name="m"),
    solver=ModelSpec(name="m"),
    rollouts=2,
    harnesses=("claw-react",),
    timeout_seconds=60.0,
    draft=REQUEST.task.blob,
)
READERS = [
    (read_rollout_request, REQUEST),
    (read_annotation_request, ANNOTATION),
    (read_prove_request, PROOF),
    (read_judge_request, JUDGEMENT),
    (read_synthesis_request, STEP),
]


def changed(**fields: object) -> bytes:
    """The request with other fields, under the id that they make."""
    request = msgspec.structs.replace(REQUEST, **fields)
    parts = (request.campaign, request.task.task_id, request.harness, request.model.name, request.sample)
    if "rollout_id" not in fields:
        request = msgspec.structs.replace(request, rollout_id=rollout_id(*parts))
    return msgspec.json.encode(request)


@pytest.mark.parametrize(("read", "request_"), READERS)
def test_a_request_as_commands_make_it_is_read(read: Callable[[bytes], object], request_: object) -> None:
    assert read(msgspec.json.encode(request_)) == request_


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"step": SynthesisAction.ACCEPT}, "must be one of propose"),
        ({"step": SynthesisAction.WRITE}, "idea is missing"),
        ({"draft": None}, "solve needs the draft"),
        ({"rollouts": 0}, "rollouts"),
    ],
)
def test_a_step_that_nobody_can_do_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read_synthesis_request(msgspec.json.encode(msgspec.structs.replace(STEP, **changes)))


@pytest.mark.long
def test_ten_thousand_mutants_are_requests_or_reasons() -> None:
    reasons = 0
    for raw in mutants([msgspec.json.encode(REQUEST)], 10_000, seed=1):
        try:
            request = read_rollout_request(raw)
        except InvalidRequest as error:
            reasons += 1
            assert len(str(error)) < 600
            if error.rollout is not None:
                check_limits(msgspec.structs.replace(error.rollout, task=REQUEST.task, model=REQUEST.model))
        else:
            check_limits(request)
    assert 3000 < reasons < 10_000


@pytest.mark.parametrize(("read", "request_"), READERS[1:])
def test_mutants_of_other_requests_are_requests_or_reasons(
    read: Callable[[bytes], object], request_: object
) -> None:
    for raw in mutants([msgspec.json.encode(request_)], 1000, seed=2):
        try:
            read(raw)
        except InvalidRequest as error:
            assert len(str(error)) < 600


@pytest.mark.parametrize(
    "fields",
    [
        {"timeouts": Timeouts(rollout=-1.0)},
        {"timeouts": Timeouts(command=LONGEST * 2)},
        {"timeouts": Timeouts(shutdown=0.0)},
        {"budget": Budget(steps=-1)},
        {"budget": Budget(wall_seconds=1e300)},
        {"budget": Budget(cost_usd=-0.5)},
        {"max_tries": 0},
        {"attempt_base": -3},
        {"attempt_base": 2**40},
        {"memory": "lots"},
        {"memory": "0"},
        {"domain": "a.b"},
        {"priority": ">"},
        {"model": ModelSpec(name="m", endpoint="")},
        {"model": ModelSpec(name="m", top_p=7.0)},
        {"task": TaskRef(task_id="t1", source="", repo="", blob=BlobRef(sha256="../../x", size=1))},
    ],
)
def test_what_cannot_be_carried_out_names_its_rollout_so_that_it_can_be_ended(
    fields: dict[str, object],
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_rollout_request(changed(**fields))
    assert caught.value.rollout is not None
    assert caught.value.rollout.rollout_id == REQUEST.rollout_id
    assert caught.value.rollout.attempt_base == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"rollout_id": "f" * 24},
        {"campaign": "a.b"},
        {"campaign": "x" * 5000},
        {"sample": -1},
        {"fence": -1},
        {"harness": "a\x00b"},
        {"model": ModelSpec(name="")},
        {"model": ModelSpec(name="m" * 5000)},
    ],
)
def test_a_request_of_an_unsure_rollout_names_none(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_rollout_request(changed(**fields))
    assert caught.value.rollout is None


def test_bytes_that_are_no_request_have_a_reason() -> None:
    for raw in (b"", b"{}", b"\xff", b"[" * DEEP, b'{"a":' * DEEP, b'{"sample": 1e999}'):
        with pytest.raises(InvalidRequest):
            read_rollout_request(raw)
        with pytest.raises(InvalidRequest):
            read_annotation_request(raw)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 10**9),
        ("1E9", 10**9),
        ("1E", 10**18),
        (".5Gi", 2**29),
        ("1.Mi", 2**20),
        ("1Pi", 2**50),
        ("5Ei", 5 * 2**60),
        ("+2Gi", 2**31),
        ("1500m", 1),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_memory_is_read_as_kubernetes_reads_it(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    "text", ["lots", "-1Gi", "1e99", "8Ei", "1e", "", ".", "1Zi", "9" * 5000, "1 Gi", "٣"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuantity):
        parse_bytes(text)


def test_cores_have_fractions() -> None:
    assert [parse_cores(text) for text in ("500m", ".25", "2")] == [0.5, 0.25, 2.0]


def later(document: bytes, *path: str, **fields: object) -> bytes:
    """As a later version would write it, with fields of its own at a place."""
    value = msgspec.json.decode(document)
    node = value
    for step in path:
        node = node[step]
    node.update(fields)
    return msgspec.json.encode(value)


@pytest.mark.parametrize("path", [(), ("model",), ("budget",), ("timeouts",), ("task",), ("task", "blob")])
@pytest.mark.parametrize("nothing", [None, False, 0, 0.0, "", [], {}])
def test_a_field_of_a_later_version_that_asks_for_nothing_is_passed_over(
    path: tuple[str, ...], nothing: object
) -> None:
    assert read_rollout_request(later(msgspec.json.encode(REQUEST), *path, later_field=nothing)) == REQUEST


@pytest.mark.parametrize("path", [(), ("model",), ("budget",), ("timeouts",), ("task",)])
@pytest.mark.parametrize("something", [True, 1, 0.5, "high", [0], {"a": None}])
def test_one_that_asks_for_something_is_for_a_later_version(path: tuple[str, ...], something: object) -> None:
    """Left out, the rollout would be another than its campaign says."""
    with pytest.raises(NewerRequest, match="later_field, which only a later version knows") as refused:
        read_rollout_request(later(msgspec.json.encode(REQUEST), *path, later_field=something))
    assert refused.value.rollout is not None
    assert refused.value.rollout.rollout_id == REQUEST.rollout_id


def test_annotations_are_read_in_the_same_way() -> None:
    document = msgspec.json.encode(ANNOTATION)
    assert read_annotation_request(later(document, "model", later_field=None)) == ANNOTATION
    with pytest.raises(NewerRequest, match=r"model\.later_field"):
        read_annotation_request(later(document, "model", later_field=2))


def test_what_is_no_request_for_another_reason_stays_one_for_that_reason() -> None:
    with pytest.raises(InvalidRequest, match="sample") as refused:
        read_rollout_request(later(msgspec.json.encode(REQUEST), later_field=1, sample="x"))
    assert not isinstance(refused.value, NewerRequest)
