"""Configuration of the connection to NATS."""

import re
from typing import Annotated

import msgspec

from orchard.schemas.addresses import check_nats_urls, check_variable
from orchard.schemas.positions import MOST_STREAMS
from orchard.schemas.quantities import Count, Duration, Port, Size, Unit
from orchard.schemas.queues import Queue


class NatsSettings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The `[nats]` section. Secrets are never in it, only the names of the variables that hold them."""

    url: str | None = None
    """`nats://host:port` or `tls://host:port`, several separated by commas; None: the embedded server."""
    port: Port = 0
    """Port of the embedded server; 0 takes any free one."""
    credentials: str | None = None
    """Path of a `.creds` file (JWT and seed)."""
    user: str | None = None
    """User name, if the server needs one with a password."""
    password_env: str | None = None
    """Environment variable with the password of `user`."""
    token_env: str | None = None
    """Environment variable with the token."""
    tls_ca: str | None = None
    """Path of a PEM file: the authority of a tls:// server's certificate. None: the system's."""
    tls_cert: str | None = None
    """Path of a PEM file: this client's certificate, where the server asks for one."""
    tls_key: str | None = None
    """Path of a PEM file: the key of `tls_cert`."""
    connect_timeout: Duration = 5.0
    """Seconds until the first connection must be open."""
    patience: Duration = 600.0
    """Seconds that a publish or acknowledgement is retried over lost connections before it fails. Duplicates
    within the streams' deduplication windows are dropped."""

    ack_wait: Duration = 60.0
    """Seconds without heartbeat after which a claim counts as dead."""
    heartbeat: Duration = 15.0
    """Seconds between heartbeats of a claim."""
    max_deliver: Count = 3
    """Deliveries of one queue entry before it becomes a dead letter."""
    max_ack_pending: Count = 10_000
    """Claims open at once on one queue: at least the slots of the whole fleet."""
    max_waiting: Count = 4096
    """Claims waiting at once on one queue: at least the slots of the whole fleet. Fixed when the queue is
    created."""

    queues: str = ""
    """Queues whose consumers the writer creates when it starts, such as
    `rollout.swe.normal,rollout.swe.normal:TEAM`; others are created at first use."""

    work_max_messages: Count = 1_000_000
    """Maximum number of waiting requests; a submission that exceeds it waits."""
    work_dedupe: Duration = 3600.0
    """Seconds in which a repeated request id is recognized."""
    event_dedupe: Duration = 120.0
    """Seconds in which a repeated event id is recognized."""
    event_max_bytes: Annotated[int, msgspec.Meta(ge=-1, le=2**53), Unit("bytes")] = -1
    """Size at which the event log refuses events, in bytes; nothing old is ever dropped, because old events
    are the fences that let each rollout have one outcome. -1: no limit but the disk's."""
    event_streams: Annotated[int, msgspec.Meta(ge=1, le=MOST_STREAMS)] = 1
    """Number of event streams over which a new campaign spreads its rollouts, each of which can be on another
    server or disk. Campaigns that exist keep theirs; streams are never removed."""
    replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    """Number of a cluster's servers that store each stream."""

    sync_interval: str = "always"
    """When the embedded server syncs messages to the disk: `always` before it acknowledges them, or at most
    so long after, such as `1s` or `2m`, which a power failure may lose."""
    max_file_store: Size | None = None
    """Maximum bytes that the embedded server stores; None: the whole disk."""
    reserve_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**53), Unit("bytes")] = 512 * 1024 * 1024
    """Free space in bytes on the embedded server's disk below which nothing new is claimed: running attempts
    need it. A server that is blocked by a full disk is restarted when half of this is free."""
    full_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.95
    """Share of `event_max_bytes`, `max_file_store` or the account's limit above which nothing new is
    claimed."""

    def __post_init__(self) -> None:
        if self.heartbeat * 2 > self.ack_wait:
            raise ValueError(
                f"nats.heartbeat is {self.heartbeat} s: set it to at most half of nats.ack_wait "
                f"({self.ack_wait} s), so that one lost heartbeat loses no claim"
            )
        if not re.fullmatch(r"always|[1-9][0-9]*(ms|s|m|h)", self.sync_interval):
            raise ValueError(
                f"nats.sync_interval is {self.sync_interval!r}: use always, or a time such as 500ms, 1s or 2m"
            )
        if self.event_max_bytes == 0:
            raise ValueError("nats.event_max_bytes is 0, for which NATS takes no limit: set -1 or a number")
        if self.url is not None:
            check_nats_urls(self.url, "nats.url")
        check_variable(self.password_env, "nats.password_env")
        check_variable(self.token_env, "nats.token_env")
        if (self.user is None) != (self.password_env is None):
            raise ValueError("nats.user and nats.password_env belong together: set both or neither")
        queues_in(self.queues)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("nats.tls_cert and nats.tls_key belong together: set both or neither")


class TeamSettings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Share and quotas of one team (configuration section `[teams.NAME]`)."""

    share: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    """Weight of the team when several wait at one priority: with 2 it gets twice the slots of a team with 1.
    Requests of no team have 1."""
    slots: Count | None = None
    """Maximum rollouts of the team that run at once, in each domain and priority; the others wait. None: no
    limit."""
    usd_per_day: Annotated[float, msgspec.Meta(gt=0, le=1e9), Unit("USD")] | None = None
    """Cost of the team's calls of models and judges of one UTC day after which its rollouts wait for the next
    day. None: no limit."""


def queues_in(text: str) -> list[Queue]:
    """Parses the queues that `nats.queues` names. Raises ValueError for a name that is none."""
    found = []
    for name in filter(None, (name.strip() for name in text.split(","))):
        if name.count(".") != 2:
            raise ValueError(f"nats.queues names {name!r}: write kind.domain.priority, as rollout.swe.normal")
        found.append(Queue.of_subject(f"orchard.work.{name}"))
    return found
