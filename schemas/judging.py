"""Judgements: a model's verdict on what no program can decide alone, and its cost.

A judgement ends in a JudgeVerdict or it fails; there is nothing between, and a failed one is never a 0.
"""

import msgspec

from orchard.schemas.llm_calls import ModelKind, Usage


class JudgeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of a judge."""

    score: float
    """Score of the work in [0, 1]."""
    passed: bool
    """Whether the work is a success by the rule of the judge's protocol."""
    reason: str = ""
    """The judge's reasons for the decision."""


class GuiJudging(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the grader `gui-judge`: how a browser task is judged."""

    protocol: str = "orchard-1"
    """Name and version of the judge's protocol."""


class JudgeCalled(msgspec.Struct, frozen=True, kw_only=True):
    """A judging model answered once. A protocol may ask several times for one verdict."""

    name: str
    """Part of the task's grade that asked the judge."""
    protocol: str
    """Name and version of the judge's protocol."""
    prompt_hash: str
    """Hash of the protocol's own text (16 hexadecimal digits)."""
    input_hash: str
    """Hash of the messages as they were sent, pictures included (16 hexadecimal digits)."""
    number: int
    """Number of the call in its judgement, from 1."""
    model: str
    """Name of the model that was asked for."""
    served_model: str
    endpoint: str
    """Name of the endpoint in the workers' configuration."""
    model_kind: ModelKind
    """Whether a model or an oracle answered."""
    usage: Usage
    """Tokens that the call took."""
    cost_usd: float | None
    """Price of the call in USD; None when no price is known for the model."""
    seconds: float
    tries: int = 1
    """Times that the model client sent the request."""
    answer: str = ""
    """Text of the answer, up to 4,000 characters."""


class JudgeRuled(msgspec.Struct, frozen=True, kw_only=True):
    """A judgement ended: with a verdict, or with the fault that aborts the attempt."""

    name: str
    """Part of the task's grade that was judged."""
    protocol: str
    """Name and version of the judge's protocol."""
    prompt_hash: str
    """Hash of the protocol's own text (16 hexadecimal digits)."""
    model: str
    endpoint: str
    """Name of the endpoint in the workers' configuration."""
    calls: int
    """Number of answers that were asked for."""
    cost_usd: float | None
    """Price of all calls in USD; None when one has no known price."""
    score: float | None = None
    """Score in [0, 1]; None: the judgement failed, or the grader's own prompt (`verbatim-1`) asked for no
    score."""
    passed: bool | None = None
    """Whether the work is a success; None as for `score`."""
    reason: str = ""
    """The judge's reasons for the verdict."""
    fault: str = ""
    """Why there is no verdict."""
