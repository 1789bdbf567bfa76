"""Rollouts as a worker would write them into the log, for tests: message by message, one command a turn."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from orchard.pipelines.values.curves import interpolate
from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.identity import rollout_id
from orchard.schemas.judging import JudgeCalled
from orchard.schemas.llm_calls import LLMCall, ModelKind, Usage
from orchard.schemas.messages import MessageNode, Role, TokenRecord, ToolCall, ToolResult, node_id
from orchard.schemas.outcomes import ExitStatus, Reward
from orchard.schemas.protection import Protected
from orchard.schemas.values import KeyStep, ValueAnnotated

TIME = datetime(2026, 1, 1, tzinfo=UTC)
CAMPAIGN = "demo"


def llm_call(turn: int, **facts: Any) -> LLMCall:
    """A call that brought the answer of a turn."""
    known: dict[str, Any] = {
        "parent": f"p{turn}",
        "node": f"n{turn}",
        "endpoint": "default",
        "model": "m",
        "served_model": "m-1",
        "model_kind": ModelKind.MODEL,
        "finish_reason": "stop",
        "usage": Usage(prompt_tokens=100, completion_tokens=10),
        "cost_usd": 0.25,
        "seconds": 1.0,
    }
    return LLMCall(turn=turn, **{**known, **facts})


def judge_call(cost_usd: float | None) -> JudgeCalled:
    """A call of a judge, of 55 tokens."""
    return JudgeCalled(
        name="goal",
        protocol="p-1",
        prompt_hash="0" * 16,
        input_hash="0" * 16,
        number=1,
        model="judge",
        served_model="judge-1",
        endpoint="default",
        model_kind=ModelKind.MODEL,
        usage=Usage(prompt_tokens=50, completion_tokens=5),
        cost_usd=cost_usd,
        seconds=1.0,
    )


def called(message: dict[str, Any]) -> tuple[ToolCall, ...]:
    """The calls of a message of the chat API."""
    calls = message.get("tool_calls", ())
    return tuple(ToolCall(id=call["id"], **call["function"]) for call in calls)


class Author:
    """Writes rollouts as a worker would, message by message, one turn a command."""

    def __init__(self, campaign: str = CAMPAIGN, streams: int = 1) -> None:
        self.campaign, self.streams = campaign, streams
        self._made = 0

    def event(self, data: msgspec.Struct, rollout: str, attempt: int | None = 1) -> e.Event:
        self._made += 1
        return e.make_event(
            data,
            id=f"{self.campaign}-{self._made}",
            source="orchard/test",
            campaign=self.campaign,
            rollout_id=rollout,
            attempt=attempt,
            time=TIME,
        )

    def rollout(
        self,
        sample: int,
        commands: Sequence[str],
        *,
        resolved: bool,
        task: str = "t1",
        repo: str = "a/b",
        exit_status: ExitStatus = ExitStatus.SUBMITTED,
        observation: Callable[[str], str] = lambda command: f"<returncode>0</returncode>\n{command}: ok",
        tool: str = "bash",
        kind: ModelKind = ModelKind.MODEL,
        tokens: Callable[[int, str], TokenRecord | None] = lambda _step, _command: None,
        attempt: int = 1,
        blob: BlobRef | None = None,
        user: str | None = None,
        tests: dict[str, str] | None = None,
        grader: str = "swe-tests",
        protected: Protected | None = None,
        messages: Sequence[dict[str, Any]] = (),
        submission: str = "diff",
        teacher: str | None = None,
    ) -> list[e.Event]:
        """From request to outcome; `messages`, as the chat API has them, in place of a turn a command."""
        rollout = rollout_id(self.campaign, task, "mini-swe-agent", "m", sample, self.streams)
        ref = TaskRef(
            task_id=task, source="swe-bench", repo=repo, blob=blob or BlobRef(sha256="0" * 64, size=1)
        )
        request = RolloutRequest(
            rollout_id=rollout,
            campaign=self.campaign,
            task=ref,
            harness="mini-swe-agent",
            model=ModelSpec(name="m", kind=kind),
            sample=sample,
        )
        found = [
            self.event(request, rollout, None),
            self.event(e.RolloutStarted(worker="w", request_sequence=1, deliveries=1), rollout, attempt),
        ]
        leaf: str | None = None

        def say(role: Role, text: str, turn: int, **more: object) -> None:
            nonlocal leaf
            calls = more.get("tool_calls", ())
            name = node_id(leaf, role, text, calls, str(more.get("tool_call_id", "")))  # type: ignore[arg-type]
            node = MessageNode(node_id=name, parent=leaf, role=role, turn=turn, content=text, **more)  # type: ignore[arg-type]
            found.append(self.event(node, rollout, attempt))
            leaf = name

        turns = len(commands)
        if messages:
            turns = 0
            for message in messages:
                turns += message["role"] == "assistant"
                more = {name: message[name] for name in ("tool_call_id",) if name in message}
                if message["role"] == "assistant":
                    more |= {"reasoning": message.get("reasoning_content", ""), "tool_calls": called(message)}
                if message["role"] == "tool":
                    more["result"] = ToolResult(returncode=0, seconds=0.1)
                say(Role(message["role"]), message["content"], turns, **more)
        else:
            say(Role.SYSTEM, "You repair programs.", 0)
            say(Role.USER, user or f"Repair {task} of {repo}, please.", 0)
        for step, command in enumerate(commands):
            call = ToolCall(
                id=f"c{step}", name=tool, arguments=msgspec.json.encode({"command": command}).decode()
            )
            say(Role.ASSISTANT, f"Step {step}.", step + 1, tool_calls=(call,), tokens=tokens(step, command))
            result = ToolResult(returncode=0, seconds=0.1)
            say(Role.TOOL, observation(command), step + 1, tool_call_id=call.id, result=result)
        outcome = e.RolloutFinished(
            task_id=task,
            task_source="swe-bench",
            repo=repo,
            harness="mini-swe-agent",
            model="m",
            model_kind=kind,
            sample=sample,
            worker="w",
            started_at=TIME,
            seconds=1.0,
            turns=turns,
            status=exit_status.status,
            exit_status=exit_status,
            reward=1.0 if resolved else -1.0,
            resolved=resolved,
            submission=submission,
            leaf=leaf,
            protected=protected,
            teacher=teacher,
        )
        if tests is not None:
            graded = Reward(
                value=outcome.reward or 0.0,
                resolved=resolved,
                grader=grader,
                tests=tests,
                protected=protected,
            )
            found.append(self.event(graded, rollout, attempt))
        return [*found, self.event(outcome, rollout, attempt)]

    def annotated(
        self,
        of: Iterable[e.Event],
        keys: dict[int, float],
        steps: int,
        annotator: str = "teacher",
        base: float = 0.4,
    ) -> e.Event:
        """An annotation of the rollout that the events are of."""
        rollout = next(event.rollout_id for event in of)
        assert rollout is not None
        data = ValueAnnotated(
            annotator=annotator,
            model="m",
            served_model="m",
            model_kind=ModelKind.MODEL,
            endpoint="default",
            prompt_version="1",
            input_hash="0" * 64,
            steps=steps,
            base=base,
            key_steps=tuple(KeyStep(step=step, p_resolve=p) for step, p in keys.items()),
            curve=interpolate(base, keys, steps),
        )
        return self.event(data, rollout)
