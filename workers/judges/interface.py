"""What a judging protocol is given and what it answers."""

import typing
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from orchard.schemas.judging import JudgeVerdict

Messages = Sequence[dict[str, Any]]
"""OpenAI chat messages; a content may be a list of parts, with pictures among them."""
Content = str | list[dict[str, Any]]
"""Of one message."""
Ask = Callable[[Messages], Awaitable[str]]
"""One question to the judging model; its answer. Recorded as an event by whoever gives it."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A picture of the evidence."""

    base64: str
    media_type: str = "image/png"
    label: str = ""
    """What it shows, in words: `step 3`, `reference`."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is judged. Parts that a domain does not have are empty."""

    task: str
    """What was asked of the agent."""
    rubric: str = ""
    """What counts, in the words of the task's author."""
    transcript: str = ""
    """What agent and user said."""
    actions: str = ""
    """What the agent did, from a record that it cannot write."""
    answer: str = ""
    """Its last message."""
    pictures: tuple[Picture, ...] = ()
    """In order."""


class BadVerdict(Exception):
    """An answer that is no verdict; the text says why, in words for the judge's next try."""


class Protocol(typing.Protocol):
    """One way to have an outcome judged."""

    version: str
    """Its name with its version: other words or another rule are another version."""
    words: str
    """All fixed text of its prompts; its hash stands beside each verdict."""

    async def judge(self, evidence: Evidence, ask: Ask) -> JudgeVerdict:
        """The verdict. Raises BadVerdict when the answers are none; what `ask` raises passes."""


def indented(text: str, by: int) -> str:
    """A text whose further lines begin with `by` blanks, so that none passes for a line of a record."""
    return ("\n" + " " * by).join(text.splitlines())


def content(text: str, pictures: Sequence[Picture]) -> Content:
    """The content of a message: plain text, or parts where there are pictures."""
    if not pictures:
        return text
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    for picture in pictures:
        if picture.label:
            parts.append({"type": "text", "text": picture.label})
        url = f"data:{picture.media_type};base64,{picture.base64}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts
