"""Configuration of model endpoints (section `[endpoints.<name>]`) and the arithmetic of their prices."""

from typing import Annotated, Any

import msgspec

from orchard.schemas.llm_calls import Usage
from orchard.schemas.quantities import Count, Unit, Weight

_Dollars = Annotated[Weight, Unit("USD per million tokens")]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """USD per million tokens."""

    prompt: _Dollars
    """Of prompt tokens."""
    completion: _Dollars
    """Of completion tokens."""
    cached: _Dollars | None = None
    """Of prompt tokens read from the endpoint's cache; None: they cost as much as the others."""


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One OpenAI-compatible endpoint. Its URL and key stay in the configuration and the environment."""

    base_url: str
    """With the version path, for example `https://api.openai.com/v1`."""
    replicas: tuple[str, ...] = ()
    """Base URLs of further servers of the same models, with the same key. All calls of one rollout go to one
    server, so that its prefix cache holds; those of one that fails go to others until it answers again."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; None: the endpoint wants no key."""
    concurrency: Count = 32
    """Calls at once from this process, at most; 429 answers lower it for a while."""
    max_tries: Count = 6
    """Tries that connection errors and 5xx answers may cost a call while the endpoint answers others; 429
    answers are bounded by time only. One that answers nobody rests, and costs no try."""
    stream: bool = False
    """Ask for answers as streams, for an endpoint that serves long ones only so. The record is the same."""
    max_reply_bytes: Annotated[Count, Unit("bytes")] = 32 * 1024 * 1024
    """Of a reply's body, unpacked. A completion that goes on beyond it counts as cut off by its length."""
    prices: dict[str, Price] = {}
    """By model name, as asked for. A model that is not listed has an unknown cost, not a cost of zero."""
    extra_body: dict[str, Any] = {}
    """Fields added to every request: `return_token_ids = true` (vLLM, SGLang),
    `return_weight_versions = true` to have vLLM name the policy, `chat_template_kwargs`, ..."""
    reasoning_field: str | None = None
    """Field of assistant messages in which earlier reasoning is sent; None: the one that the endpoint's own
    answers have it in, empty: none, so that the model does not see its earlier reasoning again."""


def cost_usd(settings: EndpointSettings, model: str, usage: Usage) -> float | None:
    """What a call cost, or None when the model has no price in the settings."""
    price = settings.prices.get(model)
    if price is None:
        return None
    cached_price = price.prompt if price.cached is None else price.cached
    fresh = usage.prompt_tokens - usage.cached_tokens
    return (
        fresh * price.prompt + usage.cached_tokens * cached_price + usage.completion_tokens * price.completion
    ) / 1e6
