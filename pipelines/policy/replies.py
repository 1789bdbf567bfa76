"""The replies of the policy server: OpenAI's fields, with vLLM's for token ids and Orchard's runs of
versions. A generated text is read back into a message by the form in which the chat template writes one,
Qwen's and Hermes's: `<think>` text `</think>`, then text, then `<tool_call>` JSON `</tool_call>` for each
call. What does not follow it to the letter stays text: a half-made call is not repaired.
"""

import re
from typing import Any

import msgspec

from orchard.pipelines.policy.conversations import Prompts
from orchard.pipelines.policy.engine import Generated
from orchard.pipelines.policy.requests import ChatRequest, CompletionRequest
from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.identity import digest
from orchard.schemas.messages import ToolCall

_THINKING = re.compile(r"\s*<think>\n?(.*?)\n?</think>\n*(.*)", re.DOTALL)
_OPENED = re.compile(r"(.*?)\n?</think>\n*(.*)", re.DOTALL)
_CALL = re.compile(r"\s*<tool_call>(.*?)</tool_call>", re.DOTALL)
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw


_CALLS = msgspec.json.Decoder(_Call)


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An assistant message with OpenAI's fields."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def read_message(
    text: str, *, calls: bool, thinking: bool, source: object, opened: bool = False
) -> AssistantMessage:
    """The message in `text`, which has no end mark.

    `calls` and `thinking` say whether the template writes them at all; `opened`, that the prompt has begun
    the thinking already. `source` is hashed into the calls' ids: equal answers to equal prompts have equal
    ids.
    """
    reasoning = ""
    if thinking and (match := (_OPENED if opened else _THINKING).fullmatch(text)):
        reasoning, text = match[1], match[2]
    if calls and _OPEN in text:
        before = text.index(_OPEN)
        found = _read_calls(text[before:], source)
        if found is not None:
            return AssistantMessage(
                content=text[:before].removesuffix("\n"), reasoning=reasoning, tool_calls=found
            )
    return AssistantMessage(content=text, reasoning=reasoning)


def _read_calls(text: str, source: object) -> tuple[ToolCall, ...] | None:
    """All calls of a text that consists of calls; None when anything in it is something else."""
    calls: list[ToolCall] = []
    end = 0
    for match in _CALL.finditer(text):
        if match.start() != end:
            return None
        end = match.end()
        try:
            call = decode(_CALLS, match[1].strip().encode())
        except (Unreadable, UnicodeEncodeError):
            return None
        arguments = bytes(call.arguments).decode()
        if not arguments.startswith("{"):
            return None
        name = f"call_{digest([source, len(calls)])}"
        calls.append(ToolCall(id=name, name=call.name, arguments=arguments))
    return tuple(calls) if calls and not text[end:].strip() else None


def chat_reply(
    name: str,
    request: ChatRequest,
    prompts: Prompts,
    prompt: list[int],
    generated: Generated,
    message: AssistantMessage,
    created: int,
) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning:
        said["reasoning_content"] = message.reasoning
    if message.tool_calls:
        said["content"] = message.content or None
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    calls_end = message.tool_calls and generated.finish_reason == "stop"
    choice: dict[str, Any] = {
        "index": 0,
        "message": said,
        "finish_reason": "tool_calls" if calls_end else generated.finish_reason,
        "logprobs": None,
    }
    if request.logprobs:
        choice["logprobs"] = {
            "content": [
                {
                    "token": _named(request, prompts, token),
                    "logprob": logprob,
                    "bytes": None,
                    "top_logprobs": [],
                }
                for token, logprob in zip(generated.ids, generated.logprobs, strict=True)
            ]
        }
    reply = _reply("chat.completion", name, created, choice, prompt, generated)
    if request.return_token_ids:
        reply["prompt_token_ids"] = prompt
        choice |= _tokens(generated)
    return reply


def completion_reply(
    name: str,
    request: CompletionRequest,
    prompts: Prompts,
    prompt: list[int],
    generated: Generated,
    text: str,
    created: int,
) -> dict[str, Any]:
    """Body of a text completion; prompts that came as ids are answered with ids."""
    choice: dict[str, Any] = {
        "index": 0,
        "text": text,
        "finish_reason": generated.finish_reason,
        "logprobs": None,
    }
    if request.logprobs is not None:
        choice["logprobs"] = {
            "tokens": [_named(request, prompts, token) for token in generated.ids],
            "token_logprobs": generated.logprobs,
            "top_logprobs": None,
            "text_offset": [],
        }
    if request.return_token_ids or isinstance(request.prompt, list):
        choice |= _tokens(generated) | {"prompt_token_ids": prompt}
    return _reply("text_completion", name, created, choice, prompt, generated)


def _reply(
    kind: str, name: str, created: int, choice: dict[str, Any], prompt: list[int], generated: Generated
) -> dict[str, Any]:
    return {
        "id": "",
        "object": kind,
        "created": created,
        "model": name,
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(generated.ids),
            "total_tokens": len(prompt) + len(generated.ids),
            "prompt_tokens_details": {"cached_tokens": generated.cached},
        },
        "system_fingerprint": f"orchard-policy-{generated.versions[-1].version}",
    }


def _tokens(generated: Generated) -> dict[str, Any]:
    versions = [{"start": run.start, "version": run.version} for run in generated.versions]
    return {"token_ids": generated.ids, "policy_versions": versions}


def _named(request: ChatRequest | CompletionRequest, prompts: Prompts, token: int) -> str:
    return f"token_id:{token}" if request.return_tokens_as_token_ids else prompts.token(token)
