"""Limits of one key, and how a busy replica is shared between keys: decisions without I/O.

Replicas share nothing: rates and numbers of requests are those of one replica, so behind n of them a key gets
up to n times as much. The number of sandboxes is counted at the backend, whichever replica made them.
"""

import hashlib
import math
from pathlib import Path
from typing import NamedTuple

import msgspec

from orchard.injector.errors import SandboxRequestInvalid
from orchard.schemas.faults import fault_sentence
from orchard.schemas.toml_text import parsed_toml

OPEN = "open"
"""Name of the key of a service without keys."""
REQUESTS = "requests"
OVERLOAD = "overload"
RETRY_OVERLOAD = 1.0
RETRY_CONCURRENT = 1.0
RETRY_SANDBOXES = 5.0
"""Seconds after which a retry makes sense, where nothing better is known."""
SHARE = 4
"""A key may hold this many times what is free: alone four fifths of a replica, each of two four ninths."""


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one key; None: no limit."""

    requests_per_second: float | None = None
    """Average rate; deletions and heartbeats are not counted."""
    burst: int | None = None
    """Maximum burst of requests; None: the requests of one second, at least one."""
    concurrent_requests: int | None = None
    """Requests handled at the same time, waits and terminals included."""
    waiting_requests: int = 0
    """Requests beyond `concurrent_requests`, this key's or all keys', that wait for their turn at a
    replica; more are refused."""
    sandboxes: int | None = None
    """Sandboxes that have not failed, at the same time, at all replicas together."""

    def __post_init__(self) -> None:
        for name, default in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            value = getattr(self, name)
            if value != default and not 0 < value < math.inf:
                raise ValueError(f"`{name}` is {value}: it must be more than zero")
        if self.burst is not None and self.requests_per_second is None:
            raise ValueError(f"`burst` is {self.burst} without `requests_per_second`: give both")


class ServiceLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of limits."""

    concurrent_requests: int | None = None
    """Requests of all keys together, at one replica; more wait, or are refused with 503. None: no limit."""
    default: KeyLimits = KeyLimits()
    keys: dict[str, KeyLimits] = {}
    """Limits by the name of the key (`name_of`), in place of `default`."""

    def __post_init__(self) -> None:
        if self.concurrent_requests is not None and self.concurrent_requests <= 0:
            raise ValueError(
                f"`concurrent_requests` is {self.concurrent_requests}: it must be more than zero"
            )


def load(path: Path) -> ServiceLimits:
    """Load a file of limits. Raises SandboxRequestInvalid, naming the file."""
    try:
        tree = parsed_toml(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise SandboxRequestInvalid(f"{path} is no file of limits: {error}") from error
    try:
        return msgspec.convert(tree, ServiceLimits)
    except msgspec.ValidationError as error:
        said = fault_sentence(tree, ServiceLimits, error)
        raise SandboxRequestInvalid(f"{path} is no file of limits: {said}") from error
    except ValueError as error:
        raise SandboxRequestInvalid(f"{path} is no file of limits: {error}") from error


def name_of(key: str) -> str:
    """Return a key's name in logs, metrics and files of limits, which does not reveal the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:12]


class Excess(NamedTuple):
    """Reason for refusing a request: `rate`, `requests`, `sandboxes`, `overload`; with seconds until a
    retry."""

    limit: str
    detail: str
    retry_after: float

    @property
    def reason(self) -> str:
        return self.limit if self.limit == OVERLOAD else f"limit_{self.limit}"

    @property
    def passing(self) -> bool:
        """Whether it ends when other requests do."""
        return self.limit in (REQUESTS, OVERLOAD)

    @property
    def status(self) -> int:
        return 503 if self.limit == OVERLOAD else 429


class OverLimit(Exception):
    """A request that exceeds a limit of its key."""

    def __init__(self, excess: Excess) -> None:
        super().__init__(excess.detail)
        self.excess = excess


class Bucket:
    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._filled = -math.inf

    def take(self, now: float) -> float:
        """Take a token: 0, or the seconds until there will be one. `now` is in seconds."""
        self._tokens = min(float(self._burst), self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate


class RequestAdmission:
    """Counts the requests handled by this replica, by key."""

    def __init__(self, limits: ServiceLimits, *, keys: int = 1) -> None:
        """With a single key no room is kept for others."""
        self._limits = limits
        self._shared = keys > 1
        self._handled: dict[str, int] = {}
        self._total = 0
        self._buckets: dict[str, Bucket] = {}

    def of(self, name: str) -> KeyLimits:
        return self._limits.keys.get(name, self._limits.default)

    def enter(self, name: str, now: float, *, counted: bool = True) -> Excess | None:
        """Admit a request of this key, to be ended by `leave`, or return why not.

        One that is not `counted` frees resources or keeps them alive: refusing it would help nobody.
        """
        excess = self._excess(name, now) if counted else None
        if excess is None:
            self._handled[name] = self._handled.get(name, 0) + 1
            self._total += 1
        return excess

    def leave(self, name: str) -> None:
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
    """Return why `wanted` more sandboxes, beside `there` existing ones, would be too many."""
    if limits.sandboxes is None or there + wanted <= limits.sandboxes:
        return None
    detail = f"this key has {there} sandboxes and may have {limits.sandboxes}: delete some"
    return Excess("sandboxes", detail, RETRY_SANDBOXES)
