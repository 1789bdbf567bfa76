"""The steps of a Harbor task, each with what it inherits from the task, by the rules of Harbor 0.26. Pure.

A time limit of a step's tests is never inherited: its own default holds.
"""

from typing import TypeVar

import msgspec

from orchard.pipelines.tasks.harbor_definition import Definition, Step, Verifier
from orchard.pipelines.tasks.harbor_networks import Policy

_Phase = TypeVar("_Phase", bound=Policy)


def step_definition(given: Definition, step: Step) -> Definition:
    """The definition of the step as if it were a task. Raises ValueError."""
    agent = msgspec.structs.replace(
        _with_network(step.agent, given.agent),
        timeout_sec=step.agent.timeout_sec or given.agent.timeout_sec,
        user=given.agent.user if step.agent.user is None else step.agent.user,
    )
    return msgspec.structs.replace(
        given,
        agent=agent,
        verifier=_verifier(given.verifier, step.verifier),
        environment=msgspec.structs.replace(given.environment, healthcheck=step.healthcheck),
        artifacts=[*given.artifacts, *step.artifacts],
        steps=None,
    )


def _verifier(task: Verifier, step: Verifier) -> Verifier:
    said = step.environment_mode is not None or step.environment is not None
    separate = step.separate if said else task.separate
    return msgspec.structs.replace(
        _with_network(step, task),
        env={**task.env, **step.env},
        user=task.user if step.user is None else step.user,
        environment_mode="separate" if separate else "shared",
        environment=(step.environment or task.environment) if separate else None,
        collect=[*task.collect, *step.collect],
    )


def _with_network(step: _Phase, task: _Phase) -> _Phase:
    chosen = task if step.network_mode is None and step.allowed_hosts is None else step
    return msgspec.structs.replace(step, network_mode=chosen.network_mode, allowed_hosts=chosen.allowed_hosts)
