"""Turns a path of the message tree into the OpenAI chat messages that a model is asked with. Pure."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from orchard.schemas.messages import Image, MessageNode, Role, ToolCall, placed
from orchard.workers.episode.arguments import readable

_SHOWN = 4000
"""Most characters of a call that was not executed when it is shown to the model."""
_SHOWN_CALLS = 10


class ModelPrompt(NamedTuple):
    messages: list[dict[str, Any]]
    images: tuple[str, ...]
    """SHA-256 of the pictures in the messages, in their order."""


def newest(path: Sequence[MessageNode], last: int | None) -> list[list[Image]]:
    """Returns for each message of a path the pictures that the model is shown: the `last` of the path, or
    all."""
    total = sum(len(node.images) for node in path)
    skipped = 0 if last is None else max(0, total - last)
    found = []
    for node in path:
        found.append(list(node.images[skipped:]))
        skipped = max(0, skipped - len(node.images))
    return found


def url_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _by_name(image: Image) -> dict[str, Any]:
    return url_part(f"sha256:{image.blob.sha256}")


def chat_messages(
    path: Sequence[MessageNode],
    shown: Sequence[Sequence[Image]] = (),
    part: Callable[[Image], dict[str, Any]] = _by_name,
) -> list[dict[str, Any]]:
    """Returns OpenAI chat messages of whole nodes in order, with reasoning as `reasoning_content`. `shown`
    has the pictures of each node that are shown; without it there are none. A content with pictures is a list
    of parts, and `part` makes that of each picture.

    Endpoints refuse a call without its result, a result without its call, arguments that are no object, an
    empty message, and pictures in a result. So a call that was never executed, such as one that could not be
    parsed, is shown in words, and so is an empty message. Pictures of results follow the results in a message
    of the user.
    """
    executed = {(node.turn, node.tool_call_id) for node in path if node.role is Role.TOOL}
    messages: list[dict[str, Any]] = []
    following: list[Image] = []
    for node, images in zip(path, shown or [()] * len(path), strict=True):
        if following and node.role is not Role.TOOL:
            messages.append(_of_results(following, part))
            following = []
        message: dict[str, Any] = {"role": node.role.value, "content": node.content}
        if images and node.role is Role.TOOL:
            words = []
            for each in placed(node.content, images):
                following += [] if isinstance(each, str) else [each]
                words.append(each if isinstance(each, str) else _mark(len(following)))
            message["content"] = "".join(words)
        elif images and node.role is not Role.ASSISTANT:
            message["content"] = [
                text_part(each) if isinstance(each, str) else part(each)
                for each in placed(node.content, images)
            ]
        if node.role is Role.TOOL:
            message["tool_call_id"] = node.tool_call_id
        if node.role is Role.ASSISTANT:
            calls = [call for call in node.tool_calls if (node.turn, call.id) in executed]
            words = [_in_words(call) for call in node.tool_calls[:_SHOWN_CALLS]]
            if calls:
                message["tool_calls"] = [_chat_call(call) for call in calls]
            else:
                message["content"] = "\n".join(filter(None, [node.content, *words])) or "[empty message]"
            if node.reasoning:
                message["reasoning_content"] = node.reasoning
        messages.append(message)
    return [*messages, _of_results(following, part)] if following else messages


def _of_results(images: Sequence[Image], part: Callable[[Image], dict[str, Any]]) -> dict[str, Any]:
    content = [
        each for number, image in enumerate(images, 1) for each in (text_part(_mark(number)), part(image))
    ]
    return {"role": "user", "content": content}


def _mark(number: int) -> str:
    return f"[picture {number}]"


def _in_words(call: ToolCall) -> str:
    name, arguments = call.name[:_SHOWN], call.arguments
    if len(arguments) > _SHOWN:
        arguments = f"{arguments[:_SHOWN]}... ({len(arguments)} characters)"
    return f"[call not executed: {name} {arguments}]"


def _chat_call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": readable(call.arguments)},
    }
