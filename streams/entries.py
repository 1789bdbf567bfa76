"""Queue entries: the subjects and names of requests on the server. Pure functions.

Each entry has a subject of its own, `orchard.work.<kind>.<domain>.<priority>` followed by
`<campaign>.<shard>.<key>.<fence>`, and is stored only where that subject is empty. A work queue keeps a
message until it is acknowledged, so the server itself refuses a second entry of a rollout that is queued or
running (decision 0012). The priority of a team's requests is `<priority>:<team>` (decision 0134).
"""

import hashlib
import re
from typing import NamedTuple

import msgspec

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.identity import digest, shard
from orchard.schemas.queues import Queue
from orchard.streams.records import whole_number

_TAIL_TOKENS = 4


class EntryAddress(NamedTuple):
    """The last four tokens of an entry's subject."""

    campaign: str
    key: str
    """Id of the rollout, or a key that no other request of the campaign has."""
    fence: int = 0
    """Fence of the rollout that the request is for: see `RolloutRequest.fence`."""

    @property
    def tail(self) -> str:
        return f"{self.campaign}.{shard(self.key)}.{self.key}.{self.fence}"


class QueueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a queue. `name` is its message id: no two bodies may share one."""

    queue: Queue
    address: EntryAddress
    name: str
    body: bytes

    @property
    def subject(self) -> str:
        return f"{self.queue.subject}.{self.address.tail}"

    @property
    def later_subject(self) -> str:
        return f"{self.queue.later_subject}.{self.address.tail}"

    @property
    def due_subject(self) -> str:
        """Subject that the server moves it to when its time has come."""
        return f"{self.queue.due_subject}.{self.address.tail}"


def address_in(subject: str) -> EntryAddress | None:
    """Parses the address in a subject of WORK or LATER; None for a subject without these tokens."""
    tokens = subject.split(".")
    fence = whole_number(tokens[-1])
    if len(tokens) != 5 + _TAIL_TOKENS or fence is None:
        return None
    return EntryAddress(tokens[5], tokens[7], fence)


def work_subject(due_subject: str) -> str:
    return due_subject.replace("orchard.due.", "orchard.work.", 1)


def released_subject(later_subject: str) -> str:
    """Subject of WORK that a request moves to before its time."""
    return later_subject.replace("orchard.later.", "orchard.work.", 1)


def entry(queue: Queue, address: EntryAddress, occasion: str, body: bytes) -> QueueEntry:
    """Makes an entry, named by its address, the occasion it is made for, and its body.

    The occasion must be new whenever the request may have been on the queue before, for example the number
    of the attempt that failed. Two entries of one name are then the same entry sent twice.
    """
    name = f"{address.key}.{address.fence}.{occasion}.{hashlib.sha256(body).hexdigest()[:12]}"
    return QueueEntry(queue=queue, address=address, name=name, body=body)


def rollout_entry(request: RolloutRequest, occasion: str) -> QueueEntry:
    """Makes the entry of a rollout request; see `entry` for the occasion."""
    address = EntryAddress(request.campaign, request.rollout_id, request.fence)
    return entry(request.queue, address, occasion, msgspec.json.encode(request))


FIRST = "first"
"""Occasion of a request that the campaign or run makes for the first time."""


def after_attempt(number: int) -> str:
    """Occasion of a retry. The number was taken in the log, so no other attempt has it (decision 0003)."""
    return f"after-{number}"


def in_round(number: int) -> str:
    """Occasion of an offer by `orchard resume`: the campaign's rounds only go up."""
    return f"round-{number}"


def successor(message_id: str) -> str:
    """Occasion of the entry that replaces the one with this message id, whose name is unique already."""
    return f"next-{digest(message_id)}"


_FOR_NEWER = re.compile(r"\.newer-(\d+)-")


def for_newer(message_id: str) -> tuple[str, int]:
    """Occasion of the entry by which a worker leaves the one with this message id to a later version, and how
    often that was done before."""
    found = _FOR_NEWER.search(message_id)
    times = int(found[1]) if found else 0
    return f"newer-{times + 1}-{digest(message_id)}", times
