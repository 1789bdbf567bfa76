"""Moves the large parts of messages over the inline limit to blobs, so that events can carry the rest."""

import msgspec

from orchard.schemas.blobs import INLINE_LIMIT
from orchard.schemas.decoding import decode
from orchard.schemas.messages import MessageNode, NodeRest
from orchard.storage.blobs import BlobStore

_REST = msgspec.json.Decoder(NodeRest)


def is_large(node: MessageNode) -> bool:
    return len(msgspec.json.encode(node)) > INLINE_LIMIT


def slimmed(node: MessageNode, blobs: BlobStore) -> MessageNode:
    """Returns the node as an event may carry it: parts over the limit, as JSON bytes, become blobs. Raises
    StorageError."""
    size = len(msgspec.json.encode(node))
    if size <= INLINE_LIMIT:
        return node
    text = len(msgspec.json.encode(node.content))
    if text > INLINE_LIMIT // 2:
        blob = blobs.put(node.content.encode(), "text/plain; charset=utf-8")
        node = msgspec.structs.replace(node, content="", content_blob=blob)
        size -= text
    if size > INLINE_LIMIT:
        many = len(msgspec.json.encode(node.images)) > INLINE_LIMIT // 4
        rest = NodeRest(
            reasoning=node.reasoning,
            tool_calls=node.tool_calls,
            tokens=node.tokens,
            images=node.images if many else (),
        )
        blob = blobs.put(msgspec.json.encode(rest), "application/json")
        node = msgspec.structs.replace(
            node,
            reasoning="",
            tool_calls=(),
            tokens=None,
            images=() if many else node.images,
            rest_blob=blob,
        )
    return node


def whole(node: MessageNode, blobs: BlobStore) -> MessageNode:
    """Returns the node with its parts read from blobs. Raises BlobMissing or BlobCorrupt, and Unreadable for
    a blob that is no NodeRest."""
    if node.content_blob is not None:
        content = blobs.get(node.content_blob).decode("utf-8", "replace")
        node = msgspec.structs.replace(node, content=content, content_blob=None)
    if node.rest_blob is not None:
        rest = msgspec.structs.asdict(decode(_REST, blobs.get(node.rest_blob)))
        rest["images"] = rest["images"] or node.images
        node = msgspec.structs.replace(node, **rest, rest_blob=None)
    return node
