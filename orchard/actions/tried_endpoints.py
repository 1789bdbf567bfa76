"""Remembers in the state directory which endpoints were tried and work, so that each is asked once."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from orchard.actions.endpoint_trial import ModelNotNamed, Trial, key_in, unlisted
from orchard.actions.replica_trial import try_endpoint
from orchard.actions.reporter import plural
from orchard.configuration.config import ConfigError
from orchard.configuration.findings import Finding
from orchard.schemas.campaigns import CampaignSpec, ModelSpec
from orchard.schemas.identity import digest
from orchard.schemas.llm_calls import ModelKind
from orchard.workers.harnesses import get_harness, needs_tools, text_harness
from orchard.workers.llm.rest_policy import servers
from orchard.workers.llm.settings import EndpointSettings

SECONDS = 60.0
"""Most seconds of each question of `submit`."""
DOCTOR_SECONDS = 20.0
_OTHERWISE = "use --no-try to submit anyway"


def remember(directory: Path, settings: EndpointSettings, trial: Trial) -> None:
    """Writes the result of a trial, unless a server has a problem or failed at a question."""
    if any(each.problem or each.temporary for each in (trial, *trial.replicas)):
        return
    file = _file(directory, settings, trial.endpoint, trial.model)
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(trial))
    new.replace(file)


def remembered(directory: Path, settings: EndpointSettings, endpoint: str, model: str) -> Trial | None:
    """Reads the result of an earlier trial of the same servers, request fields, model and key."""
    try:
        return msgspec.json.decode(_file(directory, settings, endpoint, model).read_bytes(), type=Trial)
    except (OSError, msgspec.MsgspecError):
        return None


def _file(directory: Path, settings: EndpointSettings, endpoint: str, model: str) -> Path:
    key = hashlib.sha256(key_in(endpoint, settings).encode()).hexdigest()
    tried = [sorted(servers(settings)), settings.extra_body, settings.stream, endpoint, model, key]
    return directory / "tried" / f"{digest(tried)}.json"


async def check_endpoints(
    directory: Path, spec: CampaignSpec, endpoints: Mapping[str, EndpointSettings]
) -> list[str]:
    """Tries what the campaign's models need of their endpoints, unless it is known; notes, a sentence each.

    Raises ConfigError if an endpoint refuses what the harnesses ask of it. What may pass by itself is a note,
    and so is a key or an endpoint that only the workers have.
    """
    notes = []
    tools = [name for name in spec.harnesses if needs_tools(get_harness(name))]
    for model in _asked(spec.actors):
        settings = endpoints.get(model.endpoint)
        if settings is None:
            continue
        try:
            trial, note = await _known_or_tried(directory, settings, model, tools)
        except ConfigError as error:
            notes.append(f"not tried: {error}")
            continue
        notes += [*note, *_checked(trial, model, tools)]
    return notes


async def examine_endpoints(endpoints: Mapping[str, EndpointSettings]) -> list[Finding]:
    """Tries all endpoints at once; one finding each."""
    return await asyncio.gather(*(_examined(*each) for each in endpoints.items()))


async def _examined(name: str, settings: EndpointSettings) -> Finding:
    what = f"endpoint {name}"
    try:
        trial = await try_endpoint(name, settings, None, DOCTOR_SECONDS)
    except ModelNotNamed:
        return Finding(what, True, f"reached; `orchard try {name} --model MODEL` tries one of its models")
    except ConfigError as error:
        return Finding(what, False, "not tried", str(error))
    if trial.problem:
        return Finding(what, False, "does not work", trial.problem)
    says = f"{trial.model} works with {', '.join(trial.harnesses)}"
    unlike = _unlike(trial)
    return Finding(what, not unlike, "; ".join([says, *unlike]))


def _unlike(trial: Trial) -> list[str]:
    """What servers of the endpoint lack or serve otherwise, a sentence each."""
    mine = {f"server {each.server}" for each in trial.replicas}
    found = [each for each in trial.findings if each.what in mine and not each.good]
    return [f"{each.what} {each.says}: {each.remedy}" for each in found]


def _asked(models: Iterable[ModelSpec]) -> list[ModelSpec]:
    """Models apart from the oracle, one of each name at each endpoint."""
    asked = {(each.endpoint, each.name): each for each in models if not _played(each)}
    return list(asked.values())


def _played(model: ModelSpec) -> bool:
    return model.kind is ModelKind.ORACLE or model.name.startswith("oracle/")


async def _known_or_tried(
    directory: Path, settings: EndpointSettings, model: ModelSpec, tools: list[str]
) -> tuple[Trial, list[str]]:
    known = remembered(directory, settings, model.endpoint, model.name)
    if known is not None and (known.tools or not tools):
        return known, []
    trial = await try_endpoint(model.endpoint, settings, model.name, SECONDS)
    remember(directory, settings, trial)
    spent = "" if trial.tokens is None else f" with {plural(trial.tokens, 'token')}"
    said = f"endpoint {model.endpoint} was tried once with {model.name}{spent}: --no-try skips this"
    return trial, [] if trial.problem else [said]


def _checked(trial: Trial, model: ModelSpec, tools: list[str]) -> list[str]:
    """Notes on a trial. Raises ConfigError if the campaign cannot work."""
    if trial.problem and trial.temporary:
        return [f"{trial.problem}: the campaign waits until it answers"]
    if trial.problem:
        raise ConfigError(f"{trial.problem}; {_OTHERWISE}")
    why = next((each.says for each in trial.findings if each.what == "tool calls"), "")
    if trial.tools is False and tools:
        raise ConfigError(
            f"{tools[0]} needs tool calls, and {model.name} at endpoint {trial.endpoint!r} has none ({why}): "
            f"use --harness {text_harness()}, or {_OTHERWISE}"
        )
    notes = [f"endpoint {trial.endpoint}: {each}" for each in _unlike(trial)]
    notes += [f"{model.name}: tool calls did not work ({why})"] if trial.tools is None and tools else []
    notes += [f"endpoint {trial.endpoint}: {missing}"] if (missing := unlisted(trial)) else []
    if model.logprobs and not trial.logprobs:
        said = "not known to be" if trial.logprobs is None else "not"
        notes.append(f"{model.name}: log-probabilities are {said} served")
    return notes
