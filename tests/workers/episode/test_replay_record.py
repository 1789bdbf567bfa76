"""What a trace recalls of a record, and which attempts may share one."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.schemas.blobs import INLINE_LIMIT, BlobRef
from orchard.schemas.campaigns import Budget, ModelSpec, RolloutRequest, TaskRef, Timeouts
from orchard.schemas.events import AttemptInherited, encode_event, make_event
from orchard.schemas.llm_calls import LLMCall, ModelKind, Usage
from orchard.schemas.messages import MessageNode, Role, TokenRecord, ToolCall, VersionRun, node_id
from orchard.schemas.replay_pointers import ReplayPointer
from orchard.storage.blobs import BlobStore
from orchard.streams.records import StoredEvent, stored_event
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.episode.replay_record import record_of, replay_key
from orchard.workers.episode.totals import Totals
from orchard.workers.harnesses import fingerprint, get_harness
from orchard.workers.harnesses.interface import Episode
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings
from tests.tiny_tasks import tiny_task
from tests.workers.conftest import Endpoint, SubprocessMachine

LS = ToolCall(id="1", name="bash", arguments='{"command":"ls"}')
TOKENS = TokenRecord(ids=(5, 6), logprobs=(-0.5, -0.25), versions=(VersionRun(start=0, version=3),))
REQUEST = RolloutRequest(
    rollout_id="0" * 24,
    campaign="demo",
    task=TaskRef(task_id="t", source="s", repo="r", blob=BlobRef(sha256="0" * 64, size=1)),
    harness="mini-swe-agent",
    model=ModelSpec(name="m", temperature=1.0),
    sample=0,
)


class Log:
    """What traces publish, as the stream would hold it."""

    def __init__(self, store: Path) -> None:
        self.blobs = BlobStore(store)
        self.stored: list[StoredEvent] = []
        self.published: list[msgspec.Struct] = []

    def trace(self) -> MessageTree:
        """Of one more attempt."""
        self.published = []

        async def publish(data: msgspec.Struct) -> None:
            self.published.append(data)
            number = len(self.stored) + 1
            event = make_event(data, id=str(number), source="t", campaign="demo", rollout_id="0" * 24)
            self.stored.append(stored_event(number, "s", event.time, encode_event(event)))

        return MessageTree(publish, self.blobs)

    def replaying(self, attempt: int = 1, rollout: str = "0" * 24) -> MessageTree:
        """Of an attempt that has the record of all that was published so far."""
        trail = ReplayPointer(attempt=attempt, replay_key="k", events=())
        record = record_of(rollout, trail, list(self.stored), self.blobs)
        trace = self.trace()
        trace.replay(record)
        return trace

    @property
    def told(self) -> AttemptInherited:
        """What the last attempt says of its inheritance, once."""
        (told,) = (data for data in self.published if isinstance(data, AttemptInherited))
        return told


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "store")


def ran(output: str, seconds: float = 0.5, returncode: int = 0) -> CommandOutcome:
    return CommandOutcome(output=output, returncode=returncode, seconds=seconds)


def said(text: str, *calls: ToolCall, **more: Any) -> Completion:
    usage = Usage(prompt_tokens=100, completion_tokens=10)
    return Completion(text=text, tool_calls=calls, usage=usage, cost_usd=0.5, seconds=2.0, **more)


async def begun(trace: MessageTree) -> str:
    return await trace.user(await trace.system("be good"), "do it")


async def test_reasoning_of_a_recorded_answer_goes_back_under_its_name_in_the_first_call(
    log: Log, endpoint: Endpoint, models: ModelClient
) -> None:
    trace = log.trace()
    answer = said("ok", reasoning="so", reasoning_field="reasoning", endpoint="default")
    await trace.answered(await begun(trace), answer)
    endpoint.says("next")
    trace = log.replaying()
    episode = Episode(
        task=tiny_task(1),
        machine=SubprocessMachine(),
        model=models,
        student=ModelSpec(name="m"),
        trace=trace,
        budget=Budget(),
        timeouts=Timeouts(),
        seed=1,
    )
    leaf, _ = await episode.ask(await begun(trace), ())
    assert endpoint.requests == []
    await episode.ask(await trace.user(leaf, "go on"), ())
    assert endpoint.requests[0]["messages"][2] == {"role": "assistant", "content": "ok", "reasoning": "so"}


async def test_an_answer_is_adopted_as_it_was_sampled(log: Log) -> None:
    trace = log.trace()
    answer = await trace.answered(
        await begun(trace), said("ok", LS, reasoning="so", tokens=TOKENS, finish_reason="tool_calls")
    )
    first = [data for data in log.published if isinstance(data, MessageNode)]

    trace = log.replaying()
    recalled = await trace.recalled(await begun(trace))
    assert recalled is not None
    node, completion = recalled
    assert node == answer
    assert (completion.tool_calls, completion.finish_reason, completion.cost_usd) == (
        (LS,),
        "tool_calls",
        0.5,
    )
    assert log.published == [msgspec.structs.replace(one, inherited_from=1) for one in first]
    assert isinstance(log.published[-1], MessageNode) and log.published[-1].tokens == TOKENS
    assert trace.own == Totals()
    assert trace.totals == Totals(
        turns=1,
        calls=1,
        prompt=100,
        completion=10,
        usd=0.5,
        seconds_llm=2.0,
        model_kind=ModelKind.MODEL,
    )
    assert await trace.recalled(answer) is None  # nothing follows it in the record
    assert (log.told.turns, log.told.messages, log.told.leaf, log.told.from_attempt) == (1, 3, answer, 1)


async def test_an_answer_keeps_the_name_that_an_earlier_version_gave_it(log: Log) -> None:
    """Names of nodes had no reasoning then; what follows one is found under that name."""
    trace = log.trace()
    root = await begun(trace)
    answer = await trace.answered(root, said("ok", LS, reasoning="so"))
    result = await trace.result(answer, LS, "a", ran("a"))
    older = node_id(root, Role.ASSISTANT, "ok", (LS,))
    after = node_id(older, Role.TOOL, "a", (), LS.id)
    for number, stored in enumerate(log.stored):
        raw = stored.raw.replace(answer.encode(), older.encode()).replace(result.encode(), after.encode())
        log.stored[number] = stored_event(stored.sequence, stored.subject, stored.time, raw)

    trace = log.replaying()
    recalled, _ = await trace.recalled(await begun(trace)) or ("", None)
    assert recalled == older
    assert await trace.result(recalled, LS, "a", ran("a")) == after


async def test_an_answer_and_its_cost_are_in_the_log_together_or_not_at_all(log: Log) -> None:
    """Whichever event of an attempt is its last: what has a cost in the log is not asked again, and what is
    not asked again has a cost."""
    trace = log.trace()
    root = await begun(trace)
    before = len(log.stored)
    await trace.answered(root, said("ok", LS, tokens=TOKENS, reasoning="so"))
    written = log.stored[:]
    for length in range(len(written) + 1):
        log.stored = written[:length]
        paid = [stored for stored in log.stored if stored.event and stored.event.type == "llm.called"]
        trace = log.replaying()
        recalled = await trace.recalled(await begun(trace))
        assert (recalled is not None) == bool(paid) == (length > before)
        if recalled is not None:
            assert (recalled[1].tokens, recalled[1].reasoning, recalled[1].cost_usd) == (TOKENS, "so", 0.5)


async def test_times_may_differ_and_the_recorded_ones_stay(log: Log) -> None:
    trace = log.trace()
    answer = await trace.answered(await begun(trace), said("ok", LS))
    result = await trace.result(answer, LS, "Ran 2 tests in 0.001s", ran("Ran 2 tests in 0.001s"))
    await trace.answered(result, said("done"))

    trace = log.replaying()
    answer, _ = await trace.recalled(await begun(trace)) or ("", None)
    again = await trace.result(answer, LS, "Ran 2 tests in 0.9s", ran("Ran 2 tests in 0.9s", seconds=0.9))
    assert again == result
    assert trace.totals.seconds_commands == 0.5  # budgets count what the record says
    assert await trace.recalled(again) is not None


@pytest.mark.parametrize(
    ("shown", "outcome", "what"),
    [
        ("b", ran("b"), "printed other things"),
        ("a", ran("a", returncode=1), "returned 1 where 0 is recorded"),
        ("a", ran("a" * 3), "printed other things"),  # shown alike, since it is cut
    ],
)
async def test_the_first_difference_ends_it(log: Log, shown: str, outcome: CommandOutcome, what: str) -> None:
    trace = log.trace()
    answer = await trace.answered(await begun(trace), said("ok", LS))
    result = await trace.result(answer, LS, "a", ran("a"))
    await trace.answered(result, said("done"))

    trace = log.replaying()
    answer, _ = await trace.recalled(await begun(trace)) or ("", None)
    result = await trace.result(answer, LS, shown, outcome)
    assert what in log.told.divergence
    assert log.told.leaf == answer
    last = log.published[-1]
    assert isinstance(last, MessageNode) and last.inherited_from is None
    assert await trace.recalled(result) is None
    assert trace.replayed.turns == 1


async def test_branches_get_each_answer_once(log: Log) -> None:
    trace = log.trace()
    root = await begun(trace)
    answers = [await trace.answered(root, said(text)) for text in ("one", "two")]

    trace = log.replaying()
    root = await begun(trace)
    recalled = [await trace.recalled(root) for _ in range(3)]
    assert [one and one[0] for one in recalled] == [*answers, None]


async def test_what_was_inherited_keeps_its_maker_and_texts_in_blobs_come_back(log: Log) -> None:
    trace = log.trace()
    long = "x" * (2 * INLINE_LIMIT)
    answer = await trace.answered(await begun(trace), said("ok", LS))
    result = await trace.result(answer, LS, long, ran(long))
    await trace.answered(result, said("done", reasoning=long))

    for attempt, makers in ((1, {1}), (2, {1})):
        trace = log.replaying(attempt)
        leaf = await begun(trace)
        leaf, _ = await trace.recalled(leaf) or ("", None)
        leaf = await trace.result(leaf, LS, long, ran(long))
        assert leaf == result
        leaf, completion = await trace.recalled(leaf) or ("", Completion(text=""))
        assert completion.reasoning == long
        assert {data.inherited_from for data in log.published if isinstance(data, MessageNode)} == makers
        assert not any(isinstance(data, LLMCall) for data in log.published)


async def test_an_answer_without_a_call_in_the_log_is_asked_for(log: Log) -> None:
    """As versions before this one left it, which published the message first."""
    trace = log.trace()
    await trace.answered(await begun(trace), said("ok"))
    log.stored = [one for one in log.stored if one.event and one.event.type != "llm.called"]

    trace = log.replaying()
    assert await trace.recalled(await begun(trace)) is None


async def test_what_another_rollout_said_to_the_same_messages_is_not_recalled(log: Log) -> None:
    """A stream that has lost its tail uses its sequences again, and a trail may lead to anything."""
    trace = log.trace()
    await trace.answered(await begun(trace), said("ok"))

    trace = log.replaying(rollout="1" * 24)
    assert await trace.recalled(await begun(trace)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"task": msgspec.structs.replace(REQUEST.task, blob=BlobRef(sha256="1" * 64, size=1))},
        {"model": ModelSpec(name="other", temperature=1.0)},
        {"model": ModelSpec(name="m", temperature=0.5)},
        {"model": ModelSpec(name="m", temperature=1.0, endpoint="elsewhere")},
        {"harness": "mini-swe-agent-compact"},
        {"budget": Budget(steps=3)},
        {"timeouts": Timeouts(command=1.0)},
    ],
)
def test_a_changed_request_has_another_key(changes: dict[str, Any]) -> None:
    changed = msgspec.structs.replace(REQUEST, **changes)
    assert replay_key(changed, "h", {}) != replay_key(REQUEST, "h", {})


def test_what_else_asks_otherwise_has_another_key_and_trying_again_has_not() -> None:
    key = replay_key(REQUEST, "h", {})
    assert replay_key(REQUEST, "other code", {}) != key
    assert replay_key(REQUEST, "h", {"top_k": 20}) != key
    again = msgspec.structs.replace(REQUEST, attempt_base=5, failures=1, fence=7, memory="2Gi")
    assert replay_key(again, "h", {}) == key


@pytest.mark.parametrize(
    "changes",
    [
        {"base_url": "http://other:1/v1"},
        {"base_url": "http://model:1/other/v1"},
        {"extra_body": {"top_k": 20}},
        {"reasoning_field": ""},
    ],
)
def test_another_server_under_the_name_of_an_endpoint_is_asked_otherwise(changes: dict[str, Any]) -> None:
    settings = EndpointSettings(base_url="http://model:1/v1")
    first = ModelClient({"m": settings}).asked("m")
    assert ModelClient({"m": msgspec.structs.replace(settings, **changes)}).asked("m") != first
    restarted = msgspec.structs.replace(settings, base_url="http://model:2/v1", max_tries=1)
    assert ModelClient({"m": restarted}).asked("m") == first


def test_a_harness_is_told_by_its_name_and_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    full, compact = get_harness("orchard-bash"), get_harness("mini-swe-agent-compact")
    assert fingerprint(full) == fingerprint(get_harness("orchard-bash")) != fingerprint(compact)
    before = fingerprint(full)
    monkeypatch.setattr("orchard.workers.harnesses._sources", lambda _: ["changed"])
    assert fingerprint(full) != before
