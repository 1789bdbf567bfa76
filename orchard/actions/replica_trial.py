"""Tries all servers of an endpoint, and tells in what they differ."""

import asyncio
import math
from collections.abc import Sequence

import msgspec

from orchard.actions.endpoint_trial import Trial, try_server
from orchard.configuration.findings import Finding
from orchard.workers.llm.rest_policy import servers
from orchard.workers.llm.settings import EndpointSettings

_COMPARED = {
    "models": "models",
    "tools": "tool calls",
    "streams": "streams",
    "usage": "usage",
    "logprobs": "log-probabilities",
    "token_ids": "token ids",
    "context_length": "context",
}
"""Fields of a trial in which servers of one endpoint should be equal, by name."""


async def try_endpoint(name: str, settings: EndpointSettings, model: str | None, seconds: float) -> Trial:
    """Tries each server of an endpoint. Returns the trial of the one that serves least, with the others in
    `replicas`: harness and command then suit all. Raises as `try_server` does.
    """
    alone = [msgspec.structs.replace(settings, base_url=url, replicas=()) for url in servers(settings)]
    first = await try_server(name, alone[0], model, seconds)
    chosen = model or first.model or None
    others = await asyncio.gather(*(try_server(name, each, chosen, seconds) for each in alone[1:]))
    return joined([first, *others])


def joined(trials: Sequence[Trial]) -> Trial:
    """The trial of an endpoint, from those of its servers; one that does not work is a finding while another
    works."""
    working = [each for each in trials if not each.problem] or list(trials)
    least = next((each for each in working if each.tools is False), working[0])
    others = [each for each in trials if each is not least]
    costs = [each.cost_usd for each in trials if not each.problem]
    tokens = [each.tokens for each in trials if not each.problem]
    return msgspec.structs.replace(
        least,
        tokens=None if None in tokens else sum(each or 0 for each in tokens),
        cost_usd=None if None in costs else math.fsum(each or 0.0 for each in costs),
        findings=[*least.findings, *(_compared(each, least) for each in others)],
        replicas=others,
    )


def _compared(other: Trial, least: Trial) -> Finding:
    what = f"server {other.server}"
    if other.problem:
        return Finding(what, False, "does not work", other.problem)
    differences = [
        f"{name}: {_shown(there)}, not {_shown(here)}"
        for field, name in _COMPARED.items()
        if (there := getattr(other, field)) != (here := getattr(least, field))
    ]
    if not differences:
        return Finding(what, True, f"serves the same as {least.server}")
    remedy = "serve the same model with the same options at every server of an endpoint"
    return Finding(what, False, f"differs from {least.server}: {'; '.join(differences)}", remedy)


def _shown(value: object) -> str:
    match value:
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case list():
            return " ".join(value) or "none"
        case _:
            return str(value)
