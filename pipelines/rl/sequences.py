"""Turns sampled messages into training sequences: the very ids that were sampled, each trained on once.

The prompt of a message is what the server read before it. Where that is what a sequence holds already,
and a tail, the sequence continues; where a harness rewrote history, a new one begins, and what it
repeats is context. Pictures are part of a prompt: their tokens are all alike, so their digests are
compared, too.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from orchard.schemas.messages import RoutedExperts, TokenRecord


class NotSampled(ValueError):
    """A message lacks what training needs; the error's message is one sentence."""


@dataclass
class TokenSequence:
    """A training sequence. All lists have one entry for each token; those of the context are 0, 0.0 and
    -1."""

    ids: list[int]
    mask: list[int] = field(default_factory=list)
    """1 where the policy sampled the token."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probabilities of the sampled tokens, under the policy that sampled them."""
    versions: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    """Steps of the rollout, counted from 0, that the sampled tokens are of; -1 off the way to its last
    message."""
    images: list[str] = field(default_factory=list)
    """SHA-256 of the pictures whose tokens are in `ids`, in their order: not one for each token."""
    experts: list[bytes] = field(default_factory=list)
    """Experts that each token went to at the rollout, packed as in RoutedExperts; empty where they are not
    known. An empty list: of no token."""

    def context(self, ids: Iterable[int]) -> None:
        """Append tokens that the policy read."""
        for token in ids:
            self._append(token, 0, 0.0, -1, -1)

    def sampled(self, tokens: TokenRecord, turn: int) -> None:
        runs = {run.start: run.version for run in tokens.versions}
        version = -1
        for at, (token, logprob) in enumerate(zip(tokens.ids, tokens.logprobs, strict=True)):
            version = runs.get(at, version)
            self._append(token, 1, logprob, version, turn)

    def _append(self, token: int, mask: int, logprob: float, version: int, turn: int) -> None:
        self.ids.append(token)
        self.mask.append(mask)
        self.logprobs.append(logprob)
        self.versions.append(version)
        self.turns.append(turn)


Packed = Callable[[RoutedExperts], bytes]
"""Reads the blob of a message's experts."""


def sequences(
    records: Iterable[TokenRecord],
    images: Sequence[Sequence[str]] | None = None,
    turns: Sequence[int] | None = None,
    experts: Packed | None = None,
) -> list[TokenSequence]:
    """The sequences of one rollout from its sampled messages, in the order in which they were sampled.

    `images` are for each message the pictures of its prompt, by their SHA-256. `turns` are the messages'
    steps; unless given, those from 0 on. `experts` reads what the messages' records name, for a replay.

    Raises NotSampled for a message whose record lacks its prompt or log-probabilities.
    """
    found: list[TokenSequence] = []
    for number, record in enumerate(records):
        if not record.ids or len(record.logprobs) != len(record.ids) or not record.prompt_ids:
            raise NotSampled(
                f"sampled message {number} has no token ids, log-probabilities or prompt: serve the policy "
                "with `return_token_ids` and `logprobs`"
            )
        if not all(map(math.isfinite, record.logprobs)):
            raise NotSampled(f"sampled message {number} has a log-probability that is not finite")
        prompt = list(record.prompt_ids)
        shown = list(images[number]) if images else []
        for sequence in reversed(found):
            seen = sequence.images == shown[: len(sequence.images)]
            if seen and sequence.ids == prompt[: len(sequence.ids)]:
                break
        else:
            sequence = TokenSequence([])
            found.append(sequence)
            if experts is not None:
                sequence.experts = _shared(found[:-1], prompt, shown)
        sequence.context(prompt[len(sequence.ids) :])
        sequence.images = shown
        sequence.sampled(record, turns[number] if turns else number)
        if experts is not None:
            _route(sequence, record, experts)
    return found


def _route(sequence: TokenSequence, record: TokenRecord, packed: Packed) -> None:
    """Add what a record says of the sequence's tokens, up to its own last. What is known of a token already
    was chosen when it was read first. Raises NotSampled for a blob of another size."""
    end = len(sequence.ids)
    sequence.experts += [b""] * (end - len(sequence.experts))
    if (told := record.experts) is None:
        return
    raw, count = packed(told), end - 1 - told.first
    size = len(raw) // count if count > 0 else 0
    if size not in (told.width, 2 * told.width) or len(raw) != size * count:
        raise NotSampled(f"{len(raw)} bytes of routed experts are not those of {count} tokens")
    for place in range(told.first, end - 1):
        if not sequence.experts[place]:
            at = (place - told.first) * size
            sequence.experts[place] = raw[at : at + size]


def _shared(earlier: Sequence[TokenSequence], prompt: Sequence[int], shown: Sequence[str]) -> list[bytes]:
    """Experts of the tokens with which an earlier sequence begins alike: they are kept once."""
    found: list[bytes] = []
    for sequence in earlier:
        if sequence.images != shown[: len(sequence.images)]:
            continue
        pairs = enumerate(zip(sequence.ids, prompt, strict=False))
        same = next((at for at, (a, b) in pairs if a != b), min(len(sequence.ids), len(prompt)))
        if same > len(found):
            found = sequence.experts[:same]
    return found
