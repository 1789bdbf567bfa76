"""Fixtures of the memory: a real server with its topology, campaigns' events, and a writer that drains."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.identity import rollout_id
from orchard.schemas.llm_calls import ModelKind, Usage
from orchard.schemas.messages import MessageNode, Role, TokenRecord, ToolCall, ToolResult, VersionRun
from orchard.schemas.outcomes import AbortCause, ExitStatus, Reward, RolloutStatus
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.trajectory_log import llm_call

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def connection(nats_server: EmbeddedServer) -> AsyncIterator[Connection]:
    """A connection to a server on which the topology is declared."""
    settings = NatsSettings()
    async with connect(settings, name="test", url=nats_server.url) as opened:
        await declare(opened, settings, [])
        yield opened


@pytest.fixture
def publisher(connection: Connection) -> Publisher:
    return Publisher(connection)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def write(connection: Connection, store: str) -> Callable[..., Awaitable[None]]:
    """Run a writer until the store has what the stream holds."""

    async def drain(settings: WriterSettings | None = None) -> None:
        stop = asyncio.Event()
        stop.set()
        await Writer(store, connection, settings or WriterSettings()).run(stop)

    return drain


class Log:
    """Makes the events of one campaign, with an id for each."""

    def __init__(self, campaign: str = "demo", streams: int = 1) -> None:
        self.campaign, self.streams = campaign, streams
        self._made = 0

    def event(
        self, data: object, rollout: str | None = None, attempt: int | None = None, **other: str
    ) -> e.Event:
        self._made += 1
        values = {"id": f"{self.campaign}-{self._made}"} | other
        return e.make_event(
            data,
            source="orchard/test",
            campaign=self.campaign,
            rollout_id=rollout,
            attempt=attempt,
            time=START + timedelta(seconds=self._made),
            **values,
        )

    def rollout(self, sample: int, harness: str = "mini", model: str = "m") -> str:
        return rollout_id(self.campaign, "t1", harness, model, sample, self.streams)

    def requested(self, sample: int, harness: str = "mini", model: str = "m") -> e.Event:
        task = TaskRef(task_id="t1", source="swe-bench", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
        rollout = self.rollout(sample, harness, model)
        return self.event(
            RolloutRequest(
                rollout_id=rollout,
                campaign=self.campaign,
                task=task,
                harness=harness,
                model=ModelSpec(name=model),
                sample=sample,
            ),
            rollout,
        )

    def started(self, rollout: str, attempt: int = 1) -> e.Event:
        return self.event(
            e.RolloutStarted(worker="w1", request_sequence=1, deliveries=attempt), rollout, attempt
        )

    def message(self, rollout: str, attempt: int = 1, text: str = "hello", turn: int = 1) -> e.Event:
        node = MessageNode(
            node_id=f"n{self._made}",
            parent=None,
            role=Role.ASSISTANT,
            turn=turn,
            content=text,
            tool_calls=(ToolCall(id="c1", name="bash", arguments='{"command": "ls"}'),),
            result=ToolResult(returncode=0, seconds=0.5),
            tokens=TokenRecord(
                ids=(1, 2, 3), logprobs=(-0.1, -0.2, -0.3), versions=(VersionRun(start=0, version=7),)
            ),
        )
        return self.event(node, rollout, attempt)

    def call(self, rollout: str, attempt: int = 1) -> e.Event:
        usage = Usage(prompt_tokens=10, completion_tokens=5)
        return self.event(llm_call(1, parent="p", node="n", usage=usage, seconds=1.5), rollout, attempt)

    def reward(self, rollout: str, attempt: int = 1, resolved: bool = True) -> e.Event:
        value = 1.0 if resolved else -1.0
        data = Reward(
            value=value, resolved=resolved, grader="swe-tests", parts={"f2p": 1.0}, tests={"t::a": "PASSED"}
        )
        return self.event(data, rollout, attempt)

    def finished(
        self,
        rollout: str,
        attempt: int = 1,
        resolved: bool | None = True,
        harness: str = "mini",
        model: str = "m",
    ) -> e.Event:
        reward = None if resolved is None else 1.0 if resolved else -1.0
        data = e.RolloutFinished(
            task_id="t1",
            task_source="swe-bench",
            repo="a/b",
            harness=harness,
            model=model,
            model_kind=ModelKind.MODEL,
            sample=0,
            worker="w1",
            started_at=START,
            seconds=12.5,
            turns=3,
            status=RolloutStatus.COMPLETED,
            exit_status=ExitStatus.SUBMITTED,
            reward=reward,
            resolved=resolved,
            submission="diff --git a b",
            keys_masked=2,
        )
        return self.event(data, rollout, attempt)

    def aborted(
        self, rollout: str, attempt: int | None = 1, harness: str = "mini", model: str = "m"
    ) -> e.Event:
        data = e.RolloutAborted(
            task_id="t1",
            task_source="swe-bench",
            repo="a/b",
            harness=harness,
            model=model,
            model_kind=ModelKind.MODEL,
            sample=0,
            worker="w1",
            started_at=START,
            seconds=2.5,
            cause=AbortCause.LLM_UNAVAILABLE,
            detail="no answer",
        )
        return self.event(data, rollout, attempt)

    def reopened(self, rollout: str, sequence: int) -> e.Event:
        data = e.RolloutReopened(
            superseded_sequence=sequence, cause=AbortCause.LLM_UNAVAILABLE, reason="resume"
        )
        return self.event(data, rollout)

    def whole_rollout(self, sample: int, text: str = "hello") -> list[e.Event]:
        """From request to outcome, in order."""
        rollout = self.rollout(sample)
        return [
            self.requested(sample),
            self.started(rollout),
            self.message(rollout, text=text),
            self.call(rollout),
            self.reward(rollout, resolved=sample % 2 == 0),
            self.finished(rollout, resolved=sample % 2 == 0),
        ]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def prose() -> Callable[[int], str]:
    """Text that does not compress to nothing, by its length."""
    source = random.Random(0)
    words = ["".join(source.choices("abcdefghij", k=source.randint(2, 9))) for _ in range(5000)]
    return lambda size: " ".join(source.choices(words, k=size // 6 + 1))[:size]
