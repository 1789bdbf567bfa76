"""Examples of browsing and of tool use: which rollouts, and which turn trains.

Pure, over chat messages as OpenAI has them and over token ids; a screenshot is an `image_url` part.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from orchard.pipelines.datasets.rows import Ids, Mask

Message = dict[str, Any]
WEBSITE_TASKS = 20
CLAW_TOKENS = 65_536
_IMAGE = "image_url"


class Browsed(msgspec.Struct, frozen=True, kw_only=True):
    """A judged rollout in a browser, as the selection sees it."""

    rollout_id: str
    task_id: str
    website: str
    success: bool
    turns: int


def choose_browsed(rollouts: Iterable[Browsed], per_website: int = WEBSITE_TASKS) -> list[Browsed]:
    """The shortest successful rollout of each task, of at most `per_website` tasks of a website.

    Among equally short ones the first by id; of a website's tasks the first by id. Sorted by task.
    """
    shortest: dict[str, Browsed] = {}
    for rollout in sorted(rollouts, key=lambda each: (each.turns, each.rollout_id)):
        if rollout.success:
            shortest.setdefault(rollout.task_id, rollout)
    taken: Counter[str] = Counter()
    chosen = []
    for task in sorted(shortest):
        website = shortest[task].website
        taken[website] += 1
        if taken[website] <= per_website:
            chosen.append(shortest[task])
    return chosen


def browsing_examples(messages: Sequence[Message], screenshots: int) -> Iterator[list[Message]]:
    """One example for each assistant turn: all up to it, of which it alone trains, as the last message.

    Of the screenshots only the last `screenshots` (1 or more) before the turn are kept; texts all are.
    """
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            yield [*_last_images(messages[:place], screenshots), message]


def _last_images(messages: Sequence[Message], keep: int) -> list[Message]:
    left = keep
    kept: list[Message] = []
    for message in reversed(messages):
        content = message.get("content")
        if isinstance(content, list):
            parts = []
            for part in reversed(content):
                if part["type"] == _IMAGE:
                    left -= 1
                    if left < 0:
                        continue
                parts.append(part)
            message = message | {"content": parts[::-1]}
        kept.append(message)
    return kept[::-1]


def tool_use_example(
    prompt: Sequence[int], output: Sequence[int], limit: int = CLAW_TOKENS
) -> tuple[Ids, Mask] | None:
    """The example of one recorded (input, output) pair: ids and loss mask, cut at the left to `limit` tokens.

    The output trains, whole; None for an output that is empty or alone longer than `limit`.
    """
    if not 0 < len(output) <= limit:
        return None
    context = list(prompt)[max(0, len(prompt) + len(output) - limit) :]
    ids = np.asarray([*context, *output], dtype=np.int32)
    mask = np.zeros(len(ids), dtype=np.int8)
    mask[len(context) :] = 1
    return ids, mask
