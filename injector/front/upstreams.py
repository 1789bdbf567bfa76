"""The services behind a front: their addresses, which of them are up, and where the most room is."""

import asyncio
import hashlib
import logging
import math
import re
import ssl
import uuid
from pathlib import Path

import aiohttp
import msgspec

from orchard.injector.agent.interfaces import quantity
from orchard.injector.errors import SandboxRequestInvalid
from orchard.injector.operations import API_KEY_HEADER
from orchard.schemas.sandboxes import Amounts, Resources
from orchard.schemas.toml_text import parsed_toml

LOOK_SECONDS = 5.0
"""Pause between two looks at the room of the services."""
LOOK_TIMEOUT = 5.0
"""Seconds that a service has to tell its room, or whether it has a sandbox."""
SENT_KEPT = 3600.0
"""Seconds for which a creation with an idempotency key is known to have been sent to a service."""
NAME = re.compile(r"[a-z][a-z0-9]{0,7}")

log = logging.getLogger(__name__)


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sandbox service. All services of a front accept the same keys."""

    url: str
    """Address of its orchestrator."""
    tls_ca: str | None = None
    """Path of a PEM file: the authority of its certificate. None: the system's."""


class FrontSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of `python -m orchard.injector.front --upstreams FILE`."""

    upstreams: dict[str, UpstreamSettings]
    """Services by name: up to eight lower-case letters and digits, with which their sandboxes' ids begin. A
    name must not move to another service while sandboxes live."""


def load(path: Path) -> FrontSettings:
    """Load the settings from a TOML file. Raises SandboxRequestInvalid, naming the file."""
    try:
        settings = msgspec.convert(parsed_toml(path.read_text(encoding="utf-8")), FrontSettings)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise SandboxRequestInvalid(f"{path}: {error}") from error
    if not settings.upstreams:
        raise SandboxRequestInvalid(f"{path}: there are no upstreams: name one in [upstreams.NAME]")
    for name in settings.upstreams:
        if NAME.fullmatch(name) is None:
            raise SandboxRequestInvalid(
                f"{path}: `{name}` cannot begin the ids of sandboxes: take up to eight lower-case letters "
                "and digits, a letter first"
            )
    return settings


class Upstream:
    """One service, with the room that it had at the last look less what was made since."""

    def __init__(self, name: str, settings: UpstreamSettings) -> None:
        self.name = name
        self.url = settings.url.rstrip("/")
        self.tls = True if settings.tls_ca is None else ssl.create_default_context(cafile=settings.tls_ca)
        self.room: Amounts | None = None
        """What is free; None while it does not answer."""
        self._sent: dict[str, tuple[int, float]] = {}
        """Creations sent here by sandbox id, the oldest first: how many, and when the last."""

    def sends(self, sandbox_id: str, now: float) -> None:
        """Note, before a creation is sent, that the sandbox may be here from now on; `now` in seconds."""
        count, _ = self._sent.pop(sandbox_id, (0, now))
        self._sent[sandbox_id] = (count + 1, now)
        while (oldest := next(iter(self._sent))) and now - self._sent[oldest][1] > SENT_KEPT:
            del self._sent[oldest]

    def was_not_reached(self, sandbox_id: str) -> None:
        """Take a creation back that was not sent after all."""
        count, when = self._sent.pop(sandbox_id, (1, 0.0))
        if count > 1:
            self._sent[sandbox_id] = (count - 1, when)

    def may_have(self, sandbox_id: str) -> bool:
        """Whether a creation of this sandbox was sent here within the last hour."""
        return sandbox_id in self._sent

    def new_id(self, key: str | None) -> str:
        """Return an id for a new sandbox here: the same for the same idempotency key."""
        made = uuid.uuid4().hex if key is None else hashlib.sha256(key.encode()).hexdigest()
        return f"{self.name}-{made[:12]}"

    def owns(self, sandbox_id: str) -> bool:
        return sandbox_id.startswith(f"{self.name}-")

    def has_room(self, cpu: float, memory: float) -> bool:
        return self.room is not None and self.room.cpu >= cpu and self.room.memory_bytes >= memory

    def score(self, text: str, weight: float = 1.0) -> float:
        """Weighted rendezvous hashing: of several, each has the highest score for its share of all texts."""
        number = int.from_bytes(hashlib.sha256(f"{self.name} {text}".encode()).digest()[:8])
        return -weight / math.log((number + 1) / (2**64 + 1))

    def took(self, cpu: str, memory: str) -> None:
        """Count a sandbox that was made here since the last look."""
        if self.room is not None:
            self.room = Amounts(
                cpu=self.room.cpu - quantity(cpu), memory_bytes=self.room.memory_bytes - int(quantity(memory))
            )


class Upstreams:
    def __init__(self, settings: FrontSettings, session: aiohttp.ClientSession, key: str | None) -> None:
        """`key` is one that all services accept, with which their room is asked for."""
        self.all = [Upstream(name, each) for name, each in settings.upstreams.items()]
        self._session = session
        self._headers = {} if key is None else {API_KEY_HEADER: key}

    def of(self, sandbox_id: str) -> Upstream:
        """Return where a sandbox is: an id that no front made belongs to one service, up or down."""
        named = (one for one in self.all if one.owns(sandbox_id))
        return next(named, None) or max(self.all, key=lambda one: one.score(sandbox_id))

    @property
    def up(self) -> list[Upstream]:
        """Those that answer."""
        return [one for one in self.all if one.room is not None]

    def by_room(self, cpu: str, memory: str, key: str | None) -> list[Upstream]:
        """Order those that answer for a creation: first those with room for it, each for a share of the keys
        that is its share of their free memory. So fronts that see about the same room choose alike."""
        text, asked = key or uuid.uuid4().hex, (quantity(cpu), quantity(memory))

        def rank(upstream: Upstream) -> tuple[bool, float]:
            free = 0 if upstream.room is None else upstream.room.memory_bytes
            return upstream.has_room(*asked), upstream.score(text, max(1.0, free))

        return sorted(self.up, key=rank, reverse=True)

    async def follow(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look at each service; what is wrong with one costs no other."""
        results = await asyncio.gather(*(self._look(one) for one in self.all), return_exceptions=True)
        for upstream, result in zip(self.all, results, strict=True):
            if isinstance(result, Exception):
                upstream.room = None
                log.error("%s gets no new sandboxes", upstream.name, exc_info=result)

    async def _look(self, upstream: Upstream) -> None:
        """Learn the room of one service; it gets none from an answer that is not understood."""
        before = upstream.room
        try:
            async with self._session.get(
                f"{upstream.url}/resources",
                headers=self._headers,
                ssl=upstream.tls,
                timeout=aiohttp.ClientTimeout(total=LOOK_TIMEOUT),
            ) as reply:
                reply.raise_for_status()
                upstream.room = msgspec.json.decode(await reply.read(), type=Resources).available
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError) as error:
            upstream.room = None
            if before is not None:
                log.warning("%s gets no new sandboxes: %s", upstream.name, error or type(error).__name__)
            return
        if before is None:
            log.info("%s is up", upstream.name)
