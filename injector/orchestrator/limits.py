"""How much one key may ask for, and how a crowded replica is shared between keys: decisions without I/O.

Replicas share nothing: rates and numbers of requests are those of one replica, so behind n of them a key gets
up to n times as much. The number of sandboxes is counted at the backend, whichever replica made them.
"""

import hashlib
import math
from pathlib import Path
from typing import NamedTuple

import msgspec

from orchard.injector.errors import SandboxRequestInvalid

OPEN = "open"
"""Stands for the key where none is asked for."""
REQUESTS = "requests"
OVERLOAD = "overload"
RETRY_OVERLOAD = 1.0
RETRY_CONCURRENT = 1.0
RETRY_SANDBOXES = 5.0
"""Seconds after which another try makes sense, where nobody can know."""
SHARE = 4
"""A key may hold this many times what is free: alone four fifths of a replica, each of two four ninths."""


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one key; None: no limit."""

    requests_per_second: float | None = None
    """On average; deletions and heartbeats are not counted."""
    burst: int | None = None
    """Requests at once after a pause; None: what a second allows, at least one."""
    concurrent_requests: int | None = None
    """Being handled at the same time, waits and terminals included."""
    waiting_requests: int = 0
    """Requests beyond `concurrent_requests`, this key's or all keys', that wait for their turn at a replica;
    what is beyond these too is refused."""
    sandboxes: int | None = None
    """That have not failed, at the same time, at all replicas together."""

    def __post_init__(self) -> None:
        for name, default in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            value = getattr(self, name)
            if value != default and not 0 < value < math.inf:
                raise ValueError(f"`{name}` must be more than zero")
        if self.burst is not None and self.requests_per_second is None:
            raise ValueError("`burst` needs `requests_per_second`")


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of limits."""

    concurrent_requests: int | None = None
    """Of all keys together, at one replica; what is beyond waits, or is refused with 503. None: no limit."""
    default: KeyLimits = KeyLimits()
    keys: dict[str, KeyLimits] = {}
    """By the name of the key (`name_of`), in place of `default`."""

    def __post_init__(self) -> None:
        if self.concurrent_requests is not None and self.concurrent_requests <= 0:
            raise ValueError("`concurrent_requests` must be more than zero")


def load(path: Path) -> Limits:
    """Raises SandboxRequestInvalid, naming the file, for what is no file of limits."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Limits)
    except (msgspec.MsgspecError, ValueError, OSError) as error:
        raise SandboxRequestInvalid(f"{path} is no file of limits: {error}") from error


def name_of(key: str) -> str:
    """A key's name in logs, figures and files of limits, from which the key cannot be found."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:12]


class Excess(NamedTuple):
    """Why a request is refused: `rate`, `requests`, `sandboxes`, `overload`; seconds until another try."""

    limit: str
    detail: str
    retry_after: float

    @property
    def reason(self) -> str:
        """The word for programs."""
        return self.limit if self.limit == OVERLOAD else f"limit_{self.limit}"

    @property
    def passing(self) -> bool:
        """Whether it ends when other requests do."""
        return self.limit in (REQUESTS, OVERLOAD)

    @property
    def status(self) -> int:
        """429 where it is the key's own doing."""
        return 503 if self.limit == OVERLOAD else 429


class Bucket:
    """A token bucket: `rate` a second on average, `burst` at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._filled = -math.inf

    def take(self, now: float) -> float:
        """0 when there was a token, else the seconds until there will be one. `now` is in seconds."""
        self._tokens = min(float(self._burst), self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate


class Admission:
    """What is being handled at this replica, by key."""

    def __init__(self, limits: Limits, *, keys: int = 1) -> None:
        """With a single key there is nobody to leave room for."""
        self._limits = limits
        self._shared = keys > 1
        self._handled: dict[str, int] = {}
        self._total = 0
        self._buckets: dict[str, Bucket] = {}

    def of(self, name: str) -> KeyLimits:
        """Of the key of this name."""
        return self._limits.keys.get(name, self._limits.default)

    def enter(self, name: str, now: float, *, counted: bool = True) -> Excess | None:
        """Begin to handle a request of this key, unless something speaks against it; then `leave` it.

        One that is not `counted` lets go of things or keeps them alive: refusing it would help nobody.
        """
        excess = self._excess(name, now) if counted else None
        if excess is None:
            self._handled[name] = self._handled.get(name, 0) + 1
            self._total += 1
        return excess

    def leave(self, name: str) -> None:
        """It is handled."""
        self._total -= 1
        self._handled[name] -= 1
        if not self._handled[name]:
            del self._handled[name]

    def _excess(self, name: str, now: float) -> Excess | None:
        limits, handled = self.of(name), self._handled.get(name, 0)
        if limits.concurrent_requests is not None and handled >= limits.concurrent_requests:
            detail = f"this key has {handled} requests that are being handled, as many as it may"
            return Excess(REQUESTS, detail, RETRY_CONCURRENT)
        if self._limits.concurrent_requests is not None:
            free = self._limits.concurrent_requests - self._total
            if free <= 0 or (self._shared and handled >= SHARE * free):
                return Excess(OVERLOAD, "this replica is busy; try again, or another one", RETRY_OVERLOAD)
        if limits.requests_per_second is not None:
            burst = limits.burst or max(1, math.ceil(limits.requests_per_second))
            bucket = self._buckets.setdefault(name, Bucket(limits.requests_per_second, burst))
            if seconds := bucket.take(now):
                detail = f"this key may send {limits.requests_per_second:g} requests a second"
                return Excess("rate", detail, seconds)
        return None


def sandboxes_excess(limits: KeyLimits, there: int, wanted: int) -> Excess | None:
    """Whether `wanted` more would be too many, of which `there` are already."""
    if limits.sandboxes is None or there + wanted <= limits.sandboxes:
        return None
    detail = f"this key has {there} sandboxes and may have {limits.sandboxes}: delete some"
    return Excess("sandboxes", detail, RETRY_SANDBOXES)
