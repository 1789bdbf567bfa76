"""Reading a chat completion as servers really write it: OpenAI's fields, vLLM's and SGLang's additions."""

import re
from typing import Any

import msgspec

from orchard.schemas.llm_calls import ModelKind, Usage
from orchard.schemas.messages import TokenRecord, ToolCall, VersionRun

ORACLE_FINGERPRINT = "orchard-oracle"
"""How the `system_fingerprint` of everything played from a gold patch begins."""


_UNKNOWN_LOGPROB = -9999.0
"""vLLM's for a token whose log-probability it does not know."""


class MalformedAnswer(ValueError):
    """A 2xx reply without a usable choice; one sentence says what is wrong."""

    def __init__(self, detail: str, error: object = None) -> None:
        super().__init__(detail)
        self.error = error
        """What the reply held under `error`, as some routers answer 200 to a refusal."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One assistant message, with all that the endpoint said about how it was made."""

    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: TokenRecord | None = None
    usage: Usage = Usage()
    cost_usd: float | None = None
    seconds: float = 0.0
    """Of the try that was answered; waiting for a place and earlier tries are not the model's time."""
    tries: int = 1
    finish_reason: str = ""
    endpoint: str = ""
    model: str = ""
    """As asked for."""
    served_model: str = ""
    system_fingerprint: str = ""
    model_kind: ModelKind = ModelKind.MODEL


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = ""


class _Call(msgspec.Struct):
    id: str | None = None
    function: _Function = msgspec.field(default_factory=_Function)


class _Message(msgspec.Struct):
    content: Any = None
    tool_calls: list[_Call] | None = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Sampled(msgspec.Struct):
    logprob: float | None = None
    token: str = ""


class _Logprobs(msgspec.Struct):
    content: list[_Sampled] | None = None


class _Span(msgspec.Struct):
    start: int
    version: int | str


class _Weights(msgspec.Struct):
    """SGLang's words on which weights sampled: spans of tokens, or one version for all."""

    weight_versions: list[_Span] | None = None
    weight_version: int | str | None = None


class _Extension(_Weights):
    """What SGLang puts beside the choices: ids of the prompt, and of each choice's tokens."""

    input_ids: list[int] | None = None
    output_ids: list[list[int]] | None = None


class _MetaInfo(_Weights):
    output_token_logprobs: list[tuple[float | None, int, Any]] | None = None


class _Choice(msgspec.Struct):
    message: _Message = msgspec.field(default_factory=_Message)
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    policy_versions: list[_Span] | None = None
    weight_versions: list[_Span] | None = None
    meta_info: _MetaInfo | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | None = None
    metadata: _Weights | None = None
    sglext: _Extension | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Reply)


def read_completion(raw: bytes) -> Completion:
    """The completion in the body of a 2xx reply; `endpoint`, `model`, cost and time are the caller's to add.

    Raises MalformedAnswer when the body is no chat completion or has no choice.
    """
    try:
        reply = _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedAnswer(f"the reply is not a chat completion: {error}") from error
    if not reply.choices:
        raise MalformedAnswer("the reply has no choices", reply.error)
    choice = reply.choices[0]
    message = choice.message
    fingerprint = reply.system_fingerprint or ""
    return Completion(
        text=_text(message.content),
        reasoning=_text(message.reasoning_content) or _text(message.reasoning),
        tool_calls=_calls(message.tool_calls or []),
        tokens=_tokens(reply, choice),
        usage=_usage(reply.usage),
        finish_reason=choice.finish_reason or "",
        served_model=reply.model or "",
        system_fingerprint=fingerprint,
        model_kind=ModelKind.ORACLE if fingerprint.startswith(ORACLE_FINGERPRINT) else ModelKind.MODEL,
    )


def _text(content: Any) -> str:
    """Text of a string or of a list of content parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return ""


def _calls(calls: list[_Call]) -> tuple[ToolCall, ...]:
    """Calls as the model wrote them, with an id made where the endpoint gave none or one twice."""
    written: dict[str, ToolCall] = {}
    for index, call in enumerate(calls):
        name = call.id if call.id and call.id not in written else f"call_{index}"
        arguments = call.function.arguments
        if not isinstance(arguments, str):
            # An endpoint that parsed the arguments has them written again.
            arguments = "" if arguments is None else msgspec.json.encode(arguments).decode()
        written[name] = ToolCall(id=name, name=call.function.name or "", arguments=arguments)
    return tuple(written.values())


def _usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage()
    prompt = usage.prompt_tokens_details or _PromptDetails()
    completion = usage.completion_tokens_details or _CompletionDetails()
    return Usage(
        prompt_tokens=usage.prompt_tokens or 0,
        completion_tokens=usage.completion_tokens or 0,
        cached_tokens=prompt.cached_tokens or 0,
        reasoning_tokens=completion.reasoning_tokens or usage.reasoning_tokens or 0,
    )


def _tokens(reply: _Reply, choice: _Choice) -> TokenRecord | None:
    """Sampled tokens, wherever the server put them; None when it gave neither ids nor log-probabilities.

    vLLM (`return_token_ids`): `choice.token_ids` and the reply's `prompt_token_ids`, or log-probability
    tokens `token_id:<n>`. SGLang: `response_token_ids` and `prompt_token_ids` of the choice, the ids in
    `sglext`, or (log-probability, id, text) triples in `choice.meta_info`. Log-probabilities that do not
    align with the ids are left out, and so are versions that are no numbers. Our own policy server: vLLM's
    fields and `choice.policy_versions`.
    """
    beside = reply.sglext or _Extension()
    sampled = (choice.logprobs.content if choice.logprobs else None) or []
    triples = (choice.meta_info.output_token_logprobs if choice.meta_info else None) or []
    ids = choice.token_ids or choice.response_token_ids or (beside.output_ids or [[]])[0]
    ids = ids or [token for _, token, _ in triples] or _written_ids(sampled)
    found = [triple[0] for triple in triples] or [token.logprob for token in sampled]
    logprobs = [value for value in found if value is not None and value > _UNKNOWN_LOGPROB]
    if len(logprobs) != len(found) or (ids and len(logprobs) != len(ids)):
        logprobs = []
    if not ids and not logprobs:
        return None
    prompt = reply.prompt_token_ids or choice.prompt_token_ids or beside.input_ids or []
    return TokenRecord(
        ids=tuple(ids),
        logprobs=tuple(logprobs),
        prompt_ids=tuple(prompt),
        versions=_versions(reply, choice, max(len(ids), len(logprobs))),
    )


def _versions(reply: _Reply, choice: _Choice, tokens: int) -> tuple[VersionRun, ...]:
    """Runs of policy versions over `tokens` tokens; none unless all are known."""
    spans = choice.policy_versions or choice.weight_versions or []
    for weights in (choice.meta_info, reply.sglext, reply.metadata):
        if not spans and weights is not None:
            spans = weights.weight_versions or []
            if not spans and weights.weight_version is not None:
                spans = [_Span(start=0, version=weights.weight_version)]
    runs = []
    for span in spans:
        number = re.fullmatch(r"v?(\d+)", str(span.version))
        if number is None:
            return ()
        runs.append(VersionRun(start=span.start, version=int(number[1])))
    starts = [run.start for run in runs]
    ordered = starts[:1] == [0] and starts == sorted(set(starts)) and starts[-1] < tokens
    return tuple(runs) if ordered else ()


def _written_ids(sampled: list[_Sampled]) -> list[int]:
    prefix = "token_id:"
    if not all(token.token.startswith(prefix) and token.token[len(prefix) :].isdigit() for token in sampled):
        return []
    return [int(token.token[len(prefix) :]) for token in sampled]
