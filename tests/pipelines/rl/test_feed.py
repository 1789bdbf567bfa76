"""Groups with their tokens, read from a log."""

from datetime import UTC, datetime

import msgspec
import numpy as np
import pytest

from orchard.pipelines.campaigns.commands import requested_event
from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.feed import Feed
from orchard.pipelines.rl.frugal import FrugalSettings
from orchard.pipelines.rl.sequences import NotSampled, TokenSequence, sequences
from orchard.pipelines.rl.stepping import Limits, Steps, fitting, oldest_version, refusal
from orchard.schemas.events import make_event, payload
from orchard.schemas.groups import DropReason, GroupDropped, GroupOutcome, PolicyUpdated, PromptFailed
from orchard.storage.blobs import BlobStore
from orchard.streams.records import StoredEvent
from tests.pipelines.rl.written_log import (
    assembled,
    conversation,
    finished,
    message,
    plan_of,
    record,
    run_settings,
    whole_group,
)

PLAN = plan_of(run_settings(bar=BarSettings(size=2, budget=6, interval=None)))


def stored(events, first=1):
    now = datetime.now(UTC)
    return [
        StoredEvent(sequence=first + at, subject="", event=event, raw=b"", time=now)
        for at, event in enumerate(events)
    ]


@pytest.fixture
def feed(tmp_path):
    return Feed(PLAN, BlobStore(str(tmp_path)))


async def test_groups_come_in_the_order_of_the_log_with_what_was_sampled(feed):
    events = [*whole_group(PLAN, 3), *whole_group(PLAN, 1)]
    feed.take(stored(events))
    feed.take(stored(events))  # seen again, as after a reconnect: nothing changes
    assert [group.prompt for group in feed.waiting] == [3, 1]
    assert feed.sequences_of == {"run.3": len(events) // 2, "run.1": len(events)}
    for group in feed.waiting:
        rows = await feed.sampled(group)
        assert rows == [sequences(conversation(100 * group.prompt + slot)) for slot in range(2)]


async def test_tokens_in_a_blob_are_read_from_it(feed, tmp_path):
    request = PLAN.request(0, 0)
    records = conversation(7, turns=3)
    blobs = BlobStore(str(tmp_path))
    feed.take(
        stored(
            [
                requested_event(request),
                *(message(request, at, tokens, blobs=blobs) for at, tokens in enumerate(records)),
                finished(request, 1.0),
                assembled(PLAN, 0, [0], [1.0]),
            ]
        )
    )
    (group,) = feed.progress.ready
    assert await feed.sampled(group) == [sequences(records)]


def test_what_the_grader_resolved_is_not_read_from_the_reward(feed):
    solved, rewarded = PLAN.request(0, 0), PLAN.request(0, 1)
    feed.progress.apply(finished(solved, -1.0, resolved=True), 1)
    feed.progress.apply(finished(rewarded, 1.0, resolved=False), 2)
    assert feed.progress.resolved({solved.rollout_id, rewarded.rollout_id}) == {solved.rollout_id}
    assert feed.progress.resolved({rewarded.rollout_id}) == set()


def test_a_pass_rate_counts_what_the_grader_resolved(feed):
    solved, *rewarded = [PLAN.request(0, slot) for slot in range(3)]
    events = [
        finished(solved, -1.0, resolved=True),
        *(finished(request, 1.0, resolved=False) for request in rewarded),
        assembled(PLAN, 0, [0, 1], [-1.0, 1.0]),
    ]
    for sequence, event in enumerate(events):
        feed.progress.apply(event, sequence)
    assert feed.progress.pass_rate(feed.progress.groups) == pytest.approx(1 / 3)


async def test_only_the_accepted_attempt_trains(feed):
    request = PLAN.request(0, 0)
    events = [requested_event(request)]
    for attempt, seed in ((2, 8), (1, 9)):
        events += [
            message(request, at, tokens, attempt=attempt) for at, tokens in enumerate(conversation(seed))
        ]
    feed.take(stored([*events, finished(request, 1.0), assembled(PLAN, 0, [0], [1.0])]))
    (group,) = feed.progress.ready
    assert await feed.sampled(group) == [sequences(conversation(9))]


async def test_what_no_group_can_want_is_forgotten(feed):
    """A rollout that its group left out, those of a group that is done, and late messages of either."""
    first, *events = whole_group(PLAN, 0)
    left_out = PLAN.request(0, 5)
    feed.take(stored([first, requested_event(left_out), message(left_out, 0, conversation(1)[0])]))
    feed.take(stored(events, first=10))
    feed.take(stored([message(left_out, 1, conversation(1)[1])], first=50))
    (group,) = feed.waiting
    assert set(feed._messages) == {(member.rollout_id, 1) for member in group.members}
    feed.done(group)
    feed.take(stored(events, first=10))
    assert feed._messages == {}


def test_a_dropped_group_is_forgotten_whoever_dropped_it(feed):
    """The coordinator drops those of one class, another process those that its teacher cannot score."""
    events = [*whole_group(PLAN, 0, rewards=(1.0, 1.0)), *whole_group(PLAN, 1)]
    for number, reason in enumerate((DropReason.DEGENERATE, DropReason.UNSCORED)):
        drop = GroupDropped(run="run", group_id=f"run.{number}", reason=reason)
        events.append(make_event(drop, id=f"drop.{number}", source="test", campaign="run"))
    feed.take(stored(events))
    assert not feed.waiting
    assert (feed._messages, feed._parents) == ({}, {})


async def test_a_member_without_tokens_is_not_trained_on(feed):
    request = PLAN.request(0, 0)
    feed.take(
        stored(
            [
                requested_event(request),
                message(request, 0, None),
                finished(request, 1.0),
                assembled(PLAN, 0, [0], [1.0]),
            ]
        )
    )
    with pytest.raises(NotSampled, match="return_token_ids"):
        await feed.sampled(feed.progress.ready[0])


def test_groups_that_are_done_dropped_or_of_one_class_do_not_wait(feed):
    events = [event for prompt in range(4) for event in whole_group(PLAN, prompt)]
    events += whole_group(PLAN, 4, rewards=(1.0, 1.0))
    drop = GroupDropped(run="run", group_id="run.1", reason=DropReason.STALE)
    update = PolicyUpdated(run="run", version=1, step=1, groups=("run.0",), position=1)
    for data in (drop, update):
        events.append(make_event(data, id=str(data), source="test", campaign="run"))
    feed.take(stored(events))
    assert [group.group_id for group in feed.waiting] == ["run.2", "run.3"]


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({}, None, ""),
        ({"size": 3}, DropReason.INCOMPLETE, "2 of 3 members"),
        ({"context": 6}, DropReason.INCOMPLETE, "0 of 2 members have an ending that trains"),
        ({"version": 4}, DropReason.STALE, "sampled by version 1, the policy is version 4"),
        ({"oldest": -1}, DropReason.INCOMPLETE, "names no policy version"),
    ],
    ids=str,
)
def test_refusals_name_their_reason(feed, changes, reason, says):
    feed.take(stored(whole_group(PLAN, 0)))
    rows = [[TokenSequence([1] * 9, [0] * 5 + [1] * 4, [0.0] * 9, [-1] * 5 + [2, 2, 1, 1])] for _ in range(2)]
    limits = Limits(staleness=2, context=changes.get("context", 9))
    left = fitting(feed.waiting[0], rows, limits.context)
    asked = {"size": 2, "version": 3, "oldest": oldest_version(left[1])} | changes
    asked.pop("context", None)
    found = refusal(feed.waiting[0], left, limits, **asked)
    assert (found and found.reason) == reason
    assert says in (found.detail if found else "")


async def test_a_member_that_is_left_out_does_not_decide_for_its_group(tmp_path):
    """It is too long, of several sequences, the oldest, and names no version."""
    plan = plan_of(run_settings(bar=BarSettings(size=3, budget=3, interval=None), prompts_per_step=1))
    events = whole_group(plan, 0, version=5, rewards=(1.0, -1.0, 1.0))
    long = record(np.random.default_rng(1), prompt=[1] * 600, version=-1)
    late = plan.request(0, 2)
    events.insert(-2, message(late, 9, long))
    feed = Feed(plan, BlobStore(str(tmp_path)))
    feed.take(stored(events))

    async def publish(event):
        pytest.fail(f"dropped: {event}")

    limits = Limits(staleness=0, context=512, one_sequence=True)
    (chosen,) = await Steps(feed, limits, "test", publish).choose(5)
    assert [member.rollout_id for member in chosen[0].members] == [
        plan.request(0, at).rollout_id for at in (0, 1)
    ]


async def test_only_members_that_train_are_checked(tmp_path):
    """The third is of a version that the run has not made; it costs the group where it is not too long."""
    plan = plan_of(run_settings(bar=BarSettings(size=3, budget=3, interval=None), prompts_per_step=1))
    events = whole_group(plan, 0, rewards=(1.0, -1.0, 1.0))
    foreign = record(np.random.default_rng(1), prompt=[1] * 600, version=7)
    events.insert(-2, message(plan.request(0, 2), 9, foreign))

    def check(row):
        if 7 in row.versions:
            raise NotSampled("a token names policy version 7")

    async def publish(event):
        drops.append(payload(event).detail)
        return 99

    for context, members, drops in ((512, [2], []), (1024, [], [])):
        feed = Feed(plan, BlobStore(str(tmp_path)), check)
        feed.take(stored(events))
        chosen = await Steps(feed, Limits(staleness=0, context=context), "test", publish).choose(0)
        assert [len(group.members) for group, _ in chosen] == members
        assert drops == ([] if members else ["a token names policy version 7"])


@pytest.mark.parametrize("end", ["one class", "aborts"])
async def test_what_a_prompt_left_over_is_there_for_a_later_group_and_then_forgotten(tmp_path, end):
    """Frugal sampling gave prompt 0 up, or it failed; prompt 5, of the same task, takes its rollouts."""
    plan = plan_of(run_settings(frugal=FrugalSettings(least=2, most=4, stride=2, give_up=2, reuse=1)))
    later = next(prompt for prompt in range(5, 10) if plan.task_of(prompt) == plan.task_of(0))
    feed = Feed(plan, BlobStore(str(tmp_path)))
    left, idle = ([*whole_group(plan, prompt)][:-1] for prompt in (0, 1))
    given_up = [(gave_up if end == "one class" else failed)(plan, prompt) for prompt in (0, 1)]
    own = [*whole_group(plan, later)][:-1]
    joined = assembled(plan, later, [0, 1], [1.0, -1.0])
    extra = assembled(plan, 0, [0, 1], [-1.0, -1.0])
    members = (*payload(joined).members, *payload(extra).members)
    group = msgspec.structs.replace(payload(joined), members=members, carried=2)
    joined = make_event(group, id="run.later", source="orchard/test", campaign="run")
    feed.take(stored([*left, given_up[0], *idle, given_up[1], policy(1), *own, joined]))
    (waiting,) = feed.waiting
    expected = [*(sequences(conversation(100 * later + slot)) for slot in (0, 1))]
    expected += [sequences(conversation(slot)) for slot in (0, 1)]
    assert await feed.sampled(waiting) == expected
    feed.take(stored([policy(2), policy(3)], first=100))
    assert await feed.sampled(waiting) == expected, "a group that waits keeps them"
    kept = {name for name, _ in feed._messages}
    assert kept == {member.rollout_id for member in members}, "what no group has is forgotten"
    feed.done(waiting)
    assert not feed._messages


def gave_up(plan, prompt):
    event = assembled(plan, prompt, [], [])
    group = msgspec.structs.replace(payload(event), outcome=GroupOutcome.ONE_CLASS, degenerate=True)
    return make_event(group, id=f"run.gave-up.{prompt}", source="orchard/test", campaign="run")


def failed(plan, prompt):
    data = PromptFailed(
        run="run", prompt=prompt, task_id=plan.task_of(prompt).task_id, causes=("sandbox_died",)
    )
    return make_event(data, id=f"run.failed.{prompt}", source="orchard/test", campaign="run")


def policy(version):
    update = PolicyUpdated(run="run", version=version, step=version, groups=(), position=1)
    return make_event(update, id=f"run.policy.{version}", source="orchard/test", campaign="run")
