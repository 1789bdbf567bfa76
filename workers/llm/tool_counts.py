"""Finds out by a count of tokens whether a model is told of its tools: some templates silently leave them
out.

A token stands for at most _BYTES bytes of a text: a prompt of few tokens cannot hold the long description of
a tool.
"""

import logging
import random
import string
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from orchard.schemas.campaigns import ModelSpec
from orchard.workers.llm.answers import Completion

log = logging.getLogger(__name__)

QUESTION_SECONDS = 60.0
_BYTES = 8
"""Most bytes of one token, over a longer text: 4 to 5 in English, fewer in all else."""
_PROMPT = 256
"""Bytes of messages below which nothing is asked: a rollout's first prompt has more."""
_MESSAGES = (
    {"role": "system", "content": "Answer with one word."},
    {"role": "user", "content": "Yes?"},
)
_DESCRIPTION = " ".join(
    f"Line {number} about this tool, which is there to be counted and is not to be called."
    for number in range(40)
)


class ToolCounts:
    """What is known of one endpoint, by model: asked once, and only if the first answer calls no tool."""

    def __init__(self) -> None:
        self._left_out: dict[str, bool | None] = {}
        """None while it is asked, and if it cannot be found out."""

    async def told(
        self,
        answer: Completion,
        messages: Sequence[dict[str, Any]],
        ask: Callable[[], Awaitable[Completion | None]],
    ) -> Completion:
        """Adds what is known to an answer to `messages` and tools. `ask` gives the answer to the `question`,
        or None; its cost is added to the cost of this answer."""
        model = answer.model
        if answer.tool_calls:
            self._left_out[model] = False
        elif model not in self._left_out and is_counted(answer.usage.prompt_tokens, messages):
            self._left_out[model] = None
            if (reply := await ask()) is None:
                return answer
            answer = msgspec.structs.replace(answer, cost_usd=_sum(answer.cost_usd, reply.cost_usd))
            if reply.usage.prompt_tokens:
                self._left_out[model] = leaves_tools_out(reply.usage.prompt_tokens)
            if self._left_out[model]:
                log.warning(
                    "endpoint %r: the chat template of %r leaves tools out, so the model is not told of them",
                    answer.endpoint,
                    model,
                )
        return msgspec.structs.replace(answer, tools_left_out=self._left_out.get(model))


def is_counted(prompt_tokens: int | None, messages: Sequence[dict[str, Any]]) -> bool:
    """Whether this number of tokens can be that of a whole prompt with these messages: some servers count a
    part of it."""
    return (prompt_tokens or 0) * _BYTES >= _text(messages) >= _PROMPT


def question(spec: ModelSpec) -> tuple[ModelSpec, list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns a short question with one tool of many words: model, messages and tools. The tool is new each
    time, since servers that do not count what is in their cache would report too few tokens."""
    word = "".join(random.choices(string.ascii_lowercase, k=12))
    function = {
        "name": f"counted_{word}",
        "description": f"{word} {_DESCRIPTION}",
        "parameters": {"type": "object", "properties": {}},
    }
    asked = ModelSpec(name=spec.name, endpoint=spec.endpoint, max_tokens=1)
    return asked, [*_MESSAGES], [{"type": "function", "function": function}]


def leaves_tools_out(prompt_tokens: int) -> bool:
    """Whether the question's prompt, with this number of tokens, has no room for its tool."""
    return prompt_tokens * _BYTES < len(_DESCRIPTION)


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _text(messages: Sequence[dict[str, Any]]) -> int:
    total = 0
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        total += sum(len(str(part.get("text") or "").encode()) for part in parts)
    return total
