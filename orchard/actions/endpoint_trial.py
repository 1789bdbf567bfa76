"""Asks an endpoint a few short questions, and tells what of it works and which harness suits."""

import asyncio
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from orchard.actions.endpoint_calls import CallFailed, EndpointCalls
from orchard.configuration.config import ConfigError
from orchard.configuration.findings import Finding
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.llm_calls import Usage
from orchard.schemas.nearest import meant
from orchard.workers.harnesses import TASK, patch_harness, text_harness
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.rest_policy import host_of
from orchard.workers.llm.settings import EndpointSettings, Price, cost_usd
from orchard.workers.llm.tool_counts import leaves_tools_out, question

_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
_SUM = [{"role": "user", "content": "Call the tool `add` to add 20 and 22."}]
_YES = [{"role": "user", "content": "Say yes."}]
_THOUGHT, _WORD, _ENDLESS = 2048, 16, 1_000_000_000
"""Most tokens of an answer: of one that may think, of one of a word, and of one that no context has room
for."""
_LENGTHS = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")
"""Fields of a listed model in which servers tell the context: vLLM and SGLang, OpenRouter, Groq, LM Studio,
llama.cpp."""
_SAID_LENGTH = re.compile(
    r"(?:context (?:length|window|size)|max_model_len)\D{0,30}?(\d{3,9})(?!\d)", re.IGNORECASE
)
_NAMED = 5
"""Models that a message names."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint serves for one model; None is what could not be found out."""

    endpoint: str
    model: str
    server: str
    """Host and port of the server that this tells of: of several, the one that serves least."""
    problem: str = ""
    """Sentence that says why no harness works; empty if one does."""
    temporary: bool = False
    """Whether the problem, or a failure that leaves something unknown, may pass by itself."""
    tools: bool | None = None
    streams: bool | None = None
    usage: bool | None = None
    logprobs: bool | None = None
    token_ids: bool | None = None
    context_length: int | None = None
    """Tokens of prompt and answer."""
    price: Price | None = None
    """Price in the configuration."""
    tokens: int | None = None
    """Tokens that the questions took; None if the endpoint did not count all of them."""
    cost_usd: float | None = None
    harnesses: list[str] = []
    """Harnesses that suit, the best first."""
    command: str = ""
    """Command to go on with."""
    findings: list[Finding] = []
    """The same in words, and a line for each further server."""
    models: list[str] = []
    """Models that the server lists."""
    replicas: list["Trial"] = []
    """Trials of the endpoint's other servers."""


class ModelNotNamed(ConfigError):
    """An endpoint has several models, or does not list them."""


def key_in(name: str, settings: EndpointSettings) -> str:
    """Returns the key of an endpoint, empty if it wants none. Raises ConfigError if its variable is not
    set."""
    key = os.environ.get(settings.api_key_env, "") if settings.api_key_env else ""
    if settings.api_key_env and not key:
        raise ConfigError(
            f"endpoint {name!r} needs its key in the environment variable {settings.api_key_env}: set it"
        )
    return key


async def try_server(name: str, settings: EndpointSettings, model: str | None, seconds: float) -> Trial:
    """Asks the first server of an endpoint about five short questions, each for at most `seconds`.

    Without a `model` takes the only one that has a price or that the server lists. Raises ModelNotNamed if
    there is none, and ConfigError if the key is not set.
    """
    calls = EndpointCalls(settings, key_in(name, settings), seconds)
    trial = Trial(endpoint=name, model=model or "", server=host_of(settings.base_url))
    try:
        try:
            listed = await calls.models()
        except CallFailed as failed:
            if model is None and not settings.prices and failed.status in (0, 401, 403):
                return _failed(trial, settings, failed)
            listed = []  # some servers have no list, and some keys may not see it
        if model is None:
            model = _only_model(name, settings, listed)
        there = sorted(each["id"] for each in listed)
        trial = msgspec.structs.replace(trial, model=model, models=there, price=settings.prices.get(model))
        return await _asked(trial, calls, settings, listed)
    finally:
        await calls.close()


def _only_model(name: str, settings: EndpointSettings, listed: Sequence[Mapping[str, Any]]) -> str:
    there = list(settings.prices) or [each["id"] for each in listed]
    if len(there) == 1:
        return there[0]
    raise ModelNotNamed(f"endpoint {name!r} has {_names(there)}: name one with --model")


def _names(models: Sequence[str]) -> str:
    if not models:
        return "no list of models"
    more = f" and {len(models) - _NAMED} more" if len(models) > _NAMED else ""
    return f"the models {', '.join(models[:_NAMED])}{more}"


async def _asked(
    trial: Trial, calls: EndpointCalls, settings: EndpointSettings, listed: Sequence[Mapping[str, Any]]
) -> Trial:
    """Asks for a tool call; if that is answered or refused for its tool, all else."""
    try:
        tools, said = await _tool_call(calls, trial.model)
    except CallFailed as failed:
        return _failed(trial, settings, failed)
    (streams, stream_said), (logprobs, ids, logprobs_said), length = await asyncio.gather(
        _streamed(calls, trial.model), _sampled(calls, trial.model), _context(calls, trial.model, listed)
    )
    counted = [_total(usage) for usage in calls.usages]
    costs = [cost_usd(settings, trial.model, usage) for usage in calls.usages]
    usage = _total(calls.usages[0]) is not None
    trial = msgspec.structs.replace(
        trial,
        temporary=streams is None or logprobs is None,
        tools=tools,
        streams=streams,
        usage=usage,
        logprobs=logprobs,
        token_ids=ids,
        context_length=length,
        tokens=None if None in counted else sum(each or 0 for each in counted),
        cost_usd=None if None in costs else math.fsum(each or 0.0 for each in costs),
        harnesses=[text_harness()] if tools is False else [patch_harness(), TASK, text_harness()],
    )
    if settings.stream and streams is False:
        said = f"endpoint {trial.endpoint!r} is configured with `stream = true`, but {stream_said}"
        return _with_problem(msgspec.structs.replace(trial, harnesses=[]), said, temporary=False)
    words = (said, stream_said, logprobs_said)
    return msgspec.structs.replace(trial, command=_command(trial), findings=_findings(trial, words))


def _total(usage: Usage) -> int | None:
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    return usage.prompt_tokens + usage.completion_tokens


def unlisted(trial: Trial) -> str:
    """Sentence on a model that the server's list of models lacks; empty for others, and without a list."""
    if not trial.models or trial.model in trial.models:
        return ""
    return f"the server's list of models lacks {trial.model}: {meant(trial.model, trial.models)}"


def _failed(trial: Trial, settings: EndpointSettings, failed: CallFailed) -> Trial:
    where = settings.base_url.partition("?")[0]
    why = unlisted(trial) or "check base_url and the model's name"
    check = f": {why}" if failed.status == 404 else ""
    problem = f"endpoint {trial.endpoint!r} at {where} {failed}{check}"
    return _with_problem(trial, problem, temporary=failed.temporary)


def _with_problem(trial: Trial, problem: str, *, temporary: bool) -> Trial:
    finding = Finding("answers", False, "no", problem)
    return msgspec.structs.replace(trial, problem=problem, temporary=temporary, findings=[finding])


async def _tool_call(calls: EndpointCalls, model: str) -> tuple[bool | None, str]:
    """Whether the model's calls arrive, and why not. Raises CallFailed if the endpoint answers nothing at
    all."""
    try:
        answer = await calls.complete(model, _SUM, _THOUGHT, {"tools": [_TOOL]})
    except CallFailed as failed:
        if failed.status in (0, 401, 403, 429):
            raise
        await calls.complete(model, _YES, _WORD)
        return _unless_temporary(failed), f"a request with a tool {failed}"
    if answer.tool_calls:
        return True, f"the model called `{answer.tool_calls[0].name:.40}`"
    if await _left_out(calls, model):
        return False, "the chat template leaves tools out, so the model is not told of them"
    if answer.finish_reason == "length":
        return None, f"unknown: {_THOUGHT} tokens were not enough for the call"
    return None, f"the model was asked for a call and wrote text: {' '.join(answer.text.split())[:60]!r}"


def _unless_temporary(failed: CallFailed) -> bool | None:
    """What a refused question shows: nothing where the server may answer it another time."""
    return None if failed.temporary and failed.status else False


async def _left_out(calls: EndpointCalls, model: str) -> bool:
    _, messages, tools = question(ModelSpec(name=model))
    try:
        counted = (await calls.complete(model, messages, 1, {"tools": tools})).usage.prompt_tokens
    except CallFailed:
        return False
    return counted is not None and leaves_tools_out(counted)


async def _streamed(calls: EndpointCalls, model: str) -> tuple[bool | None, str]:
    try:
        chunks, usage = await calls.stream(model, _YES, _WORD)
    except CallFailed as failed:
        return _unless_temporary(failed), f"a request for a stream {failed}"
    return True, f"{chunks} chunks, {'with' if _total(usage) is not None else 'without'} usage"


async def _sampled(calls: EndpointCalls, model: str) -> tuple[bool | None, bool | None, str]:
    """Whether log-probabilities and token ids are served, and what is said of it. Strict servers refuse the
    field for ids."""
    try:
        try:
            answer = await calls.complete(model, _YES, _WORD, {"logprobs": True, "return_token_ids": True})
        except CallFailed:
            answer = await calls.complete(model, _YES, _WORD, {"logprobs": True})
    except CallFailed as failed:
        served = _unless_temporary(failed)
        return served, served, f"a request for them {failed}"
    return _of_tokens(answer)


def _of_tokens(answer: Completion) -> tuple[bool, bool, str]:
    tokens = answer.tokens
    served, ids = bool(tokens and tokens.logprobs), bool(tokens and tokens.ids)
    if not served:
        return False, ids, "not in the answer"
    return True, ids, "with token ids" if ids else "without token ids, which training needs"


async def _context(calls: EndpointCalls, model: str, listed: Sequence[Mapping[str, Any]]) -> int | None:
    """Tokens of the context: as the server lists it, else as it refuses an endless answer."""
    entry = next((each for each in listed if each["id"] == model), {})
    meta = entry.get("meta")
    for where in (entry, meta if isinstance(meta, Mapping) else {}):
        for field in _LENGTHS:
            if type(where.get(field)) is int:
                return int(where[field])
    found = _SAID_LENGTH.search(await calls.refused_length(model, _YES, _ENDLESS))
    return int(found[1]) if found else None


def _command(trial: Trial) -> str:
    """The command that submits a first campaign at this endpoint."""
    words = ["orchard", "submit", "first", "--model", trial.model]
    words += [] if trial.endpoint == "default" else ["--endpoint", trial.endpoint]
    words += ["--harness", trial.harnesses[0]] if trial.tools is False else []
    return shlex.join([*words, "--limit", "3"])


def _findings(trial: Trial, words: tuple[str, str, str]) -> list[Finding]:
    said, stream_said, logprobs_said = words
    text = text_harness()
    price, length = trial.price, trial.context_length
    where = f'[endpoints.{trial.endpoint}.prices."{trial.model}"]'
    suits = f"`{text}`, which needs no tools" if trial.tools is False else f"any, `{patch_harness()}` first"
    without = (
        f"use --harness {text}, or serve the model with tool calls (vLLM: --enable-auto-tool-choice and "
        "--tool-call-parser)"
    )
    unknown = (
        [Finding("model", False, missing, "name it with --model")] if (missing := unlisted(trial)) else []
    )
    if trial.tools is None:
        without = f"ask again; where it stays so, {without}"
    return [
        Finding("answers", True, f"{trial.model} at {trial.server}"),
        *unknown,
        Finding("tool calls", trial.tools is True, said, "" if trial.tools else without),
        Finding("streams", bool(trial.streams), stream_said),
        Finding(
            "usage", bool(trial.usage), "tokens are counted" if trial.usage else "tokens are not counted"
        ),
        Finding(
            "price",
            price is not None,
            f"USD {price.prompt:g} and {price.completion:g} per million tokens"
            if price
            else "not configured",
            "" if price else f"add prompt and completion under {where}, or costs stay unknown",
        ),
        Finding("context", True, "unknown" if length is None else f"{length} tokens"),
        Finding("log-probabilities", bool(trial.logprobs), logprobs_said),
        Finding("harness", True, suits),
    ]
