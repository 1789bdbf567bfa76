"""Reads the time, tokens and cost of a trajectory, from ATIF's metrics and the files that Harbor writes
beside it. Pure; unknown is None."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from orchard.pipelines.datasets.foreign import Took
from orchard.pipelines.interchange import atif
from orchard.pipelines.interchange.conversation import KEY
from orchard.schemas.llm_calls import CallKind, LLMCall, ModelKind, Usage

N = TypeVar("N", int, float)
_LARGEST = 2**53


class Span(msgspec.Struct, frozen=True):
    """The begin and end of a phase of a trial, in ISO 8601."""

    started_at: str | None = None
    finished_at: str | None = None


class AgentResult(msgspec.Struct, frozen=True):
    """Harbor's summary of the agent's work."""

    n_input_tokens: int | None = None
    n_output_tokens: int | None = None
    cost_usd: float | None = None


class _OwnCall(msgspec.Struct, frozen=True):
    """Fields that Orchard's own export adds to the metrics of a step."""

    finish_reason: str = ""
    seconds: float | None = None
    reasoning_tokens: int | None = None


class Phases(Span, frozen=True):
    """The phases of a trial in Harbor's result.json."""

    agent_result: AgentResult | None = None
    environment_setup: Span | None = None
    agent_setup: Span | None = None
    verifier: Span | None = None


def took(found: atif.Trajectory, trial: Phases | None) -> Took:
    """Tokens and cost: the trajectory's sums, else those of its steps, else Harbor's. Time: Harbor's, else
    from the first step to the last."""
    final = found.final_metrics or atif.FinalMetrics()
    agent = (trial.agent_result if trial else None) or AgentResult()
    steps = list(_asked(found))
    made = [step.metrics or atif.Metrics() for step in steps]
    times = [time for step in found.steps if (time := _time(step.timestamp)) is not None]
    spans = (trial.environment_setup, trial.agent_setup) if trial else ()
    return Took(
        started_at=(_time(trial.started_at) if trial else None) or (times[0] if times else None),
        seconds=_first(_seconds(trial), _between(times[0], times[-1]) if len(times) > 1 else None),
        seconds_creating=_sum(_seconds(span) for span in spans),
        seconds_grading=_seconds(trial.verifier) if trial else None,
        llm_calls=_calls(steps),
        prompt_tokens=_total(
            final.total_prompt_tokens, (each.prompt_tokens for each in made), agent.n_input_tokens
        ),
        completion_tokens=_total(
            final.total_completion_tokens, (each.completion_tokens for each in made), agent.n_output_tokens
        ),
        cost_usd=_total(final.total_cost_usd, (each.cost_usd for each in made), agent.cost_usd),
    )


def call_of(
    step: atif.Step,
    agent: atif.Agent,
    parent: str | None,
    node: str,
    turn: int,
    kind: CallKind | None,
    origin: str | None,
) -> LLMCall | None:
    """The call of the model that made the message `node`; None where the step has no record of one. `origin`
    is the message that its conversation began from."""
    metrics = step.metrics
    if metrics is None or step.is_copied_context or step.llm_call_count == 0:
        return None
    model = step.model_name or agent.model_name or "unknown"
    own = msgspec.convert((metrics.extra or {}).get(KEY, {}), _OwnCall)
    return LLMCall(
        parent=parent or "",
        node=node,
        turn=turn,
        endpoint="import",
        model=model,
        served_model=model,
        model_kind=ModelKind.MODEL,
        finish_reason=own.finish_reason,
        usage=Usage(
            prompt_tokens=_known(metrics.prompt_tokens),
            completion_tokens=_known(metrics.completion_tokens),
            cached_tokens=_known(metrics.cached_tokens),
            reasoning_tokens=_known(own.reasoning_tokens),
        ),
        cost_usd=_known(metrics.cost_usd),
        seconds=_known(own.seconds),
        call_kind=kind,
        derived_from=origin,
    )


def time_of(step: atif.Step) -> datetime | None:
    """The time of a step, where it can be that of an event."""
    found = _time(step.timestamp)
    return found if found and 1970 <= found.year < 2100 else None


def _asked(found: atif.Trajectory) -> Iterator[atif.Step]:
    """The steps of the agent and of its subagents that asked a model, each once."""
    for step in found.steps:
        if step.source == "agent" and not step.is_copied_context and step.llm_call_count != 0:
            yield step
    for other in found.subagent_trajectories or ():
        yield from _asked(other)


def _calls(steps: Sequence[atif.Step]) -> int | None:
    """Number of model calls, where at least one step has one."""
    if not any(step.metrics or step.llm_call_count for step in steps):
        return None
    return _known(sum(step.llm_call_count or 1 for step in steps))


def _known(number: N | None) -> N | None:
    """A count, price or time that is possible and that the tables can hold, else None."""
    return None if number is None or not 0 <= number <= _LARGEST else number


def _first(*numbers: N | None) -> N | None:
    return next((number for number in numbers if _known(number) is not None), None)


def _total(stated: N | None, of_steps: Iterable[N | None], agent: N | None) -> N | None:
    return stated if _known(stated) is not None else _first(_sum(of_steps), agent)


def _sum(numbers: Iterable[N | None]) -> N | None:
    """The sum; None where there is no number, or one is not known."""
    known = [_known(number) for number in numbers]
    said = [number for number in known if number is not None]
    return sum(said) if said and len(said) == len(known) else None


def _seconds(span: Span | None) -> float | None:
    return _between(_time(span.started_at), _time(span.finished_at)) if span else None


def _between(start: datetime | None, end: datetime | None) -> float | None:
    if start is None or end is None or end < start:
        return None
    return (end - start).total_seconds()


def _time(text: str | None) -> datetime | None:
    """Parse a time; one without a zone is in UTC."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
