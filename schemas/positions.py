"""Sequences and positions over all event streams.

The sequence of an event is the number of its stream times 2^48, plus its sequence in that stream: one number
names an event over all streams, and in stream 0 it is the stream's own.
"""

from collections.abc import Iterable

STREAM_BITS = 48
MOST_OWN = (1 << STREAM_BITS) - 1
"""Greatest sequence within a stream."""
MOST_STREAMS = 16
"""Sequences of so many streams are whole numbers in JSON everywhere, which has 53 bits."""

PlainPosition = int | tuple[int, ...]
"""A position as it is stored: one number if there is one stream, as before there were several."""


def stream_of(sequence: int) -> int:
    return sequence >> STREAM_BITS


def own_sequence(sequence: int) -> int:
    """The sequence within the stream."""
    return sequence & MOST_OWN


def sequence_in(stream: int, own: int) -> int:
    return (stream << STREAM_BITS) + own


def event_called(sequence: int) -> str:
    """Names an event in a sentence; of a further stream by that and the sequence there."""
    stream, own = stream_of(sequence), own_sequence(sequence)
    return f"event {own} of stream {stream}" if stream else f"event {own}"


class Position(tuple[int, ...]):
    """How far the log was read, stored or derived: the last sequence of each stream, by stream.

    Streams beyond its end were not begun; so one stream at 0 is the empty position.
    """

    def __new__(cls, sequences: Iterable[int] = ()) -> "Position":
        found = list(sequences)
        while found and not own_sequence(found[-1]):
            found.pop()
        return super().__new__(cls, found)

    @classmethod
    def of(cls, plain: PlainPosition) -> "Position":
        return cls((plain,) if isinstance(plain, int) else plain)

    @classmethod
    def up_to(cls, sequences: Iterable[int]) -> "Position":
        """The position that has each of the sequences as the last of its stream."""
        found = cls()
        for sequence in sequences:
            found = found.with_last(sequence)
        return found

    @property
    def plain(self) -> PlainPosition:
        return self.last(0) if len(self) <= 1 else tuple(self)

    def last(self, stream: int) -> int:
        """Last sequence of a stream; its zeroth, which no event has, where it was not begun."""
        return self[stream] if stream < len(self) else sequence_in(stream, 0)

    def covers(self, sequence: int) -> bool:
        return sequence <= self.last(stream_of(sequence))

    def reaches(self, other: "Position") -> bool:
        """Whether it covers all that `other` covers."""
        return all(self.covers(sequence) for sequence in other)

    def with_last(self, sequence: int) -> "Position":
        """This position with the stream of `sequence` at it."""
        stream = stream_of(sequence)
        length = max(len(self), stream + 1)
        return Position(sequence if one == stream else self.last(one) for one in range(length))

    def joined(self, other: "Position") -> "Position":
        """What this or the other covers."""
        return Position(max(self.last(one), other.last(one)) for one in range(max(len(self), len(other))))

    def common(self, other: "Position") -> "Position":
        """What this and the other cover."""
        return Position(min(self.last(one), other.last(one)) for one in range(min(len(self), len(other))))

    @property
    def events(self) -> int:
        """Number of sequences that it covers."""
        return sum(map(own_sequence, self))

    def __str__(self) -> str:
        """One number for one stream, else the streams' own sequences, separated by commas."""
        return ",".join(str(own_sequence(self.last(one))) for one in range(max(len(self), 1)))

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Reads what `str` gives. Raises ValueError."""
        return cls(sequence_in(stream, int(own)) for stream, own in enumerate(text.split(",")))

    def sql(self, column: str = "sequence") -> str:
        """The condition that the sequence in a column is covered."""
        parts = [f"{column} <= {self.last(0)}"]
        parts += [
            f"{column} between {sequence_in(stream, 1)} and {self.last(stream)}"
            for stream in range(1, len(self))
        ]
        return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"


START = Position()
"""Before everything."""
