"""Ids are deterministic, events survive what they do not know, documents are current."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import (
    CampaignSpec,
    ModelSpec,
    TaskRef,
    rollout_ids,
    rollout_request,
    rollout_requests,
    slot_at,
    spec_hash,
)
from orchard.schemas.documents import render
from orchard.schemas.events import (
    EVENT_TYPES,
    NEXT_NAMES,
    MalformedEvent,
    RolloutAborted,
    RolloutFinished,
    SandboxDeleted,
    UnknownPayload,
    UnreadablePayload,
    decode_event,
    encode_event,
    make_event,
    payload,
)
from orchard.schemas.identity import InvalidName, check_name, rollout_id, shard
from orchard.schemas.messages import Role, node_id
from orchard.schemas.outcomes import ExitStatus, Reward, RolloutStatus
from orchard.schemas.quantities import InvalidQuantity, format_bytes, parse_bytes, parse_cores
from orchard.schemas.subjects import done_subject, event_subject, type_subjects

DOCUMENTS = Path(__file__).parents[2] / "docs" / "schemas"


def a_task(number: int) -> TaskRef:
    return TaskRef(
        task_id=f"task-{number}", source="test", repo="r", blob=BlobRef(sha256=f"{number:064x}", size=1)
    )


def a_spec(**changes: object) -> CampaignSpec:
    spec = CampaignSpec(
        name="c1",
        tasks=(a_task(1), a_task(2)),
        harnesses=("mini-swe-agent",),
        models=(ModelSpec(name="m"),),
        samples=3,
    )
    return msgspec.structs.replace(spec, **changes)


def test_rollout_ids_depend_on_every_part_and_on_nothing_else() -> None:
    first = rollout_id("c", "t", "h", "m", 0)
    assert first == rollout_id("c", "t", "h", "m", 0)
    others = [
        rollout_id(*parts)
        for parts in [("d", "t", "h", "m", 0), ("c", "u", "h", "m", 0), ("c", "t", "i", "m", 0)]
    ]
    others += [rollout_id("c", "t", "h", "n", 0), rollout_id("c", "t", "h", "m", 1)]
    assert len({first, *others}) == 6
    assert shard(first) == first[:2]


def test_parts_of_an_id_cannot_run_into_each_other() -> None:
    assert rollout_id("ab", "c", "h", "m", 0) != rollout_id("a", "bc", "h", "m", 0)


def test_the_requests_of_a_campaign_come_in_a_fixed_order_from_any_index() -> None:
    spec = a_spec()
    every = list(rollout_requests(spec))
    assert len(every) == spec.size == 6
    assert len({request.rollout_id for request in every}) == 6
    assert list(rollout_requests(spec, 4)) == every[4:]
    assert list(rollout_ids(spec, 4)) == [request.rollout_id for request in every[4:]]
    assert [rollout_request(spec, slot_at(spec, place)) for place in range(len(every))] == every
    assert [request.sample for request in every] == [0, 0, 1, 1, 2, 2]


def test_equal_plans_have_equal_hashes() -> None:
    assert spec_hash(a_spec()) == spec_hash(a_spec())
    assert spec_hash(a_spec(samples=4)) != spec_hash(a_spec())


def test_a_plan_keeps_the_hash_that_it_had_before_it_got_new_fields() -> None:
    spec = CampaignSpec(
        name="demo",
        tasks=(TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1)),),
        harnesses=("mini-swe-agent",),
        models=(ModelSpec(name="m", temperature=0.7),),
        samples=2,
    )
    assert spec_hash(spec) == "68152f76211415e34ea15c868824e0f1"  # by the code of 22 November 2026
    assert spec_hash(msgspec.structs.replace(spec, replay_attempts=False)) != spec_hash(spec)


@pytest.mark.parametrize(
    "name", ["", "A", "a.b", "a b", "-a", "a-", "done", "tasks", "x" * 64, "ü", "a>b", "a*"]
)
def test_a_campaign_name_that_would_break_a_subject_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_name(name)


def test_a_campaign_needs_tasks_and_samples() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        a_spec(tasks=())
    with pytest.raises(ValueError, match="samples"):
        a_spec(samples=0)


def test_terminal_events_share_the_rollouts_own_subject() -> None:
    event = make_event(
        SandboxDeleted(sandbox_id="s"), id="1", source="s", campaign="c", rollout_id="ab12", attempt=1
    )
    assert event_subject(event) == "orchard.events.c.ab.sandbox.deleted"
    done = msgspec.structs.replace(event, type="rollout.finished")
    assert event_subject(done) == done_subject("ab12") == "orchard.events.done.ab12"


def test_an_event_survives_the_wire() -> None:
    event = make_event(
        SandboxDeleted(sandbox_id="s1"),
        id="1",
        source="orchard/test/1",
        campaign="c",
        rollout_id="ab12",
        attempt=2,
        time=datetime(2026, 1, 2, tzinfo=UTC),
    )
    again = decode_event(encode_event(event))
    assert payload(again) == SandboxDeleted(sandbox_id="s1")
    assert encode_event(again) == encode_event(event)


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=4))
def test_a_type_from_the_future_keeps_its_bytes(data: dict[str, object]) -> None:
    raw = msgspec.json.encode(data)
    known = make_event(SandboxDeleted(sandbox_id="s"), id="1", source="s", campaign="c")
    strange = msgspec.structs.replace(known, type="weather.changed", data=msgspec.Raw(raw))
    assert payload(decode_event(encode_event(strange))) == UnknownPayload(raw)


def test_fields_from_the_future_are_ignored_and_damage_is_named() -> None:
    known = make_event(SandboxDeleted(sandbox_id="s"), id="1", source="s", campaign="c")
    newer = msgspec.structs.replace(known, data=msgspec.Raw(b'{"sandbox_id":"s","colour":"red"}'))
    assert payload(newer) == SandboxDeleted(sandbox_id="s")
    damaged = payload(msgspec.structs.replace(known, data=msgspec.Raw(b'{"sandbox_id":7}')))
    assert isinstance(damaged, UnreadablePayload)
    assert damaged.raw == b'{"sandbox_id":7}'
    assert "sandbox.deleted" in damaged.reason
    with pytest.raises(MalformedEvent):
        decode_event(b"\xff not json")


def test_names_of_the_next_version_are_read_and_not_written() -> None:
    reward = Reward(value=1.0, resolved=True, grader="swe-tests")
    written = make_event(reward, id="e1", source="orchard/tests/x", campaign="c1")
    graded = msgspec.structs.replace(written, type="rollout.graded")

    assert written.type == "reward.assigned"
    assert payload(decode_event(encode_event(graded))) == reward
    assert {event_subject(one).rpartition(".00.")[2] for one in (written, graded)} == {
        subject.rpartition(".*.")[2] for subject in type_subjects("c1", written.type)
    }
    assert set(NEXT_NAMES.values()) <= set(EVENT_TYPES), "each stands for a type of this version"
    assert not set(NEXT_NAMES) & set(EVENT_TYPES), "none is written yet"


def test_an_aborted_rollout_has_no_reward_field_at_all() -> None:
    assert "reward" in RolloutFinished.__struct_fields__
    assert not {"reward", "resolved"} & set(RolloutAborted.__struct_fields__)


def test_only_the_agents_own_word_completes_a_rollout() -> None:
    completed = {status for status in ExitStatus if status.status is RolloutStatus.COMPLETED}
    assert completed == {ExitStatus.SUBMITTED, ExitStatus.FINISHED}


def test_a_node_id_depends_on_the_whole_path() -> None:
    root = node_id(None, Role.SYSTEM, "s")
    assert node_id(root, Role.USER, "u") != node_id(None, Role.USER, "u")
    assert node_id(root, Role.USER, "u") == node_id(root, Role.USER, "u")


@pytest.mark.parametrize(
    ("text", "value"), [("2Gi", 2 * 2**30), ("512Mi", 2**29), ("1k", 1000), ("1.5Gi", 3 * 2**29)]
)
def test_memory_quantities(text: str, value: int) -> None:
    assert parse_bytes(text) == value
    assert parse_bytes(format_bytes(value)) == value


def test_quantities_that_are_none() -> None:
    assert parse_cores("500m") == 0.5
    for text in ("", "two", "-1", "1Zi", "0"):
        with pytest.raises(InvalidQuantity):
            parse_bytes(text)


@pytest.mark.parametrize("name", sorted(render()))
def test_the_checked_in_documents_are_current(name: str) -> None:
    assert (DOCUMENTS / name).read_text(encoding="utf-8") == render()[name], "run `make schemas`"


def test_every_event_type_is_a_channel() -> None:
    document = msgspec.json.decode((DOCUMENTS / "asyncapi.json").read_bytes())
    assert document["asyncapi"] == "3.0.0"
    assert set(EVENT_TYPES) < set(document["channels"])
