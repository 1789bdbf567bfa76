"""One record for each model call: what was asked, what it cost, which nodes it joins."""

from enum import StrEnum

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.messages import MessageNode


class ModelKind(StrEnum):
    """`oracle` marks everything played from a gold patch: never to be mistaken for a model's work."""

    MODEL = "model"
    """A model answered."""
    ORACLE = "oracle"
    """A known solution was played."""


class CallKind(StrEnum):
    """What a program called its model for."""

    MAIN = "main"
    """The work on the task."""
    SUBAGENT = "subagent"
    """A part of it that was given to another conversation."""
    COMPACTION = "compaction"
    """The first call after a conversation was begun anew from what the model had said in the old one, or the
    call for that, where a header names it."""
    TITLE = "title"
    """A few words for a list of conversations."""
    PROBE = "probe"
    """Whether the model answers at all."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens, as the endpoint counted them; None where it did not say, or said what cannot be true. Events
    leave out what is not known, which versions before this one take for 0."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that were read from a cache."""
    reasoning_tokens: int | None = None
    """Completion tokens that were spent on reasoning."""


class LLMCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that answered: it read the path that ends at `parent` and added `node`."""

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
    """Why the answer ended, as the endpoint says; `unparsed` where its server could not read what the model
    wrote."""
    usage: Usage
    """Tokens of the call."""
    cost_usd: float | None
    """None when no price is known for the model; 0.0 is a price."""
    seconds: float | None
    """None for a call of another system that did not say."""
    tries: int = 1
    system_fingerprint: str = ""
    """The endpoint's own word for its configuration."""
    call_kind: CallKind | None = None
    """What a program called for; None for a harness that is no program."""
    derived_from: str | None = None
    """Node of another conversation that this one was begun from: a summary, or a call of a tool that gave it
    its work. Where that can be told."""
    tools: BlobRef | None = None
    """The tools that a program offered its model, as JSON; None for a harness whose tools its name says."""
    reasoning_field: str | None = None
    """Field in which the answer had its reasoning, and under which it is sent back; None without any, and in
    events that are older."""
    images_shown: tuple[str, ...] | None = None
    """SHA-256 of the pictures in the prompt, in their order: the last so many of the path to `parent`. None
    where it had none."""
    seed: int | None = None
    """Of the request that was answered. It is the rollout's, but for a request at which the server failed
    before: that is tried again with another one. None in events that are older."""
    tools_left_out: bool | None = None
    """Whether the endpoint's template leaves the request's tools out of the prompt; None where that is not
    known: without tools, at an endpoint that does not count tokens, and in events that are older."""
    seconds_waiting: float | None = None
    """Before the try that was answered: for a place at the endpoint, and by tries that failed. None in events
    that are older."""
    answer: MessageNode | None = None
    """The message `node`, so that an answer and its cost are one event. An event of its own follows, for all
    who read messages. None where the path had it already, and in events that are older."""
