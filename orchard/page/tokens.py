"""Reads the tokens of a rollout as the policy sampled them: one answer at a time, a part of it on a page.

What trains is what the trainer takes: of a group that was trained on, the answers that `forests.training`
counts, each sampled token of them once. Advantages are those of the run's baseline among the group's members.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec

from orchard.actions.attempt_ranges import attempt_ranges
from orchard.configuration.config import ConfigError
from orchard.pipelines.rl.baselines import advantages
from orchard.pipelines.rl.loss_settings import Baseline
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.trajectories.forests import training
from orchard.schemas.blobs import BlobRef
from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import NodeRest, TokenRecord, VersionRun
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import BlobCorrupt, BlobMissing
from orchard.storage.reader import Row, one, rows, within

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAGE_TOKENS = 2_000
COLOURS = ("logprob", "version", "loss", "advantage")
"""Quantities that a token's colour can show."""
_LIKELY = [math.log(p) for p in (0.9, 0.5, 0.1, 0.01, 0.001)]
"""Thresholds between the colour classes of log-probabilities."""

_NODES = """
select node_id, any_value(parent) as parent, any_value(role) as role, any_value(turn) as turn,
       min(sequence) as sequence, any_value(len(token_ids)) as sampled, any_value(rest_sha256) as rest_sha256
from tables.messages_all where rollout_id = $id and attempt = $attempt
group by node_id order by min(sequence)
"""
_RECORD = """
select token_ids, logprobs, prompt_ids, versions, rest_sha256 from tables.messages_all
where rollout_id = $id and attempt = $attempt and node_id = $node limit 1
"""
_KINDS = """
select node, call_kind from tables.llm_calls_all
where rollout_id = $id and attempt = $attempt and call_kind is not null order by sequence
"""
_GROUP = """
select g.run, g.group_id, g.members, g.trained_version, g.dropped, p.left_out,
       (select any_value(s.plan_sha256) from tables.policies_all s where s.run = g.run) as plan_sha256
from groups g left join tables.policies_all p on p.run = g.run and list_contains(p.groups, g.group_id)
where g.campaign = $campaign
and list_contains(list_transform(g.members, lambda m: m.rollout_id), $id) order by g.sequence limit 1
"""


@dataclass(frozen=True)
class AnswerTokens:
    node: str
    turn: int
    trains: bool
    """Whether the message's tokens enter the loss if the rollout is trained on."""
    sequence: int


@dataclass(frozen=True)
class Training:
    """Use of the rollout in a training run."""

    run: str
    version: int | None
    """Policy version that was trained on the rollout, or None."""
    why_not: str
    """Reason if no version was trained on it."""
    advantage: float | None


@dataclass(frozen=True)
class Token:
    """One token. Log-probability and version are None for tokens of the context."""

    position: int
    id: int
    text: str | None
    """Decoded text; None without a tokenizer."""
    logprob: float | None
    version: int | None
    in_loss: bool
    advantage: float | None
    kind: str
    """CSS class."""


@dataclass(frozen=True)
class RolloutTokens:
    """Part of one answer's tokens: first what the policy read since its previous answer, then what it
    sampled."""

    rollout: str
    attempt: int | None
    answers: list[AnswerTokens]
    at: int
    """Index of the shown answer."""
    tokens: list[Token]
    start: int
    """Position of the first token, of `total`."""
    total: int
    read: int
    """Number of newly read tokens; earlier ones are on the pages of earlier answers."""
    context: int
    """Number of tokens that this prompt shares with the previous answer."""
    training: Training | None


def open_tokenizer(directory: Path) -> "Tokenizer":
    """Loads the tokenizer of a model's directory. Raises ConfigError."""
    from tokenizers import Tokenizer  # of the extra `train`; the page does without

    file = directory / "tokenizer.json" if directory.is_dir() else directory
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises nothing narrower
        raise ConfigError(
            f"{file} is not a valid tokenizer.json ({error}): name another with --tokenizer"
        ) from error


def read(
    tables: duckdb.DuckDBPyConnection,
    blobs: BlobStore,
    tokenizer: "Tokenizer | None",
    rollout: str,
    attempt: int | None,
    node: str | None,
    start: int,
    by: str,
) -> RolloutTokens:
    """Reads a part of an answer's tokens from `start` on; of the first answer if `node` is None or
    unknown."""
    span = attempt_ranges(tables, [rollout], attempt)[rollout]
    shown = span.attempt

    def ask(query: str, **more: Any) -> list[Row]:
        narrow = within(tables, query, span.first, span.last)
        return rows(tables, narrow, {"id": rollout, "attempt": shown, **more})

    answers = _answers(ask)
    at = next((i for i, answer in enumerate(answers) if answer.node == node), 0)
    if not answers:
        return RolloutTokens(rollout, shown, [], 0, [], 0, 0, 0, 0, None)
    record = _record(ask, blobs, answers[at].node)
    earlier = _record(ask, blobs, answers[at - 1].node) if at else TokenRecord(ids=())
    context = _common(record.prompt_ids, (*earlier.prompt_ids, *earlier.ids))
    trained = _training(tables, blobs, rollout) if span.accepted else None
    fresh = record.prompt_ids[context:]
    total = len(fresh) + len(record.ids)
    start = min(start, max(total - 1, 0)) // PAGE_TOKENS * PAGE_TOKENS
    made = [
        _token(record, fresh, position, tokenizer, answers[at], trained, by)
        for position in range(start, min(start + PAGE_TOKENS, total))
    ]
    return RolloutTokens(rollout, shown, answers, at, made, start, total, len(fresh), context, trained)


Ask = Callable[..., list[Row]]


def _answers(ask: Ask) -> list[AnswerTokens]:
    nodes = ask(_NODES)
    kinds: dict[str, CallKind] = {}
    for row in ask(_KINDS):
        kinds.setdefault(row["node"], CallKind(row["call_kind"]))
    counted = training({row["node_id"]: row["parent"] for row in nodes}, kinds) if kinds else None
    return [
        AnswerTokens(
            row["node_id"], row["turn"], counted is None or row["node_id"] in counted, row["sequence"]
        )
        for row in nodes
        if row["role"] == "assistant" and (row["sampled"] or row["rest_sha256"])
    ]


def _record(ask: Ask, blobs: BlobStore, node: str) -> TokenRecord:
    """Ids of the prompt's tokens; empty if they cannot be read or the endpoint sent none."""
    row = next(iter(ask(_RECORD, node=node)), {})
    if row.get("rest_sha256"):
        try:
            rest = msgspec.json.decode(blobs.get(BlobRef(sha256=row["rest_sha256"], size=0)), type=NodeRest)
        except (BlobMissing, BlobCorrupt, msgspec.DecodeError):
            return TokenRecord(ids=())
        return rest.tokens or TokenRecord(ids=())
    return TokenRecord(
        ids=tuple(row.get("token_ids") or ()),
        logprobs=tuple(row.get("logprobs") or ()),
        prompt_ids=tuple(row.get("prompt_ids") or ()),
        versions=tuple(VersionRun(**run) for run in row.get("versions") or ()),
    )


def _common(prompt: Sequence[int], known: Sequence[int]) -> int:
    """Length of the common prefix."""
    return next(
        (i for i, (a, b) in enumerate(zip(prompt, known, strict=False)) if a != b),
        min(len(prompt), len(known)),
    )


def _training(tables: duckdb.DuckDBPyConnection, blobs: BlobStore, rollout: str) -> Training | None:
    """Reads the use of the rollout in training; None if no group has it."""
    whose = one(tables, "select campaign from indexed.asked where rollout_id = $id", {"id": rollout})
    group = one(tables, _GROUP, {"id": rollout, **whose}) if whose else None
    if group is None:
        return None
    left_out = set(group["left_out"] or ())
    members = [member for member in group["members"] if member["rollout_id"] not in left_out]
    advantage = None
    baseline = _baseline(blobs, group["plan_sha256"])
    if baseline and rollout not in left_out and len(members) > 1:
        found = advantages([m["reward"] for m in members], [""] * len(members), baseline)
        advantage = next(a for m, a in zip(members, found, strict=True) if m["rollout_id"] == rollout)
    why_not = ""
    if rollout in left_out:
        why_not = "it is too long for the trainer's context, or its ending is `untrained`"
    elif group["dropped"]:
        why_not = f"its group was dropped: {group['dropped']}"
    elif group["trained_version"] is None:
        why_not = "its group is not trained on yet"
    return Training(group["run"], None if why_not else group["trained_version"], why_not, advantage)


def _baseline(blobs: BlobStore, plan: str | None) -> Baseline | None:
    """Reads the baseline of a run from its plan: the default where the plan is older than the field, None
    where the plan cannot be read."""
    if plan is None:
        return None
    try:
        raw = blobs.get(BlobRef(sha256=plan, size=0))
        return msgspec.json.decode(raw, type=RunPlan).baseline or Baseline.NORMALIZED
    except (BlobMissing, BlobCorrupt, msgspec.DecodeError):
        return None


def _token(
    record: TokenRecord,
    fresh: Sequence[int],
    position: int,
    tokenizer: "Tokenizer | None",
    answer: AnswerTokens,
    trained: Training | None,
    by: str,
) -> Token:
    at = position - len(fresh)
    token = record.ids[at] if at >= 0 else fresh[position]
    text = _text(tokenizer, token) if tokenizer is not None else None
    if at < 0:
        return Token(position, token, text, None, None, False, None, "read")
    logprob = record.logprobs[at] if at < len(record.logprobs) else None
    version = next((run.version for run in reversed(record.versions) if run.start <= at), None)
    in_loss = answer.trains and trained is not None and trained.version is not None
    advantage = trained.advantage if trained is not None and answer.trains else None
    kind = _kind(by, logprob, version, in_loss, advantage)
    return Token(position, token, text, logprob, version, in_loss, advantage, kind)


def _text(tokenizer: "Tokenizer", token: int) -> str:
    """Text of the token, or its name in the vocabulary if it is part of a character."""
    text: str = tokenizer.decode([token], skip_special_tokens=False)
    if "\ufffd" in text or not text:
        return str(tokenizer.id_to_token(token) or f"?{token}")
    return text


def _kind(by: str, logprob: float | None, version: int | None, in_loss: bool, advantage: float | None) -> str:
    if by == "loss":
        return "in" if in_loss else "out"
    if by == "version":
        return f"v{version % 6}" if version is not None else "none"
    if by == "advantage":
        return (
            "none" if advantage is None else "flat" if advantage == 0 else "up" if advantage > 0 else "down"
        )
    if logprob is None or math.isnan(logprob):
        return "none"
    return f"p{sum(logprob < limit for limit in _LIKELY)}"
