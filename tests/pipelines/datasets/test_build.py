"""A dataset is a pure function of the log, the code and the configuration."""

import asyncio
import hashlib
import os
import sys
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.comparison import compare, find_row, origin
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.exporters.interface import plain
from orchard.pipelines.datasets.manifest import Manifest, read_manifest, write_manifest
from orchard.pipelines.datasets.rows import Row, read_rows, row_digest, rows_sha256
from orchard.pipelines.datasets.settings import (
    CandidateSource,
    DatasetSettings,
    Filters,
    MixturePart,
    PassRateCondition,
    Selection,
    Values,
    config_hash,
)
from orchard.pipelines.datasets.shards import ShardMaker, ShardWork
from orchard.pipelines.datasets.tokenization import ChatTokenizer
from orchard.schemas.events import payload
from orchard.schemas.identity import canonical
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.messages import MessageNode, TokenRecord
from orchard.schemas.notes import RolloutNoted
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.positions import Position
from orchard.schemas.protection import Protected
from orchard.storage.reader import open_tables
from orchard.storage.upkeep.maintenance import rebuild_derived, rebuild_events
from orchard.streams.connection import Connection
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.trajectory_log import Author, llm_call


def settings(tokenizer: str, **changes: object) -> DatasetSettings:
    made = DatasetSettings(name="test", tokenizer=tokenizer, values=Values(annotator="teacher"))
    return msgspec.structs.replace(made, **changes)


def a_campaign(author, rollouts: int = 12) -> list:
    """Every third rollout unresolved and annotated: it rises at steps 1 and 2 and falls at the edit."""
    events = []
    for sample in range(rollouts):
        commands = [f"ls {sample}", "grep -n bug a.py", "cat a.py", "sed -i s/a/b/ a.py", "submit"]
        mine = author.rollout(
            sample, commands, resolved=sample % 3 != 2, task=f"t{sample % 4}", repo=f"r{sample % 2}"
        )
        events += mine
        if sample % 3 == 2:
            events.append(author.annotated(mine, {0: 0.4, 2: 0.7, 3: 0.2, 4: 0.1}, 5))
    return events


def turn_text(step: int, command: str) -> str:
    """What the assistant of such a campaign generates."""
    call = f'{{"name": "bash", "arguments": {{"command":"{command}"}}}}'
    return f"Step {step}.\n<tool_call>\n{call}\n</tool_call><|im_end|>"


@pytest.mark.long
async def test_equal_hashes_from_live_and_rebuilt_stores_in_any_processes_and_batches(
    keep, author, tokenizer: str, connection: Connection, tmp_path: Path
) -> None:
    live = await keep(a_campaign(author))
    rebuilt = await keep(store="again")
    await rebuild_events(rebuilt, connection)
    rebuild_derived(rebuilt)
    config = settings(tokenizer)
    one = build(live, config, tmp_path / "one")
    two = build(rebuilt, config, tmp_path / "two", processes=2, shard_trajectories=3)
    three = build(live, config, tmp_path / "three", shard_trajectories=1)
    assert one.rows == 12
    assert one.sha256 == two.sha256 == three.sha256
    assert len(two.shards) == 4 and len(three.shards) == 12
    assert rows_sha256(row_digest(row) for row in read_rows(tmp_path / "two")) == one.sha256
    assert compare(tmp_path / "one", tmp_path / "two").equal


@pytest.mark.long
async def test_later_events_change_nothing_of_an_earlier_range(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    store = await keep(a_campaign(author, 6))
    before = build(store, settings(tokenizer), tmp_path / "before")
    unresolved = author.rollout(50, ["ls", "submit"], resolved=False)
    await keep([*author.rollout(40, ["ls", "submit"], resolved=True), *unresolved])
    again = build(store, settings(tokenizer), tmp_path / "again", as_of=before.range.last)
    now = build(store, settings(tokenizer), tmp_path / "now")
    assert again.sha256 == before.sha256
    assert now.rows == before.rows + 1
    assert compare(tmp_path / "before", tmp_path / "now").only_b == [
        find_row(tmp_path / "now", "6").example_id
    ]
    with pytest.raises(Exception, match="complete up to"):
        build(store, settings(tokenizer), tmp_path / "future", as_of=now.range.last + 1)


@pytest.mark.long
async def test_a_range_is_the_last_sequence_of_each_event_stream(
    connection: Connection, keep, tokenizer, tmp_path
) -> None:
    await declare(connection, NatsSettings(event_streams=4), [])
    author = Author("wide", streams=4)
    store = await keep(a_campaign(author, 6))
    before = build(store, settings(tokenizer), tmp_path / "before")
    assert isinstance(before.range.last, tuple) and len(before.range.last) == 4
    await keep(author.rollout(40, ["ls", "submit"], resolved=True))
    assert build(store, settings(tokenizer), tmp_path / "now").rows == before.rows + 1
    for number, made in enumerate((store, await keep(store="other"))):
        out = tmp_path / f"again-{number}"
        assert build(made, settings(tokenizer), out, as_of=before.range.last).sha256 == before.sha256
        assert read_manifest(out).range == before.range


@pytest.mark.long
async def test_only_rise_segments_of_unresolved_trajectories_train_and_the_rest_is_cut(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    store = await keep(a_campaign(author, 3))
    build(store, settings(tokenizer), tmp_path / "out")
    chat = ChatTokenizer.load(tokenizer)
    *resolved, unresolved = read_rows(tmp_path / "out")
    assert [row.resolved for row in resolved] == [True, True]
    assert resolved[0].trained_turns == (0, 1, 2, 3, 4)
    assert unresolved.trained_turns == (1, 2)
    assert [(run.first, run.last) for run in unresolved.segments] == [(1, 2)]
    assert unresolved.turns == 3
    trained = chat.decode(unresolved.input_ids[unresolved.loss_mask == 1].tolist())
    said = [turn_text(1, "grep -n bug a.py"), turn_text(2, "cat a.py")]
    assert trained == "".join(said)
    whole = chat.decode(unresolved.input_ids.tolist())
    assert whole.endswith(said[-1]) and "sed" not in whole and "Step 0." in whole


@pytest.mark.long
async def test_a_stopped_build_goes_on_with_its_own_range(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    store = await keep(a_campaign(author))
    config, out = settings(tokenizer), tmp_path / "out"

    class Stopped(Exception):
        pass

    def stop(done: int, _total: int) -> None:
        if done >= 6:
            raise Stopped

    with pytest.raises(Stopped):
        build(store, config, out, shard_trajectories=3, progress=stop)
    with pytest.raises(DatasetError, match="no finished dataset"):
        read_manifest(out)
    await keep(author.rollout(77, ["ls", "submit"], resolved=True))
    made = []
    original = ShardMaker.make
    ShardMaker.make = lambda self, index, found: made.append(index) or original(self, index, found)  # type: ignore[method-assign]
    try:
        finished = build(store, config, out, shard_trajectories=3)
    finally:
        ShardMaker.make = original  # type: ignore[method-assign]
    assert made == [2, 3]
    assert finished.rows == 12
    assert build(store, config, out) == finished
    assert sorted(path.name for path in out.iterdir()) == [
        "manifest.json",
        *[s.file for s in finished.shards],
    ]
    with pytest.raises(DatasetError, match="another dataset"):
        build(store, msgspec.structs.replace(config, name="other"), out)


@pytest.mark.long
async def test_what_a_build_leaves_that_is_killed_after_its_manifest_the_next_command_removes(
    keep, author, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await keep(a_campaign(author, 3))

    class Killed(Exception):
        pass

    def write_and_end(out: Path, manifest: Manifest) -> None:
        write_manifest(out, manifest)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("orchard.pipelines.datasets.build.write_manifest", write_and_end)
        with pytest.raises(Killed):
            build(store, settings(tokenizer), tmp_path / "out")
    assert list((tmp_path / "out").glob(".report-*"))
    build(store, settings(tokenizer), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "rows-00000.parquet",
    ]


@pytest.mark.long
async def test_filters_are_counted(keep, author, tokenizer: str, tmp_path: Path) -> None:
    events = [
        *author.rollout(0, ["ls", "submit"], resolved=True),
        *author.rollout(1, ["ls", "submit"], resolved=True, tool="python"),
        *author.rollout(2, ["x" * 3000, "submit"], resolved=True),
        *author.rollout(3, ["ls"], resolved=False),
        *author.rollout(4, ["ls"], resolved=True, exit_status=ExitStatus.STEP_LIMIT),
        *author.rollout(5, ["ls"], resolved=True, kind=ModelKind.ORACLE),
    ]
    falling = author.rollout(6, ["ls", "cat a", "submit"], resolved=False)
    submitting = author.rollout(7, ["ls", "cat a", "submit"], resolved=False)
    other = author.rollout(8, ["ls", "cat a", "submit"], resolved=False)
    events += [
        *falling,
        author.annotated(falling, {0: 0.3, 1: 0.2, 2: 0.1}, 3),
        *submitting,
        author.annotated(submitting, {0: 0.3, 1: 0.1, 2: 0.19}, 3),
        *other,
        author.annotated(other, {0: 0.6, 1: 0.3, 2: 0.1, 3: 0.1}, 4),
    ]
    store = await keep(events)
    made = build(store, settings(tokenizer, filters=Filters(max_tokens=1000)), tmp_path / "out")
    assert made.rows == 2
    assert made.counts == {
        "graded": 8,
        "resolved": 4,
        "unresolved": 4,
        "unresolved_without_values": 1,
        "unresolved_without_segment": 2,
        "selected": 5,
        "not_selected": 0,
        "dropped_undefined_tool": 1,
        "dropped_too_long": 1,
        "dropped_values_of_other_steps": 1,
        "masked_turns": 0,
        "stored_turns": 0,
    }
    oracle = CandidateSource(model_kinds=(ModelKind.ORACLE,), truncated=False)
    assert build(store, settings(tokenizer, source=oracle), tmp_path / "oracle").rows == 1
    nothing = CandidateSource(campaigns=("other",))
    with pytest.raises(
        DatasetError, match=r"source.campaigns: nothing .* campaign 'other' \(there is 'demo'\)"
    ):
        build(store, settings(tokenizer, source=nothing), tmp_path / "nothing")
    short = settings(tokenizer, filters=Filters(max_tokens=1))
    with pytest.raises(DatasetError, match=r"left of 8 graded rollouts \(.*\d too long"):
        build(store, short, tmp_path / "short")


@pytest.mark.long
async def test_a_rollout_whose_answer_did_not_come_trains_only_where_that_is_asked_for(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    late = author.rollout(1, ["ls", "submit"], resolved=True, exit_status=ExitStatus.UNANSWERED)
    store = await keep(author.rollout(0, ["ls", "submit"], resolved=True) + late)
    made = build(store, settings(tokenizer), tmp_path / "without")
    assert (made.rows, made.counts["dropped_unanswered"]) == (1, 1)
    told = settings(tokenizer, source=CandidateSource(unanswered=True))
    assert build(store, told, tmp_path / "with").rows == 2


@pytest.mark.long
async def test_a_reward_by_published_rules_trains_only_where_that_is_asked_for(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    rest = {"resolved": True, "tests": {"test_a": "PASSED"}}
    forgeable = author.rollout(1, ["ls", "submit"], grader="swe-tests-published", **rest)
    store = await keep(author.rollout(0, ["ls", "submit"], **rest) + forgeable)
    made = build(store, settings(tokenizer), tmp_path / "without")
    assert (made.rows, made.counts["dropped_published_rules"]) == (1, 1)
    told = settings(tokenizer, source=CandidateSource(published_rules=True))
    assert build(store, told, tmp_path / "with").rows == 2


@pytest.mark.long
async def test_rewards_below_a_minimum_label_are_left_out_and_the_label_is_in_the_row(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    labels = (None, Protected.BIT, Protected.VALUE, Protected.FORGEABLE)
    rollouts = [
        author.rollout(sample, ["ls", "submit"], resolved=True, protected=label)
        for sample, label in enumerate(labels)
    ]
    store = await keep([event for rollout in rollouts for event in rollout])
    every = build(store, settings(tokenizer), tmp_path / "every")
    assert tuple(row.protected for row in read_rows(tmp_path / "every")) == labels
    assert "without_label" not in every.counts
    shard = tmp_path / "every" / every.shards[0].file
    pq.write_table(pq.read_table(shard).drop(["protected"]), shard)
    assert {row.protected for row in read_rows(tmp_path / "every")} == {None}, "a dataset of before"
    minimum = settings(tokenizer, source=CandidateSource(min_protected=Protected.BIT))
    made = build(store, minimum, tmp_path / "least")
    assert [row.protected for row in read_rows(tmp_path / "least")] == ["bit", "value"]
    assert (made.counts["dropped_below_min_protected"], made.counts["without_label"]) == (2, 1)


@pytest.mark.long
async def test_names_that_nothing_has_are_told_with_the_nearest_or_refused_where_nothing_is_left(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    made = author.rollout(0, ["ls", "submit"], resolved=True)
    note = author.event(RolloutNoted(author="Ada", labels=("lazy",)), made[0].rollout_id, None)
    store = await keep([*made, note])
    campaign = made[0].campaign
    source = CandidateSource(
        campaigns=(campaign, "dmo", *(f"x{n}" for n in range(4))), without_human_labels=("lazzy",)
    )
    part = MixturePart(weight=1.0, campaigns=(campaign, "dmo"))
    told: list[str] = []
    build(store, settings(tokenizer, source=source, mixture=(part,)), tmp_path / "made", warn=told.append)
    assert told[0].startswith(
        "source.campaigns: nothing in the store has the campaign 'dmo' (did you mean 'demo'?), 'x0'"
    )
    assert told[0].endswith(" and 2 more")
    assert told[1] == (
        "mixture[1].campaigns: nothing in the store has the campaign 'dmo' (did you mean 'demo'?)"
    )
    assert "source.without_human_labels: " in told[2] and "did you mean 'lazy'?" in told[2]
    assert told[3:] == ["values.annotator: nothing in the store has the annotator 'teacher' (there is none)"]
    for changes, key in (
        ({"source": CandidateSource(models=("gone",))}, "source.models"),
        ({"source": CandidateSource(human_labels=("lazzy",))}, "source.human_labels"),
        ({"pass_rate": PassRateCondition(campaigns=("gone",))}, "pass_rate.campaigns"),
        ({"mixture": (part, MixturePart(weight=1.0, task_sources=("gone",)))}, r"mixture\[2\].task_sources"),
    ):
        with pytest.raises(DatasetError, match=f"^{key}: nothing .*: correct the name, or leave"):
            build(store, settings(tokenizer, **changes), tmp_path / "refused")


@pytest.mark.long
async def test_labels_and_scores_of_people_choose_rollouts_and_are_in_the_row(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    rollouts = [author.rollout(sample, ["ls", "submit"], resolved=True) for sample in range(4)]
    said = ({"labels": ("lazy",), "score": 0.0}, {"labels": ("good", "odd"), "score": 0.75}, {"score": 0.25})
    notes = [
        author.event(RolloutNoted(author="Ada", **one), made[0].rollout_id, None)
        for made, one in zip(rollouts, said, strict=False)
    ]
    store = await keep([event for made in rollouts for event in made] + notes)
    build(store, settings(tokenizer), tmp_path / "every")
    rows = {row.sample: row for row in read_rows(tmp_path / "every")}
    assert [rows[n].human_labels for n in range(4)] == [("lazy",), ("good", "odd"), (), ()]
    assert [rows[n].human_score for n in range(4)] == [0.0, 0.75, 0.25, None]
    assert plain(rows[1])["human_labels"] == ["good", "odd"] and plain(rows[0])["human_score"] == 0.0
    for source, samples, counts in (
        (
            {"without_human_labels": ("lazy", "no")},
            [1, 2, 3],
            {"dropped_human_label": 1, "human_labels_unmatched": 1},
        ),
        ({"human_labels": ("good", "lazy")}, [0, 1], {"dropped_without_human_label": 2}),
        (
            {"min_human_score": 0.5},
            [1],
            {"dropped_below_min_human_score": 2, "dropped_without_human_score": 1},
        ),
    ):
        chosen = settings(tokenizer, source=CandidateSource(**source))
        assert config_hash(chosen, "t") != config_hash(settings(tokenizer), "t")
        made = build(store, chosen, tmp_path / next(iter(source)))
        assert [row.sample for row in read_rows(tmp_path / next(iter(source)))] == samples
        assert counts.items() <= made.counts.items()


def test_a_label_counts_in_the_digest_of_a_row_that_has_one() -> None:
    facts = dict.fromkeys(Row.__struct_fields__, 0)
    arrays = {"input_ids": np.zeros(1, np.int32), "loss_mask": np.zeros(1, np.int8), "images": ()}
    younger = {"protected": None, "human_labels": (), "human_score": None}
    row = Row(**{**facts, **arrays, **younger})  # type: ignore[arg-type]
    others = {name: 0 for name in facts if name not in (*arrays, *younger)}
    before = hashlib.sha256(canonical(others) + b"\n" + bytes(5)).digest()
    assert row_digest(row) == before, "as it was before there were labels"
    assert row_digest(msgspec.structs.replace(row, protected=Protected.BIT)) != before
    assert row_digest(msgspec.structs.replace(row, human_score=0.0)) != before


@pytest.mark.long
async def test_bad_turns_can_stay_as_context(keep, author, tokenizer: str, tmp_path: Path) -> None:
    store = await keep(author.rollout(0, ["ls", "submit"], resolved=True, tool="python"))
    masked = settings(tokenizer, filters=Filters(bad_turns="mask"))
    with pytest.raises(DatasetError, match="1 fully masked"):
        build(store, masked, tmp_path / "out")


@pytest.mark.long
async def test_a_budget_takes_so_many_of_each(keep, author, tokenizer: str, tmp_path: Path) -> None:
    store = await keep(a_campaign(author))
    made = build(
        store,
        settings(tokenizer, selection=Selection(resolved=3, unresolved=2)),
        tmp_path / "out",
        processes=1,
    )
    assert (made.rows, made.resolved, made.counts["not_selected"]) == (5, 3, 7)


@pytest.mark.long
async def test_stored_token_ids_win_where_they_are_this_tokenizers(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    chat = ChatTokenizer.load(tokenizer)
    text = turn_text(0, "ls")
    letters = tuple(token for letter in text[:7] for token in chat.tokenizer.encode(letter))
    sampled = letters + tuple(chat.tokenizer.encode(text[7:]))
    assert list(sampled) != chat.tokenizer.encode(text) and chat.decode(sampled) == text
    records = {0: TokenRecord(ids=sampled), 1: TokenRecord(ids=(5, 6, 7))}
    store = await keep(
        author.rollout(0, ["ls", "submit"], resolved=True, tokens=lambda step, _: records[step])
    )
    build(store, settings(tokenizer), tmp_path / "out")
    (row,) = read_rows(tmp_path / "out")
    assert row.stored_turns == 1
    assert tuple(row.input_ids[row.loss_mask == 1][: len(sampled)]) == sampled
    ignoring = build(store, settings(tokenizer, stored_tokens=False), tmp_path / "without")
    assert ignoring.counts["stored_turns"] == 0


@pytest.mark.long
async def test_an_end_mark_that_a_text_only_teacher_did_not_write_does_not_train(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    """Its second answer was cut by `max_tokens`: the text is the same, and its end is context."""
    whole = author.rollout(0, ["ls", "cat a.py", "submit"], resolved=True)
    limited = author.rollout(1, ["ls", "cat a.py", "submit"], resolved=True)
    said = [event for event in limited if isinstance(node := payload(event), MessageNode) and node.tool_calls]
    call = llm_call(2, node=payload(said[1]).node_id, finish_reason="length")
    at = limited.index(said[1]) + 1
    store = await keep(whole + limited[:at] + [author.event(call, said[1].rollout_id)] + limited[at:])
    build(store, settings(tokenizer), tmp_path / "out")
    first, second = sorted(read_rows(tmp_path / "out"), key=lambda row: row.sample)
    end = ChatTokenizer.load(tokenizer).tokenizer.eos_token_id
    assert first.input_ids.tolist() == second.input_ids.tolist()
    ends = [at for at in first.input_ids.nonzero()[0] if first.input_ids[at] == end and first.loss_mask[at]]
    assert len(ends) == 3
    assert (first.loss_mask != second.loss_mask).nonzero()[0].tolist() == [ends[1]]


@pytest.mark.long
async def test_a_turn_without_a_word_trains_nothing(keep, author, tokenizer: str, tmp_path: Path) -> None:
    """What its conversation shows in its place, the model never said."""
    messages = [
        {"role": "user", "content": "Repair it."},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "Call a tool."},
        {"role": "assistant", "content": "Done.", "tool_calls": [BASH_CALL]},
        {"role": "tool", "content": "ok", "tool_call_id": "c1"},
    ]
    store = await keep(author.rollout(0, [], resolved=True, messages=messages))
    build(store, settings(tokenizer, filters=Filters(bad_turns="mask")), tmp_path / "out")
    (row,) = read_rows(tmp_path / "out")
    trained = ChatTokenizer.load(tokenizer).decode(row.input_ids[row.loss_mask == 1].tolist())
    assert row.trained_turns == (1,) and trained.startswith("Done.")


BASH_CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
REFUSES = (
    "{%- for m in messages -%}{%- if 't3' in m.content -%}{{ raise_exception('no t3') }}{%- endif -%}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


@pytest.mark.long
async def test_an_example_that_the_template_refuses_is_dropped_and_counted(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    strict = AutoTokenizer.from_pretrained(tokenizer)
    strict.chat_template = REFUSES
    strict.save_pretrained(str(tmp_path / "strict"))
    store = await keep(a_campaign(author))
    made = build(store, settings(str(tmp_path / "strict")), tmp_path / "out")
    assert (made.rows, made.counts["dropped_template_refuses"]) == (9, 3)
    assert {row.task_id for row in read_rows(tmp_path / "out")} == {"t0", "t1", "t2"}


@pytest.mark.long
async def test_a_row_leads_back_to_its_events(keep, author, tokenizer: str, tmp_path: Path) -> None:
    store = await keep(a_campaign(author, 3))
    made = build(store, settings(tokenizer), tmp_path / "out")
    row = find_row(tmp_path / "out", "2")
    assert find_row(tmp_path / "out", row.example_id[:10]).example_id == row.example_id
    with open_tables(store) as tables:
        events = origin(tables, row, Position.of(made.range.last))
    kinds = [event[1] for event in events]
    assert kinds[:2] == ["rollout.requested", "rollout.started"]
    assert {"message.appended", "rollout.finished", "value.annotated"} < set(kinds)
    assert row.done_sequence in {event[0] for event in events} and row.value_sequence in {
        event[0] for event in events
    }
    with pytest.raises(DatasetError, match="no row is"):
        find_row(tmp_path / "out", "nothing")


async def test_a_shard_maker_needs_nothing_but_its_job(keep, author, tokenizer: str, tmp_path: Path) -> None:
    store = await keep(a_campaign(author, 3))
    job = ShardWork(store=store, as_of=10, out=tmp_path, settings=settings(tokenizer))
    report = ShardMaker(job).make(0, [])
    assert (report.rows, report.digests) == (0, [])


BUILDER = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
import msgspec
from orchard.pipelines.datasets.shards import ShardWork, start_process

if __name__ == "__main__":
    job = msgspec.json.decode(sys.argv[1], type=ShardWork, dec_hook=lambda kind, value: kind(value))
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=start_process, initargs=(job,))
    print(pool.submit(os.getpid).result(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.long
async def test_a_build_that_is_killed_leaves_no_process(keep, author, tokenizer: str, tmp_path: Path) -> None:
    store = await keep(a_campaign(author, 3))
    job = ShardWork(store=store, as_of=10, out=tmp_path, settings=settings(tokenizer))
    script = tmp_path / "builder.py"
    script.write_text(BUILDER)
    command = [sys.executable, str(script), msgspec.json.encode(job, enc_hook=str).decode()]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    builder = await asyncio.create_subprocess_exec(*command, **pipes, env=environment)
    assert builder.stdout is not None
    made = psutil.Process(int(await builder.stdout.readline()))
    builder.kill()
    await builder.wait()
    assert psutil.wait_procs([made], timeout=60) == ([made], [])
