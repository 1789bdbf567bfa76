"""Names and deterministic ids: the same inputs give the same id on any machine, at any time."""

import hashlib
import re
from typing import Any

import msgspec

NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?")
_IN_STREAM = re.compile(r"[0-9a-f]{24}-([1-9]|1[0-5])")
RESERVED_CAMPAIGNS = frozenset(
    {
        "annotated",
        "answered",
        "commands",
        "datasets",
        "decided",
        "done",
        "endpoints",
        "measured",
        "started",
        "tasks",
        "training",
        "unknown",
    }
)


class InvalidName(ValueError):
    """A name that cannot be a subject token, a directory and a DNS label at once."""


def canonical(value: Any) -> bytes:
    """Encodes a value as it is hashed: UTF-8 JSON with sorted keys and no blanks."""
    return msgspec.json.encode(value, order="deterministic")


def digest(value: Any, length: int = 24) -> str:
    """Hashes a value: the first `length` hexadecimal digits of the SHA-256 of its canonical JSON."""
    return hashlib.sha256(canonical(value)).hexdigest()[:length]


def rollout_id(campaign: str, task_id: str, harness: str, model: str, sample: int, streams: int = 1) -> str:
    """Id of one slot of a campaign: 24 hexadecimal digits, and the stream of its events, chosen by them among
    `streams`, unless that is stream 0."""
    return spread(digest([campaign, task_id, harness, model, sample]), streams)


def spread(digits: str, streams: int) -> str:
    """The id of a rollout with these digits, whose campaign is spread over so many streams."""
    stream = int(digits[-8:], 16) % streams
    return f"{digits}-{stream}" if stream else digits


def rollout_stream(rollout: str) -> int:
    """The event stream of a rollout, by its id alone: no setting can give its events another one."""
    found = _IN_STREAM.fullmatch(rollout)
    return int(found[1]) if found else 0


def shard(rollout: str) -> str:
    """Subject token that a rollout's events share: the first two digits of its id."""
    return rollout[:2]


def check_name(name: str, what: str = "campaign") -> str:
    """Returns `name`, or raises InvalidName with the rule: it becomes a part of NATS subjects and paths."""
    if not NAME.fullmatch(name):
        raise InvalidName(
            f"{what} name {name!r} is not valid: use 1 to 63 lower-case letters, digits, '-' and '_', "
            "starting and ending with a letter or digit"
        )
    if what == "campaign" and name in RESERVED_CAMPAIGNS:
        raise InvalidName(f"campaign name {name!r} is reserved: choose another")
    return name
