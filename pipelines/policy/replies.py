"""The replies of the policy server: OpenAI's fields, with vLLM's for token ids and experts, and Orchard's
runs of versions."""

from typing import Any

from orchard.pipelines.policy.answers import AssistantMessage
from orchard.pipelines.policy.conversations import Prompts
from orchard.pipelines.policy.experts import encoded
from orchard.pipelines.policy.requests import ChatRequest, CompletionRequest
from orchard.pipelines.policy.running import Generated


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
    choice |= _experts(generated)
    reply = _reply("chat.completion", name, created, [choice], [prompt], [generated])
    if request.return_token_ids:
        reply["prompt_token_ids"] = prompt
        choice |= _tokens(generated)
    return reply


def completion_reply(
    name: str,
    request: CompletionRequest,
    prompts: Prompts,
    asked: list[list[int]],
    answers: list[Generated],
    texts: list[str],
    created: int,
) -> dict[str, Any]:
    """Body of a text completion with a choice for each prompt; those that came as ids are answered with
    ids."""
    choices: list[dict[str, Any]] = []
    for prompt, generated, text in zip(asked, answers, texts, strict=True):
        choice: dict[str, Any] = {
            "index": len(choices),
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
        if generated.prompt_logprobs is not None:
            choice["prompt_logprobs"] = _scores(prompt, generated.prompt_logprobs)
        choice |= _experts(generated)
        choices.append(choice)
    return _reply("text_completion", name, created, choices, asked, answers)


def _scores(prompt: list[int], logprobs: list[float]) -> list[dict[int, Any] | None]:
    """vLLM's form: nothing for the first token, then each token's log-probability under its id."""
    known = zip(prompt[1:], logprobs, strict=True)
    return [
        None,
        *({token: {"logprob": logprob, "rank": None, "decoded_token": None}} for token, logprob in known),
    ]


def _reply(
    kind: str,
    name: str,
    created: int,
    choices: list[dict[str, Any]],
    prompts: list[list[int]],
    answers: list[Generated],
) -> dict[str, Any]:
    read, said = sum(map(len, prompts)), sum(len(generated.ids) for generated in answers)
    return {
        "id": "",
        "object": kind,
        "created": created,
        "model": name,
        "choices": choices,
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": said,
            "total_tokens": read + said,
            "prompt_tokens_details": {"cached_tokens": sum(generated.cached for generated in answers)},
        },
        "system_fingerprint": f"orchard-policy-{answers[-1].versions[-1].version}",
    }


def _tokens(generated: Generated) -> dict[str, Any]:
    versions = [{"start": run.start, "version": run.version} for run in generated.versions]
    return {"token_ids": generated.ids, "policy_versions": versions}


def _experts(generated: Generated) -> dict[str, Any]:
    return {} if generated.experts is None else {"routed_experts": encoded(generated.experts)}


def _named(request: ChatRequest | CompletionRequest, prompts: Prompts, token: int) -> str:
    return f"token_id:{token}" if request.return_tokens_as_token_ids else prompts.token(token)
