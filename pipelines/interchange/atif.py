"""ATIF, the agent trajectory interchange format of Harbor, version 1.8: its records.

Written down from the models of harbor 0.26, `harbor.models.trajectories`. Unknown fields are
refused, as there.
"""

from typing import Annotated, Any, Literal

import msgspec

VERSION = "ATIF-v1.8"
"""Version that is written. All versions 1.x are read: later ones add optional fields."""


TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    extra: dict[str, Any] | None = None


class AtifToolCall(_Record, frozen=True, kw_only=True):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class SubagentRef(_Record, frozen=True, kw_only=True):
    """Which embedded trajectory a result came from."""

    trajectory_id: str | None = None
    session_id: str | None = None
    trajectory_path: str | None = None


class MediaSource(_Record, frozen=True, kw_only=True):
    """Address of a picture or sound: a path, relative to the trajectory's file or absolute, or a URL."""

    media_type: str | None = None
    path: str = ""
    duration_sec: float | None = None


class Part(_Record, frozen=True, kw_only=True):
    type: str
    text: str | None = None
    source: MediaSource | None = None


Content = str | list[Part]


class Result(_Record, frozen=True, kw_only=True):
    """The result of an action; `source_call_id` is a call of the same step."""

    source_call_id: str | None = None
    content: Content | None = None
    subagent_trajectory_ref: list[SubagentRef] | None = None


class Observation(_Record, frozen=True, kw_only=True):
    """The results of a step."""

    results: list[Result]


class Metrics(_Record, frozen=True, kw_only=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[TokenId] | None = None
    completion_token_ids: list[TokenId] | None = None
    logprobs: list[float] | None = None


class Step(_Record, frozen=True, kw_only=True):
    """A message, with its actions and their results where an agent wrote it. Numbered from 1."""

    step_id: int
    source: Literal["system", "user", "agent"]
    message: Content
    timestamp: str | None = None
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    reasoning_content: str | None = None
    tool_calls: list[AtifToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = None


class Agent(_Record, frozen=True, kw_only=True):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None


class FinalMetrics(_Record, frozen=True, kw_only=True):
    """Sums over the trajectory and its subagents."""

    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = None


class Trajectory(_Record, frozen=True, kw_only=True):
    """One conversation, with those of its subagents."""

    schema_version: str | None = None
    """None: VERSION, as for Harbor."""
    agent: Agent
    steps: list[Step]
    session_id: str | None = None
    trajectory_id: str | None = None
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    subagent_trajectories: list["Trajectory"] | None = None
