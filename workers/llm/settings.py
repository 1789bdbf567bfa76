"""Configuration of model endpoints (section `[endpoints.<name>]`) and the arithmetic of their prices."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from orchard.schemas.addresses import check_base_url, check_variable
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.llm_calls import Usage
from orchard.schemas.quantities import Count, Unit, Weight

_Dollars = Annotated[Weight, Unit("USD per million tokens")]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices in USD per million tokens."""

    prompt: _Dollars
    """Price of all prompt tokens, or of those that were not cached."""
    completion: _Dollars
    """Price of completion tokens, reasoning included."""
    cached: _Dollars | None = None
    """Price of prompt tokens read from the endpoint's cache; None: the same as other prompt tokens."""


class ScoringWire(StrEnum):
    """How an endpoint is asked for log-probabilities of given tokens."""

    VLLM = "vllm"
    """`prompt_logprobs` of `/v1/completions`: of vLLM and of Orchard's policy server."""
    SGLANG = "sglang"
    """`return_logprob` of `/generate`."""


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One OpenAI-compatible endpoint. Its URL and key stay in the configuration and the environment."""

    base_url: str
    """Base URL with the version path, for example `https://api.openai.com/v1`."""
    replicas: tuple[str, ...] = ()
    """Base URLs of further servers of the same models, with the same key. All calls of one rollout go to one
    server, so that its prefix cache holds; those of one that fails go to others until it answers again."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; None: the endpoint needs no key."""
    concurrency: Count = 32
    """Maximum concurrent calls of this process; 429 answers lower it for a while."""
    max_tries: Count = 6
    """Maximum tries of a call after connection errors and 5xx answers while the endpoint answers other calls;
    429 answers are limited by time only. An endpoint that answers no call rests, which uses up no try."""
    stream: bool = False
    """Request answers as streams, for an endpoint that serves long answers only this way. The record is the
    same."""
    max_reply_bytes: Annotated[Count, Unit("bytes")] = 32 * 1024 * 1024
    """Maximum bytes of a reply's body after decompression. A completion that has begun and goes on beyond it
    counts as cut off by its length; any other body as no answer."""
    prices: dict[str, Price] = {}
    """Prices by model name, as asked for. A model that is not listed has an unknown cost, not a cost of
    zero."""
    extra_body: dict[str, Any] = {}
    """Fields added to every request: `return_token_ids = true` (vLLM, SGLang),
    `return_weight_versions = true` to have vLLM name the policy, `chat_template_kwargs`, ... Where ids and
    log-probabilities are asked for, `top_p` 1, `top_k` -1, `min_p` 0 and `repetition_penalty` 1 are sent with
    them, unless they are set here: tokens that train are sampled from the model itself."""
    reasoning_field: str | None = None
    """Field of assistant messages in which earlier reasoning is sent; None: the field in which the endpoint's
    answers have it; empty: none, so that the model does not see its earlier reasoning."""

    def __post_init__(self) -> None:
        """Raises ValueError for an invalid address, and for a key in place of its variable's name."""
        if self.base_url:  # empty where no call is made
            check_base_url(self.base_url, "base_url")
        for replica in self.replicas:
            check_base_url(replica, "replicas")
        check_variable(self.api_key_env, "api_key_env")


_UNCUT: Mapping[str, Any] = MappingProxyType(
    {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
)
"""Sampling from the model itself. vLLM and SGLang otherwise take these values from its
generation_config.json."""
_ASKS_FOR_IDS = frozenset(
    {"return_token_ids", "return_tokens_as_token_ids", "return_output_ids_in_sglext", "return_meta_info"}
)
"""Fields of `extra_body` that only vLLM and SGLang know."""


def uncut(settings: EndpointSettings, spec: ModelSpec) -> dict[str, Any]:
    """Returns fields that are sent without being configured, unless `extra_body` or the model sets them:
    tokens that are requested with ids and log-probabilities are for training, so they are sampled from the
    model itself. A server that is asked for ids knows these fields, too."""
    asks = spec.logprobs or settings.extra_body.get("logprobs")
    if not (asks and any(map(settings.extra_body.get, _ASKS_FOR_IDS))):
        return {}
    said = {*settings.extra_body, *(["top_p"] if spec.top_p is not None else [])}
    return {name: value for name, value in _UNCUT.items() if name not in said}


def cost_usd(settings: EndpointSettings, model: str, usage: Usage) -> float | None:
    """Returns the cost of a call; None if the model has no price in the settings or its tokens are not known.
    Tokens that no endpoint reports as cached count as not cached."""
    price = settings.prices.get(model)
    if price is None or usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    cached = usage.cached_tokens or 0
    cached_price = price.prompt if price.cached is None else price.cached
    fresh = usage.prompt_tokens - cached
    return (fresh * price.prompt + cached * cached_price + usage.completion_tokens * price.completion) / 1e6
