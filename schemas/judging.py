"""Judgements: what a model says of a rollout that no program can decide alone, and what it took.

A judgement ends in a Verdict or it fails; there is nothing between, and a failed one is never a 0.
"""

import msgspec

from orchard.schemas.llm_calls import ModelKind, Usage


class JudgeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge decided."""

    score: float
    """In [0, 1]."""
    passed: bool
    """Whether the judge calls it a success, by the rule of its protocol."""
    reason: str = ""
    """Why, in the judge's words."""


class GuiJudging(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a browser task is judged: settings of the grader `gui-judge`."""

    protocol: str = "orchard-1"
    """Name and version of the protocol."""


class JudgeCalled(msgspec.Struct, frozen=True, kw_only=True):
    """A judging model answered once. A protocol may ask several times for one verdict."""

    name: str
    """What is judged: the part of the task's grade that asked."""
    protocol: str
    """Name and version of the protocol."""
    prompt_hash: str
    """16 hexadecimal digits over the protocol's own words."""
    input_hash: str
    """16 hexadecimal digits over the messages as they were sent, pictures included."""
    number: int
    """1 is the judgement's first call."""
    model: str
    """As asked for."""
    served_model: str
    endpoint: str
    """Name of the endpoint in the workers' configuration."""
    model_kind: ModelKind
    """Who answered."""
    usage: Usage
    """Tokens of the call."""
    cost_usd: float | None
    """None when no price is known for the model."""
    seconds: float
    tries: int = 1
    """Of the model client."""
    answer: str = ""
    """What it said, up to 4,000 characters."""


class JudgeRuled(msgspec.Struct, frozen=True, kw_only=True):
    """A judgement ended: with a verdict, or with the fault that aborts the attempt."""

    name: str
    """What was judged."""
    protocol: str
    """Name and version of the protocol."""
    prompt_hash: str
    """As JudgeCalled."""
    model: str
    endpoint: str
    """Name of the endpoint in the workers' configuration."""
    calls: int
    """Answers that were asked for."""
    cost_usd: float | None
    """Of all of them; None when one has no known price."""
    score: float | None = None
    """None: the judgement failed, or the grader asked in its own words (`verbatim-1`) for no score."""
    passed: bool | None = None
    """As `score`."""
    reason: str = ""
    """Of the verdict."""
    fault: str = ""
    """Why there is no verdict."""
