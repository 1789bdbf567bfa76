"""Groups in the layouts of other trainers: slime's samples, prime-rl's training samples, verl's batches.

Pure: a group with its members and its run's terms in, JSON-ready records out. Ids, masks,
log-probabilities and advantages are exactly those that Orchard's own trainer would use.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from orchard.pipelines.rl.baselines import Overlong, advantages, shaped
from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.loss_settings import Baseline
from orchard.pipelines.rl.sequences import TokenSequence
from orchard.schemas.groups import GroupAssembled, GroupMember
from orchard.schemas.outcomes import RolloutStatus

Record = dict[str, Any]
Members = Sequence[Sequence[TokenSequence]]
"""The sequences of each member of a group, in the group's order."""


class Terms(NamedTuple):
    """The settings that all groups of a run share."""

    slots: int
    """Maximum rollouts of a prompt, by which those of the run are numbered."""
    baseline: Baseline
    """Baseline that turns rewards into advantages."""
    temperature: float = 1.0
    """Sampling temperature of the policy."""
    overlong: Overlong | None = None
    """Penalty of long answers, which the records' rewards have taken off."""


UNEQUAL = (
    "frugal sampling makes groups of unequal sizes, and slime takes equal ones: set another `method`, or "
    "export them as prime-rl or verl"
)
"""Reason why slime is not given the groups of a frugal run."""

Layout = Callable[[GroupAssembled, Members, Terms], Iterator[Record]]


def slime_samples(group: GroupAssembled, members: Members, terms: Terms) -> Iterator[Record]:
    """Records in the form of slime's `Sample.to_dict`: one for each sequence of a member.

    Where its harness rewrote history these are siblings with one `rollout_id`: slime keeps them in one
    step, as one rollout. No other rollout of the run has that id. slime normalizes rewards over the N
    samples of a group; with that off, `metadata["advantage"]` is Orchard's.
    """
    for place, (member, rows, advantage) in enumerate(_members(group, members, terms)):
        number = group.prompt * terms.slots + place
        for row in rows:
            first = row.mask.index(1)
            yield {
                "group_index": group.prompt,
                "index": number,
                "rollout_id": number,
                "tokens": row.ids,
                "response_length": len(row.ids) - first,
                "loss_mask": row.mask[first:],
                "rollout_log_probs": row.logprobs[first:],
                "reward": member.reward,
                "status": "truncated" if member.status is RolloutStatus.TRUNCATED else "completed",
                "weight_versions": [str(version) for version in _versions(row)],
                "metadata": {
                    "group_id": group.group_id,
                    "rollout_id": member.rollout_id,
                    "task_id": group.task_id,
                    "advantage": advantage,
                    **_label(group, member),
                },
            }


def prime_samples(group: GroupAssembled, members: Members, terms: Terms) -> Iterator[Record]:
    """One `TrainingSample` for each sequence, with arrays of its full length."""
    for member, rows, advantage in _members(group, members, terms):
        for row in rows:
            yield {
                "token_ids": row.ids,
                "mask": [trains == 1 for trains in row.mask],
                "logprobs": row.logprobs,
                "temperatures": [terms.temperature] * len(row.ids),
                "env_name": group.task_id,
                "advantages": [advantage * trains for trains in row.mask],
                "rl_weights": [float(trains) for trains in row.mask],
                "ce_weights": [0.0] * len(row.ids),
                "reward": member.reward,
                "example_id": member.rollout_id,
                "group_id": group.group_id,
                **_label(group, member),
            }


def verl_rows(group: GroupAssembled, members: Members, terms: Terms) -> Iterator[Record]:
    """One row of a batch for each sequence, before padding: prompts go left, responses right; `uid` is
    the group's key. verl has room for the oldest and the newest policy version alone."""
    for member, rows, advantage in _members(group, members, terms):
        for row in rows:
            first = row.mask.index(1)
            versions = _versions(row)
            yield {
                "uid": group.group_id,
                "prompts": row.ids[:first],
                "responses": row.ids[first:],
                "response_mask": row.mask[first:],
                "rollout_log_probs": row.logprobs[first:],
                "reward": member.reward,
                "advantage": advantage,
                "min_global_steps": versions[0],
                "max_global_steps": versions[-1],
                "rollout_id": member.rollout_id,
                **_label(group, member),
            }


def verl_batch(rows: Sequence[Record], *, pad: int) -> dict[str, np.ndarray]:
    """The arrays of verl's `DataProto` for these rows, with `pad` tokens: prompts end and responses begin
    where the longest do. `uid` and the versions go into its `non_tensor_batch`. ValueError without a row."""
    if not rows:
        raise ValueError("a batch needs at least one row")
    width = max(len(row["prompts"]) for row in rows)
    length = max(len(row["responses"]) for row in rows)

    def padded(name: str, filler: float, kind: type[np.generic]) -> np.ndarray:
        filled = np.full((len(rows), length), filler, kind)
        for place, row in enumerate(rows):
            filled[place, : len(row[name])] = row[name]
        return filled

    prompts = np.full((len(rows), width), pad, np.int64)
    seen = np.zeros((len(rows), width + length), np.int64)
    scores = np.zeros((len(rows), length), np.float32)
    for place, row in enumerate(rows):
        before, after = len(row["prompts"]), len(row["responses"])
        prompts[place, width - before :] = row["prompts"]
        seen[place, width - before : width + after] = 1
        scores[place, after - 1] = row["reward"]
    responses = padded("responses", pad, np.int64)
    return {
        "prompts": prompts,
        "responses": responses,
        "input_ids": np.concatenate([prompts, responses], axis=1),
        "attention_mask": seen,
        "position_ids": np.maximum(seen.cumsum(axis=1) - 1, 0),
        "response_mask": padded("response_mask", 0, np.int64),
        "rollout_log_probs": padded("rollout_log_probs", 0.0, np.float32),
        "rm_scores": scores,
        "uid": np.array([row["uid"] for row in rows], dtype=object),
        "min_global_steps": np.array([row["min_global_steps"] for row in rows], dtype=object),
        "max_global_steps": np.array([row["max_global_steps"] for row in rows], dtype=object),
    }


LAYOUTS: dict[str, Layout] = {"slime": slime_samples, "prime-rl": prime_samples, "verl": verl_rows}


def _label(group: GroupAssembled, member: GroupMember) -> Record:
    """The label of the member's reward; nothing where it has none."""
    label = group.protected.get(member.rollout_id)
    return {} if label is None else {"protected": label.value}


def _members(
    group: GroupAssembled, members: Members, terms: Terms
) -> Iterator[tuple[GroupMember, Sequence[TokenSequence], float]]:
    """Each member with its sequences and its advantage within the group. Raises RunError for pictures, which
    the records have no place for: their tokens alone would train a model that sees nothing."""
    if any(row.images for rows in members for row in rows):
        raise RunError(
            f"group {group.group_id} has pictures, and no layout of another trainer has them here: train it "
            "with `orchard rl`, or export a dataset of the run as slime, verl-sft or in its domain's layout"
        )
    said = [sum(sum(row.mask[1:]) for row in rows) for rows in members]
    rewards = [
        shaped(member.reward, tokens, terms.overlong)
        for member, tokens in zip(group.members, said, strict=True)
    ]
    found = advantages(rewards, [group.group_id] * len(rewards), terms.baseline)
    for member, reward, rows, advantage in zip(group.members, rewards, members, found, strict=True):
        yield msgspec.structs.replace(member, reward=reward), rows, advantage


def _versions(row: TokenSequence) -> list[int]:
    """Policy versions that sampled tokens of a sequence, rising."""
    return sorted({version for version, trains in zip(row.versions, row.mask, strict=True) if trains})
