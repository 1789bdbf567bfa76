"""The interface of judging protocols."""

import typing
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from orchard.schemas.judging import JudgeVerdict

Messages = Sequence[dict[str, Any]]
"""OpenAI chat messages; a content may be a list of parts, with pictures among them."""
Content = str | list[dict[str, Any]]
Ask = Callable[[Messages], Awaitable[str]]
"""Asks the judging model one question and returns its answer. The giver of the function records it as an
event."""


class EvidencePicture(msgspec.Struct, frozen=True, kw_only=True):
    base64: str
    media_type: str = "image/png"
    label: str = ""
    """Describes the picture in words: `step 3`, `reference`."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The material to judge. Parts that a domain does not have are empty."""

    task: str
    rubric: str = ""
    transcript: str = ""
    """The conversation of agent and user."""
    actions: str = ""
    """The agent's actions, from a record that it cannot write."""
    answer: str = ""
    pictures: tuple[EvidencePicture, ...] = ()


class BadVerdict(Exception):
    """The answer is no verdict; the text says why, in words for the judge's next try."""


class JudgeProtocol(typing.Protocol):
    version: str
    """Its name with its version: other words or another rule are another version."""
    words: str
    """All fixed text of its prompts; its hash is stored with each verdict."""

    async def judge(self, evidence: Evidence, ask: Ask) -> JudgeVerdict:
        """Returns the verdict. Raises BadVerdict if the answers are none, and what `ask` raises."""


def indented(text: str, by: int) -> str:
    """Indents all lines of a text but the first by `by` blanks, so that none passes for a line of a
    record."""
    return ("\n" + " " * by).join(text.splitlines())


def content(text: str, pictures: Sequence[EvidencePicture]) -> Content:
    """Returns the content of a message: plain text, or parts if there are pictures."""
    if not pictures:
        return text
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    for picture in pictures:
        if picture.label:
            parts.append({"type": "text", "text": picture.label})
        url = f"data:{picture.media_type};base64,{picture.base64}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts
