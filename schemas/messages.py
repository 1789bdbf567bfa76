"""Messages as a tree: a node is one message with its parent. Its pictures are blobs, named by place."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.identity import digest

MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
"""Media types of pictures that models read; others are not kept as pictures."""


class Image(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A picture in a message, at the size that the model sees."""

    blob: BlobRef
    """Bytes of the picture, as a browser or a program made them."""
    media_type: str
    """Media type of the picture, one of MEDIA_TYPES."""
    width: int
    """Width of the picture in pixels."""
    height: int
    """Height of the picture in pixels."""
    at: int | None = None
    """Offset of the picture in the message's content, in characters; None: after the text."""
    caption: str = ""
    """Text directly before the picture. It is shown, or left out, together with it, and is not in the
    content."""


def placed(content: str, images: Sequence[Image]) -> list[str | Image]:
    """Returns texts and pictures of a message in their order, without empty texts. `images` are those that
    are shown, by offset; an offset outside of the text counts as the nearest inside."""
    parts: list[str | Image] = []
    text, end = "", 0
    for image in images:
        at = len(content) if image.at is None else max(end, min(image.at, len(content)))
        text += content[end:at] + image.caption
        end = at
        if text:
            parts.append(text)
        parts.append(image)
        text = ""
    rest = content[end:]
    return [*parts, rest] if rest else parts


class Role(StrEnum):
    """The author of a message, as in the chat API."""

    SYSTEM = "system"
    """The harness, before all other messages."""
    USER = "user"
    """The task, or the output of a command."""
    ASSISTANT = "assistant"
    """The model that is asked."""
    TOOL = "tool"
    """A tool, whose result the message is."""


RESULT_TAGS = ("<tool_response>\n", "\n</tool_response>")
"""Text before and after the results of calls that a model wrote into its text; the user says these."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call as the model wrote it; `arguments` stays the text it was, parsable or not."""

    id: str
    """Id of the call, made by the endpoint."""
    name: str
    """Name of the called tool."""
    arguments: str
    """Arguments as JSON, or what the model wrote instead."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a tool message, beside the text that the model saw."""

    returncode: int
    """Exit status of the command."""
    seconds: float
    timed_out: bool = False
    """Whether the command ran out of time."""
    output_sha256: str = ""
    """SHA-256 of the whole output before any cut: a replay compares it (docs/datasets.md)."""


class VersionRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of sampled tokens: from index `start` on, policy `version` sampled them."""

    start: int
    """Index of the first token, from 0."""
    version: int


class RoutedExperts(msgspec.Struct, frozen=True, kw_only=True):
    """Experts to which a mixture's routers sent tokens, in a blob: for each token its layers in order, for
    each layer its experts. The last sampled token went nowhere yet; those before `first` are known from
    earlier messages."""

    first: int
    """Number of the first token in the blob, counted from 0 at the first of `prompt_ids`."""
    width: int
    """Experts of one token, over all layers."""
    blob: BlobRef
    """Blob with one byte for each expert, or two, the lower first, where a number is over 255."""


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens in, tokens out: exactly what the policy server sampled.

    `ids` and `logprobs` have one entry for each sampled token; `prompt_ids`, when the server gives
    them, are all tokens before the first of `ids`.
    """

    ids: tuple[int, ...]
    """Ids of the sampled tokens."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each sampled token, in nats."""
    prompt_ids: tuple[int, ...] = ()
    """All tokens before the first sampled one."""
    versions: tuple[VersionRun, ...] = ()
    """Runs of tokens by the policy version that sampled them."""
    experts: RoutedExperts | None = None
    """Experts of the tokens, if the server was asked for them."""


class NodeRest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parts of a node beside its text, if these alone are over the inline limit: the JSON of
    `rest_blob`."""

    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: TokenRecord | None = None
    images: tuple[Image, ...] = ()


class MessageNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a rollout. `node_id` is a hash over the parent's id and the content, as in git: the
    text, the reasoning, the calls, the pictures and the ids of the sampled tokens."""

    node_id: str
    parent: str | None
    role: Role
    """Author of the message, as in the chat API."""
    turn: int
    """Number of the turn, 0 before the first assistant message. An assistant message and its results share a
    turn."""
    content: str = ""
    content_blob: BlobRef | None = None
    """Blob of the text, if it is over the inline limit; then `content` is empty."""
    reasoning: str = ""
    """Reasoning of the model before the text, where the endpoint gives it."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls that the model made."""
    tool_call_id: str = ""
    result: ToolResult | None = None
    """Facts about the command of a tool message."""
    tokens: TokenRecord | None = None
    """Tokens that a policy server sampled."""
    rest_blob: BlobRef | None = None
    """Blob of a NodeRest, if `reasoning`, `tool_calls` and `tokens` are over the limit; then these are empty,
    and `images` too where there are very many."""
    inherited_from: int | None = None
    """Earlier attempt of the same rollout that made this message, if this attempt replayed it."""
    images: tuple[Image, ...] = ()
    """Pictures, in the order in which they stand in the message."""


def node_id(
    parent: str | None,
    role: Role,
    content: str,
    tool_calls: tuple[ToolCall, ...] = (),
    tool_call_id: str = "",
    images: tuple[Image, ...] = (),
    *,
    reasoning: str = "",
    token_ids: tuple[int, ...] = (),
) -> str:
    """24 hexadecimal digits that depend on the whole path from the root, pictures included. Reasoning and
    sampled tokens count, since equal texts may be different samples."""
    pictures = [images] if images else []
    sample = [[reasoning, token_ids]] if reasoning or token_ids else []
    return digest([parent, role, content, tool_calls, tool_call_id, *pictures, *sample])
