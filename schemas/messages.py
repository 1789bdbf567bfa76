"""Messages as a tree: a node is one message with its parent."""

from enum import StrEnum

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.identity import digest
from orchard.schemas.images import Image


class Role(StrEnum):
    """Who a message is from, as in the chat API."""

    SYSTEM = "system"
    """The harness, before all else."""
    USER = "user"
    """The task, or the output of a command."""
    ASSISTANT = "assistant"
    """The model."""
    TOOL = "tool"
    """The result of a tool call."""


RESULT_TAGS = ("<tool_response>\n", "\n</tool_response>")
"""What stands before and after the results of calls that a model wrote into its text, which the user says."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as the model wrote it; `arguments` stays the text it was, parsable or not."""

    id: str
    """Made by the endpoint."""
    name: str
    """Name of the tool."""
    arguments: str
    """JSON text, or what the model wrote in its place."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine knows about a tool message, beside the text the model saw."""

    returncode: int
    """Exit status of the command."""
    seconds: float
    timed_out: bool = False
    """Whether it ran out of time."""
    output_sha256: str = ""
    """Of the whole output before any cut: what a replay compares (docs/datasets.md)."""


class VersionRun(msgspec.Struct, frozen=True, kw_only=True):
    """From token index `start` on, tokens were sampled by policy `version`."""

    start: int
    """Index of the first token, from 0."""
    version: int


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens in, tokens out: exactly what the policy server sampled.

    `ids` and `logprobs` have one entry for each sampled token; `prompt_ids`, when the server gives
    them, are all tokens before the first of `ids`.
    """

    ids: tuple[int, ...]
    """Sampled tokens."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each, in nats."""
    prompt_ids: tuple[int, ...] = ()
    """All tokens before the first sampled one."""
    versions: tuple[VersionRun, ...] = ()
    """Which policy version sampled which of them."""


class NodeRest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node says beside its text, when that alone is over the inline limit: the JSON of `rest_blob`."""

    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: TokenRecord | None = None
    images: tuple[Image, ...] = ()


class MessageNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a rollout. `node_id` is a hash over the parent's id and the content, as in git."""

    node_id: str
    parent: str | None
    role: Role
    """Who speaks."""
    turn: int
    """0 before the first assistant message; an assistant message and its results share a turn."""
    content: str = ""
    content_blob: BlobRef | None = None
    """Set, with `content` empty, when the text is over the inline limit."""
    reasoning: str = ""
    """What the model thought before the text, where the endpoint tells."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls that the model made."""
    tool_call_id: str = ""
    result: ToolResult | None = None
    """Facts about a tool message."""
    tokens: TokenRecord | None = None
    """Tokens that a policy sampled."""
    rest_blob: BlobRef | None = None
    """A NodeRest. Set, with `reasoning`, `tool_calls` and `tokens` empty, when these are over the limit; then
    with `images` empty, too, where there are very many."""
    inherited_from: int | None = None
    """The earlier attempt of the same rollout that made this message, when this one adopted it."""
    images: tuple[Image, ...] = ()
    """Pictures, in the order in which they stand in the message."""


def node_id(
    parent: str | None,
    role: Role,
    content: str,
    tool_calls: tuple[ToolCall, ...] = (),
    tool_call_id: str = "",
    images: tuple[Image, ...] = (),
) -> str:
    """24 hexadecimal digits that depend on the whole path from the root, pictures included."""
    pictures = [images] if images else []
    return digest([parent, role, content, tool_calls, tool_call_id, *pictures])
