"""The record of a model call: what was asked, what it cost, and which nodes it joins."""

from enum import StrEnum

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.messages import MessageNode


class ModelKind(StrEnum):
    """Kind of the author of an answer. `oracle` marks everything played from a gold patch, which must never
    pass for a model's work."""

    MODEL = "model"
    """A model gave the answer."""
    ORACLE = "oracle"
    """A known solution was played."""


class CallKind(StrEnum):
    """Why a program called its model."""

    MAIN = "main"
    """Work on the task itself."""
    SUBAGENT = "subagent"
    """Work on a part of the task, in a conversation of its own."""
    COMPACTION = "compaction"
    """The first call of a conversation that begins with the model's summary of an earlier one; or the call
    that asks for the summary, if a header says so."""
    TITLE = "title"
    """A title for a list of conversations."""
    PROBE = "probe"
    """A test whether the model answers at all."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens as the endpoint counted them; None where it did not say, or said what cannot be true. Events
    leave out what is not known, which earlier versions take for 0."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that were read from a cache."""
    reasoning_tokens: int | None = None
    """Completion tokens that were spent on reasoning."""


class LLMCall(msgspec.Struct, frozen=True, kw_only=True):
    """A model call that got an answer: its prompt is the path that ends at `parent`, its answer is `node`."""

    parent: str
    node: str
    turn: int
    """Number of the turn; 0 before the first answer of the model."""
    endpoint: str
    """The endpoint's configured name, never its URL or key."""
    model: str
    served_model: str
    model_kind: ModelKind
    finish_reason: str
    """Why the answer ended, according to the endpoint; `unparsed` if its server could not read what the model
    wrote."""
    usage: Usage
    """Tokens that the call took."""
    cost_usd: float | None
    """Price of the call in USD; None when no price is known for the model, 0.0 is a price."""
    seconds: float | None
    """Duration in seconds; None for an imported call without a duration."""
    tries: int = 1
    system_fingerprint: str = ""
    """The endpoint's name for its configuration."""
    call_kind: CallKind | None = None
    """Why a program made the call; None for a harness that is not a program."""
    derived_from: str | None = None
    """Node of another conversation that this one began from: a summary, or a tool call that gave it its work.
    None where that cannot be told."""
    tools: BlobRef | None = None
    """Blob of the tools that a program offered its model, as JSON; None for a harness whose name decides its
    tools."""
    reasoning_field: str | None = None
    """Field of the answer that held its reasoning, and under which it is sent back; None without reasoning,
    and in older events."""
    images_shown: tuple[str, ...] | None = None
    """SHA-256 of the pictures in the prompt, in their order: the newest ones of the path to `parent`. None
    without pictures."""
    seed: int | None = None
    """Seed of the request that was answered. The rollout's seed, unless the server failed with it before:
    then the next try has another. None in older events."""
    tools_left_out: bool | None = None
    """Whether the endpoint's template leaves the request's tools out of the prompt; None where that is not
    known: without tools, at an endpoint that does not count tokens, and in older events."""
    seconds_waiting: float | None = None
    """Seconds before the try that was answered: for a free slot at the endpoint, and for failed tries. None
    in older events."""
    not_shown: dict[str, int] | None = None
    """Number of parts, items and tools of a program's request that the model could not read or call, by their
    type in the program's API, and of fields without effect, by name. None without any, for a harness that is
    not a program, and in older events."""
    answer: MessageNode | None = None
    """The message `node`, so that an answer and its cost are one event. An event of its own follows, for
    readers of messages. None if the path had it already, and in older events."""
