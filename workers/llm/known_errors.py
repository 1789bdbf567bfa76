"""The error replies of servers and their meanings: one table, read from its top.

Types and codes are compared before message texts. The texts are those of the servers' sources and of replies
that were seen (tests/workers/llm/refusals.toml has them raw); an error that no row matches has the meaning of
its status.
"""

import re
from typing import NamedTuple

from orchard.workers.llm.refusals import ErrorBody, Meaning

UPSTREAM_GONE = frozenset({502, 503, 504, 520, 521, 522, 523, 524, 529, 530})
"""Statuses of a proxy whose model server is away or overloaded: nothing was sampled."""

_TRANSIENT = frozenset({408, 409, 424, 425, 499})
"""Retried statuses below 500. TGI has 424 for a failed generation, Ollama 499 for one that it gave up."""


class ErrorPattern(NamedTuple):
    meaning: Meaning
    by: str
    kinds: frozenset[str] = frozenset()
    """Matches one of the error's type, code or status, in lower case; empty: any."""
    words: re.Pattern[str] | None = None
    never: frozenset[int] = frozenset()
    """Statuses with which the words mean something else."""


def _known(
    meaning: Meaning, by: str, kinds: str = "", words: str = "", never: tuple[int, ...] = ()
) -> ErrorPattern:
    pattern = re.compile(words, re.IGNORECASE | re.DOTALL) if words else None
    return ErrorPattern(meaning, by, frozenset(kinds.split()), pattern, frozenset(never))


_QUOTED = re.compile(r"\binput_value=|['\"]input['\"]: ")
"""Finds where a validation error begins to quote the request, in which a conversation may say anything."""

_ONE_REQUEST = r"\brequest too large for\b"
_LOADING = r"^loading model$|\bmodel\b.{0,120}\bis (?:currently |still )?(?:loading|warming up)\b"
_BUSY = (
    r"too many (?:tokens|requests), please wait|\bserver busy\b|\bqueue is full\b"
    r"|\b(?:model|engine|server) is (?:currently )?overloaded\b"
    r"|\brate limit (?:is |has been )?(?:reached|exceeded)\b"
)
_UNPARSED = (
    r"model produced output that does not match the expected .{0,80}\bformat\b"  # llama.cpp
    r"|\bfailed to parse input at pos \d+"  # llama.cpp of 2025
    r"|\berror parsing tool call: |\breturned invalid tool call arguments for "  # Ollama
    r"|\bunexpected tokens? .{0,40}(?:while expecting start token|remaining in message header)"  # Harmony
    r"|\bchannel marker present but no channel value\b|^unknown role: "
    r"|\bfailed to parse reasoning content\b|\bfailed to parse fc related info\b"  # SGLang
    r"|\btool error: failed to parse generated text\b"  # TGI
    r"|\bmodel produced invalid (?:sequence|content)\b"  # Bedrock, OpenAI
)
_CONTEXT = (
    r"maximum context length|context[ _]length of \d|model's context (?:length|window)"
    r"|exceeds? (?:the )?(?:available )?context (?:size|length|limit|window)"
    r"|\bContextWindowExceededError\b"  # LiteLLM, of any provider
    r"|longer than the (?:model's )?(?:maximum )?(?:model|context|input) length|max_model_len"
    r"|longer than the context length"  # Ollama
    r"|greater than the context length|context the overflows|context (?:length|size) of only"  # LM Studio
    r"|exceeds? the (?:model's )?maximum (?:allowed (?:input )?length|input|context|number of tokens)"
    r"|(?:prompt|input) (?:is|was) too (?:long|large)|too many (?:input |prompt )?tokens"
    r"|must have less than \d+ tokens|`inputs` tokens \+ `max_new_tokens` must be"  # TGI
    r"|max_tokens must be at least 1, got -"  # vLLM: what the prompt has left of the context
    r"|current length is \d+ while limit is"
)

KNOWN: tuple[ErrorPattern, ...] = (
    _known(Meaning.CONTEXT_EXCEEDED, "OpenAI, Groq: more than a minute's tokens at once", words=_ONE_REQUEST),
    _known(
        Meaning.CONTEXT_EXCEEDED,
        "OpenAI, Azure, Groq; llama.cpp; Anthropic's 32 MB; Azure's models",
        kinds="context_length_exceeded exceed_context_size_error request_too_large tokens_limit_reached "
        "context_window_exceeded model_max_prompt_tokens_exceeded",
    ),
    _known(Meaning.UNPARSED, "Groq, OpenAI", kinds="tool_use_failed model_error"),
    _known(
        Meaning.REFUSED,
        "OpenAI, LiteLLM, Moonshot: nothing is left of what was paid for",
        kinds="insufficient_quota billing_hard_limit_reached billing_not_active budget_exceeded "
        "exceeded_current_quota_error",
    ),
    _known(Meaning.REFUSED, "llama.cpp: pictures and other things it cannot", kinds="not_supported_error"),
    _known(
        Meaning.TRANSIENT,
        "llama.cpp, Hugging Face, Bedrock: the model is not in memory yet",
        kinds="modelnotreadyexception",
    ),
    _known(Meaning.TRANSIENT, "llama.cpp, Hugging Face", words=_LOADING),
    _known(
        Meaning.THROTTLED,
        "OpenAI, Anthropic, Gemini, Bedrock, TGI, LiteLLM, Groq, Moonshot",
        kinds="rate_limit_exceeded rate_limit_error overloaded_error overloaded resource_exhausted "
        "throttlingexception throttling_error too_many_requests capacity_exceeded engine_overloaded_error",
    ),
    _known(Meaning.THROTTLED, "Ollama, SGLang, Gemini, Bedrock", words=_BUSY),
    _known(
        Meaning.UNPARSED,
        "llama.cpp, Ollama, vLLM, SGLang, TGI, Bedrock, OpenAI",
        words=_UNPARSED,
        never=(429,),
    ),
    _known(
        Meaning.CONTEXT_EXCEEDED,
        "vLLM, SGLang, TGI, Ollama, LM Studio, LiteLLM, Anthropic, Gemini, Azure, Bedrock",
        words=_CONTEXT,
        never=(401, 403, 404, 429),
    ),
)


def meaning(status: int, body: ErrorBody) -> Meaning:
    """Returns the meaning of an error: of an HTTP status with its body, or of one inside of a 2xx reply
    (200)."""
    said = _QUOTED.split(body.message, maxsplit=1)[0]
    for known in KNOWN:
        if (
            status not in known.never
            and (not known.kinds or known.kinds & body.kinds)
            and (known.words is None or known.words.search(said))
        ):
            return known.meaning
    if status in (413, 429):
        return Meaning.CONTEXT_EXCEEDED if status == 413 else Meaning.THROTTLED
    if 400 <= status < 500 and status not in _TRANSIENT:
        return Meaning.REFUSED
    return Meaning.TRANSIENT


def samples_anew(status: int) -> bool:
    """Whether the sampled text may be the reason for an error that is retried, so that another seed may
    help."""
    return (status >= 500 or 200 <= status < 300) and status not in UPSTREAM_GONE
