"""A run's log as workers and the coordinator write it, with made-up tokens."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import numpy as np

from orchard.pipelines.campaigns.commands import requested_event
from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.runs import make_plan
from orchard.pipelines.rl.settings import RlSettings
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import RolloutRequest, TaskRef
from orchard.schemas.events import Event, RolloutFinished, make_event
from orchard.schemas.groups import GroupAssembled, GroupMember, GroupOutcome
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.messages import MessageNode, NodeRest, Role, TokenRecord, VersionRun
from orchard.schemas.outcomes import ExitStatus, RolloutStatus
from orchard.schemas.protection import Protected
from orchard.storage.blobs import BlobStore

TASKS = tuple(
    TaskRef(task_id=f"t{number}", source="test", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
    for number in range(5)
)
VOCABULARY = 300


def run_settings(model: str = "m", out: str = "o", **changes: object) -> RlSettings:
    """Of a run with groups of two and two groups for each step."""
    fields: dict[str, object] = {
        "run": "run",
        "model": model,
        "out": out,
        "bar": BarSettings(size=2, budget=2, interval=None),
        "prompts_per_step": 2,
        "steps": 3,
        "lr": 1e-3,
        "context": 512,
        "threads": 1,
    }
    return RlSettings(**(fields | changes))  # type: ignore[arg-type]


def plan_of(settings: RlSettings) -> RunPlan:
    return make_plan(settings, TASKS)


def record(random: np.random.Generator, prompt: Sequence[int] = (), version: int = 0) -> TokenRecord:
    """A sampled message after `prompt` and some tokens more."""
    ids = [int(token) for token in random.integers(0, VOCABULARY, int(random.integers(3, 9)))]
    return TokenRecord(
        ids=tuple(ids),
        logprobs=tuple(float(-5.5 + random.normal() / 10) for _ in ids),
        prompt_ids=(*prompt, *(int(token) for token in random.integers(0, VOCABULARY, 4))),
        versions=(VersionRun(start=0, version=version),),
    )


def conversation(seed: int, turns: int = 2, version: int = 0) -> list[TokenRecord]:
    """The sampled messages of one rollout; each prompt goes on where the last answer ended."""
    random = np.random.default_rng(seed)
    records: list[TokenRecord] = []
    for _ in range(turns):
        before = (*records[-1].prompt_ids, *records[-1].ids) if records else ()
        records.append(record(random, before, version))
    return records


def about(request: RolloutRequest, data: msgspec.Struct, name: str, attempt: int = 1) -> Event:
    return make_event(
        data,
        id=f"{request.rollout_id}.{attempt}.{name}",
        source="orchard/test",
        campaign=request.campaign,
        rollout_id=request.rollout_id,
        attempt=attempt,
    )


def message(
    request: RolloutRequest,
    number: int,
    tokens: TokenRecord | None,
    *,
    attempt: int = 1,
    blobs: BlobStore | None = None,
) -> Event:
    """A message of the policy, after that of the number before; its tokens in a blob where `blobs` is
    given."""
    node = MessageNode(
        node_id=f"n{number}",
        parent=f"n{number - 1}" if number else None,
        role=Role.ASSISTANT,
        turn=number + 1,
        content="x",
        tokens=tokens,
    )
    if blobs is not None:
        rest = blobs.put(msgspec.json.encode(NodeRest(tokens=tokens)), "application/json")
        node = msgspec.structs.replace(node, tokens=None, rest_blob=rest)
    return about(request, node, f"message.{number}", attempt)


def finished(
    request: RolloutRequest,
    reward: float,
    attempt: int = 1,
    *,
    resolved: bool | None = None,
    leaf: str | None = None,
) -> Event:
    done = RolloutFinished(
        task_id=request.task.task_id,
        task_source="test",
        repo="a/b",
        harness=request.harness,
        model=request.model.name,
        model_kind=ModelKind.MODEL,
        sample=request.sample,
        worker="w",
        started_at=datetime.now(UTC),
        seconds=1.0,
        completion_tokens=10,
        status=RolloutStatus.COMPLETED,
        exit_status=ExitStatus.SUBMITTED,
        reward=reward,
        resolved=reward > 0 if resolved is None else resolved,
        leaf=leaf,
    )
    return about(request, done, "done", attempt)


def assembled(
    plan: RunPlan,
    prompt: int,
    slots: Sequence[int],
    rewards: Sequence[float],
    label: Protected | None = None,
) -> Event:
    """The group of these slots; `label` is that of its first member's reward."""
    members = tuple(
        GroupMember(
            rollout_id=plan.request(prompt, slot).rollout_id,
            attempt=1,
            reward=reward,
            status=RolloutStatus.COMPLETED,
            tokens=10,
        )
        for slot, reward in zip(slots, rewards, strict=True)
    )
    positive = sum(reward > 0 for reward in rewards)
    group = GroupAssembled(
        run=plan.name,
        group_id=f"{plan.name}.{prompt}",
        prompt=prompt,
        task_id=plan.task_of(prompt).task_id,
        outcome=GroupOutcome.FIXED,
        members=members,
        positive=positive,
        degenerate=positive in (0, len(members)),
        generated=len(members),
        protected={} if label is None else {members[0].rollout_id: label},
    )
    return make_event(
        group,
        id=f"{plan.name}.decided.{prompt}",
        source="orchard/test",
        campaign=plan.name,
        subject=f"prompts/{plan.name}/{prompt}",
    )


def whole_group(
    plan: RunPlan,
    prompt: int,
    *,
    version: int = 0,
    rewards: Sequence[float] = (1.0, -1.0),
    label: Protected | None = None,
    turns: int = 2,
    like: int | None = None,
) -> list[Event]:
    """All events of a prompt, from its requests to its group; `like` another prompt, it says the same."""
    events = []
    for slot, reward in enumerate(rewards):
        request = plan.request(prompt, slot)
        events.append(requested_event(request))
        said = prompt if like is None else like
        records = conversation(100 * said + slot, turns, version)
        events += [message(request, number, tokens) for number, tokens in enumerate(records)]
        events.append(finished(request, reward))
    return [*events, assembled(plan, prompt, range(len(rewards)), rewards, label)]
