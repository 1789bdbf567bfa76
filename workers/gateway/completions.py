"""The wire of OpenAI's text completions; the prompt goes upstream as one user message."""

from collections.abc import Iterator
from typing import Any

from orchard.schemas.messages import Role
from orchard.workers.gateway import chat
from orchard.workers.gateway.wire_types import (
    BadProgramRequest,
    ProgramMessage,
    ProgramReply,
    ProgramRequest,
    Wire,
    flag,
    mapping,
    openai_error,
    pieces,
    read_object,
    sampling,
    sse,
    unread,
)

_KNOWN = frozenset(
    {"prompt", "model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "stop"}
    | {"n", "best_of", "echo", "suffix"}
)


def read(raw: bytes) -> ProgramRequest:
    body = read_object(raw)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise BadProgramRequest("prompt must be one text: the upstream is asked for chat completions")
    options = mapping(body.get("stream_options"), "stream_options")
    for name, usual in (("n", 1), ("best_of", 1), ("echo", False), ("suffix", "")):
        if body.get(name) not in (None, usual):
            raise BadProgramRequest(f"{name} cannot be asked of an upstream of chat completions")
    return ProgramRequest(
        messages=(ProgramMessage(role=Role.USER, text=prompt),),
        include_usage=flag(options, "include_usage") is True,
        fields={"stop": body["stop"]} if body.get("stop") is not None else {},
        left_out=(*unread(body, _KNOWN), *unread(options, chat.KNOWN_OPTIONS)),
        **sampling(body, "max_tokens"),
    )


def whole(ask: ProgramRequest, reply: ProgramReply) -> dict[str, Any]:
    choice = _choice(reply.completion.text, _reason(reply))
    return {**_head(ask, reply), "choices": [choice], "usage": chat.usage(reply.completion)}


def stream(ask: ProgramRequest, reply: ProgramReply) -> Iterator[bytes]:
    head, used = _head(ask, reply), {"usage": chat.usage(reply.completion)}
    for piece in pieces(reply.completion.text):
        yield sse({**head, "choices": [_choice(piece, None)]})
    last = {**head, "choices": [_choice("", _reason(reply))]}
    if ask.include_usage:
        yield sse(last)
        yield sse({**head, "choices": [], **used})
    else:
        yield sse({**last, **used})
    yield b"data: [DONE]\n\n"


def _reason(reply: ProgramReply) -> str:
    reason = chat.finish_reason(reply.completion)
    return "stop" if reason == "tool_calls" else reason


def _choice(text: str, reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}


def _head(ask: ProgramRequest, reply: ProgramReply) -> dict[str, Any]:
    return {
        "id": f"cmpl-{reply.id}",
        "object": "text_completion",
        "created": reply.created,
        "model": ask.model or reply.completion.model,
    }


COMPLETIONS = Wire("completions", read, whole, stream, openai_error, chat.broken)
