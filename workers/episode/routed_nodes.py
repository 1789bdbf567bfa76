"""Puts the experts of an answer's tokens beside the tokens: those that no earlier message has, as a blob."""

from collections.abc import Iterable

import msgspec

from orchard.schemas.messages import MessageNode, RoutedExperts, TokenRecord
from orchard.storage.blobs import BlobStore
from orchard.workers.llm.routed_experts import ReportedExperts


def fresh(reported: ReportedExperts, tokens: TokenRecord, before: Iterable[MessageNode]) -> ReportedExperts:
    """The experts without those of tokens that the newest message of `before`, from the root on, which has
    any, knows already: that message and its prompt are read again with every later one."""
    known = [node.tokens for node in before if node.tokens is not None and node.tokens.experts is not None]
    if not known or known[-1].experts is None or known[-1].experts.width != reported.width:
        return reported
    whole = known[-1].prompt_ids + known[-1].ids
    if tokens.prompt_ids[: len(whole)] != whole:
        return reported
    return reported.after(len(whole) - 1)


def with_experts(
    node: MessageNode, reported: ReportedExperts | None, before: Iterable[MessageNode], blobs: BlobStore
) -> MessageNode:
    """The node with its tokens' experts, if it has tokens. Raises StorageError."""
    if reported is None or node.tokens is None:
        return node
    kept = fresh(reported, node.tokens, before)
    blob = blobs.put(kept.packed, "application/octet-stream")
    experts = RoutedExperts(first=kept.first, width=kept.width, blob=blob)
    return msgspec.structs.replace(node, tokens=msgspec.structs.replace(node.tokens, experts=experts))
