"""Queue entries for tests that do not care what is asked for."""

from orchard.schemas.queues import Queue
from orchard.streams.entries import EntryAddress, QueueEntry


def named(queue: Queue, name: str, body: bytes) -> QueueEntry:
    """An entry with a place of its own and this message id."""
    return QueueEntry(queue=queue, address=EntryAddress("demo", name), name=name, body=body)
