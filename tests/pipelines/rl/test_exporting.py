"""`orchard rl export` over a real NATS server: the groups that the run's own trainer would train on."""

from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest

from orchard.actions.rl import export_groups
from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.coordinator import RunError, begin
from orchard.pipelines.rl.frugal import FrugalSettings
from orchard.pipelines.rl.loss_settings import Baseline, LossSettings
from orchard.schemas.events import make_event, payload
from orchard.schemas.groups import DropReason, GroupDropped, GroupOutcome, PolicyUpdated
from orchard.storage.blobs import BlobStore
from orchard.streams.publisher import Publisher
from orchard.terminal.console import reporting
from tests.pipelines.rl.written_log import assembled, plan_of, run_settings, whole_group

PLAN = plan_of(run_settings(loss=LossSettings(baseline=Baseline.MEAN)))


@pytest.fixture
def export(connection, tmp_path):
    """The records of a log's groups, and the reasons of those that are skipped."""
    blobs = BlobStore(str(tmp_path / "store"))

    @asynccontextmanager
    async def opened(_name):
        yield connection

    async def exported(events, layout="prime-rl", plan=PLAN, baseline=None):
        await begin(connection, blobs, plan)
        await Publisher(connection).events(events)
        out = tmp_path / "out.jsonl"
        session = SimpleNamespace(blobs=blobs, connection_or_server=opened)
        with reporting() as reporter:
            written, skipped = await export_groups(session, plan.name, out, layout, baseline, reporter)
        records = [msgspec.json.decode(line) for line in out.read_bytes().splitlines()]
        assert written == len(records)
        return records, {drop.group_id: drop.reason for drops in skipped.values() for drop in drops}

    return exported


def told(data):
    return make_event(data, id=str(data), source="orchard/test", campaign=PLAN.name)


async def test_a_group_that_cannot_be_trained_on_is_skipped_and_those_after_it_are_written(export):
    bare = [event for event in whole_group(PLAN, 1) if event.type != "message.appended"]
    stale = GroupDropped(run="run", group_id="run.2", reason=DropReason.STALE)
    log = [*whole_group(PLAN, 0), *bare, *whole_group(PLAN, 2), *whole_group(PLAN, 3), told(stale)]
    records, skipped = await export(log)
    assert [record["group_id"] for record in records] == ["run.0"] * 2 + ["run.3"] * 2
    assert skipped == {"run.1": DropReason.INCOMPLETE, "run.2": DropReason.STALE}


@pytest.mark.parametrize(("layout", "whole"), [("verl", False), ("slime", True)])
async def test_a_member_that_the_trainer_left_out_is_left_out_and_slime_takes_whole_groups(
    export, layout, whole
):
    plan = plan_of(run_settings(bar=BarSettings(size=2, budget=3, stride=3, interval=None)))
    events, lost = whole_group(plan, 0, rewards=(1.0, -1.0, 0.5)), plan.request(0, 2).rollout_id
    update = PolicyUpdated(run="run", version=1, step=1, groups=("run.0",), position=1, left_out=(lost,))
    records, skipped = await export([*events, told(update)], layout, plan)
    if whole:
        assert (records, skipped) == ([], {"run.0": DropReason.INCOMPLETE})
    else:
        assert lost not in {record["rollout_id"] for record in records}
        assert [record["advantage"] for record in records] == pytest.approx([2**-0.5, -(2**-0.5)], rel=1e-5)


@pytest.mark.parametrize(("rewards", "left"), [((1.0, -1.0, 1.0), 2), ((1.0, 1.0, -1.0), 0)])
async def test_a_member_whose_ending_does_not_train_is_left_out_of_a_group_that_none_has_taken(
    export, rewards, left
):
    """The third of three; without it, one of the groups is of one class."""
    plan = plan_of(run_settings(bar=BarSettings(size=2, budget=3, stride=3, interval=None)))
    *events, made = whole_group(plan, 0, rewards=rewards)
    late = plan.request(0, 2).rollout_id
    group = msgspec.structs.replace(payload(made), untrained=(late,))
    made = make_event(group, id=made.id, source="t", campaign="run", subject=made.subject)
    records, skipped = await export([*events, made], "verl", plan)
    assert [record["rollout_id"] for record in records] == [
        plan.request(0, slot).rollout_id for slot in range(left)
    ]
    assert skipped == ({} if left else {"run.0": DropReason.INCOMPLETE})


@pytest.mark.parametrize("keep", [True, False])
async def test_groups_of_one_class_are_written_where_the_run_trains_on_them_and_counted_otherwise(
    export, keep
):
    plan = plan_of(run_settings(keep_degenerate=keep))
    records, skipped = await export(
        [*whole_group(plan, 0, rewards=(1.0, 1.0)), *whole_group(plan, 1)], plan=plan
    )
    assert [record["group_id"] for record in records] == (["run.0"] * 2 if keep else []) + ["run.1"] * 2
    assert skipped == ({} if keep else {"run.0": DropReason.DEGENERATE})


async def test_groups_without_members_are_neither_written_nor_counted(export):
    plan = plan_of(run_settings(keep_degenerate=True))
    log = []
    for prompt, outcome in enumerate((GroupOutcome.IMPOSSIBLE, GroupOutcome.ONE_CLASS)):
        decided = assembled(plan, prompt, [], [])
        group = msgspec.structs.replace(payload(decided), outcome=outcome)
        log.append(make_event(group, id=decided.id, source="t", campaign="run", subject=decided.subject))
    assert await export(log, plan=plan) == ([], {})


async def test_slime_is_not_given_groups_of_unequal_sizes(export, tmp_path):
    plan = plan_of(run_settings(frugal=FrugalSettings(least=2, most=4, stride=2, give_up=4)))
    with pytest.raises(RunError, match="prime-rl or verl"):
        await export(whole_group(plan, 0), "slime", plan)
    assert not (tmp_path / "out.jsonl").exists()
    records, _ = await export([], "verl", plan)
    assert len(records) == 2


async def test_advantages_are_by_the_baseline_of_the_runs_loss(export):
    records, _ = await export(whole_group(PLAN, 0), "verl")
    assert [record["advantage"] for record in records] == [1.0, -1.0]
    with pytest.raises(RunError, match="are `mean`: leave --baseline out"):
        await export([], baseline=Baseline.NORMALIZED)


async def test_a_plan_that_is_too_old_to_say_is_told_of(export, capsys):
    old = msgspec.structs.replace(PLAN, baseline=None)
    records, _ = await export(whole_group(PLAN, 0), "verl", old)
    assert records[0]["advantage"] == pytest.approx(2**-0.5, rel=1e-5)
    assert "--baseline names another way" in " ".join(capsys.readouterr().out.split())
    records, _ = await export([], "verl", old, Baseline.LEAVE_ONE_OUT)
    assert [record["advantage"] for record in records] == [2.0, -2.0]
