"""Sequences and positions over event streams, and the stream of a rollout."""

import pytest

from orchard.schemas.identity import rollout_id, rollout_stream
from orchard.schemas.positions import START, Position, own_sequence, sequence_in, stream_of
from orchard.schemas.subjects import answered_subject, done_subject, event_stream, started_subject
from orchard.streams.names import EVENTS, known_subject, stored_subject, stream_name, stream_number, taken_by


def test_an_id_alone_names_the_stream_of_its_rollout() -> None:
    ids = [rollout_id("c", "t", "h", "m", sample, 4) for sample in range(40)]
    assert {rollout_stream(one) for one in ids} == {0, 1, 2, 3}
    assert [one[:24] for one in ids] == [rollout_id("c", "t", "h", "m", sample) for sample in range(40)]
    for other in (
        "",
        "r-1",
        f"{ids[0][:24]}-0",
        f"{ids[0][:24]}-16",
        f"{ids[0][:24]}-01",
        f"x{ids[0][:23]}-1",
    ):
        assert rollout_stream(other) == 0


def test_fences_of_a_rollout_are_in_its_stream_and_verdicts_in_the_first() -> None:
    rollout = "0" * 24 + "-3"
    assert event_stream(done_subject(rollout), None) == event_stream(started_subject(rollout), None) == 3
    assert event_stream("orchard.events.demo.00.message.appended", rollout) == 3
    assert event_stream(answered_subject("judge", rollout), rollout) == 0
    assert event_stream("orchard.events.demo.00.campaign.submitted", None) == 0


@pytest.mark.parametrize("stream", [0, 1, 15])
def test_streams_share_no_subject(stream: int) -> None:
    stored = stored_subject("orchard.events.done.r", stream)
    assert taken_by(stored) == stream and known_subject(stored, stream) == "orchard.events.done.r"
    assert stream_number(stream_name(stream)) == stream
    assert taken_by("orchard.work.x") is None and stream_number("ORCHARD_WORK") is None
    assert stream_name(0) == EVENTS and stored_subject("orchard.events.>", 0) == "orchard.events.>"


def test_a_position_is_the_last_sequence_of_each_stream() -> None:
    five = sequence_in(2, 5)
    assert (stream_of(five), own_sequence(five)) == (2, 5)
    position = Position.up_to([7, five])
    assert str(position) == "7,0,5" and Position.parse("7,0,5") == position == Position.of(position.plain)
    assert position.covers(7) and position.covers(five) and not position.covers(8)
    assert not position.covers(sequence_in(1, 1)) and not position.covers(sequence_in(3, 1))
    assert position.reaches(Position.of(7)) and not Position.of(7).reaches(position)
    assert position.joined(Position.of(9)) == Position.up_to([9, five])
    assert position.common(Position.of(9)) == Position.of(7)
    assert position.events == 12


def test_a_position_in_one_stream_is_a_number() -> None:
    assert (
        Position.of(7).plain == 7 and str(Position.of(7)) == "7" and Position.of(7).sql() == "sequence <= 7"
    )
    assert not START and Position.of(0) == START and START.plain == 0
