"""The bodies that the policy server accepts. It refuses what it cannot do: no field is ignored."""

from typing import Annotated, Any, TypeVar

import msgspec

from orchard.pipelines.policy.sampling import Sampling
from orchard.schemas.decoding import Unreadable, decode


class BadRequest(ValueError):
    """A request that would be refused again; `code` is OpenAI's name for the fault."""

    def __init__(self, message: str, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


Temperature = Annotated[float, msgspec.Meta(ge=0, le=100)]
Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]


class _Choosing(msgspec.Struct, kw_only=True):
    """Fields that both kinds of completion share. None is the same as absent, since clients send both."""

    model: str
    max_tokens: int | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    """Extension of vLLM: continue to `max_tokens` whatever is sampled."""
    return_token_ids: bool | None = None
    """Extension of vLLM: ids of prompt and answer in the reply, here with the policy versions that
    sampled them."""
    return_tokens_as_token_ids: bool | None = None
    """Extension of vLLM: log-probabilities name a token `token_id:<n>`."""
    return_routed_experts: bool | None = None
    """Extension of SGLang: the experts of all tokens but the last, of a mixture of experts."""
    stream: bool | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_p: float | None = None

    def sampling(self, stop_ids: frozenset[int], most: int) -> Sampling:
        """The request's sampling options; `most` where it sets no limit of tokens. Raises BadRequest."""
        limit = most if self.limit is None else self.limit
        if limit < 1:
            raise BadRequest("max_tokens must be 1 or more")
        return Sampling(
            max_tokens=limit,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            seed=self.seed,
            stop_ids=frozenset() if self.ignore_eos else stop_ids,
        )

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def stops(self) -> list[str]:
        """Texts that end the answer."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]

    def refused(self) -> list[str]:
        """Names of fields that ask for what this server cannot do."""
        neutral = {
            "stream": False,
            "n": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "repetition_penalty": 1,
            "logit_bias": {},
            "min_p": 0,
        }
        return [name for name, value in neutral.items() if getattr(self, name) not in (None, value)]


class ChatRequest(_Choosing, kw_only=True):
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def refused(self) -> list[str]:
        chat = []
        if self.tool_choice not in (None, "auto"):
            chat.append("tool_choice")
        if self.response_format not in (None, {"type": "text"}):
            chat.append("response_format")
        chat += [name for name in ("top_logprobs", "chat_template_kwargs") if getattr(self, name)]
        return super().refused() + chat


class CompletionRequest(_Choosing, kw_only=True):
    """Body of POST /v1/completions: a text, or token ids in and token ids out, also of several prompts."""

    prompt: str | list[int | list[int]]
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    """Extension of vLLM: 0 asks for the log-probability of each token of the prompt, at temperature 1."""
    echo: bool | None = None
    suffix: str | None = None

    def refused(self) -> list[str]:
        names = ("echo", "suffix", "prompt_logprobs")  # of these, 0 alone can be done
        return super().refused() + [name for name in names if getattr(self, name)]


class ReloadRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    path: str
    version: Annotated[int, msgspec.Meta(ge=0)]
    run: str = ""
    """Run whose policy they are, which `/health` reports from then on."""


Body = TypeVar("Body", ChatRequest, CompletionRequest, ReloadRequest)


def read_body(raw: bytes, kind: type[Body]) -> Body:
    """The decoded body. Raises BadRequest for one that is malformed or asks for what cannot be done."""
    try:
        body = decode(msgspec.json.Decoder(kind), raw)
    except Unreadable as error:
        raise BadRequest(f"the body is not a valid request: {error}") from error
    if isinstance(body, _Choosing) and (names := body.refused()):
        raise BadRequest(f"this server does not support {', '.join(names)}: leave it out")
    return body
