"""The engine of a world's services: records, calls, and the audit log of one attempt. It never waits.

Equal worlds and seeds give equal answers to equal calls, including injected errors: an error depends only on
the seed and the call's number, and the task's clock advances by one second per call.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec

from orchard.schemas.claw import AuditEntry, ClawWorld, Injected, Records
from orchard.workers.domains.claw.arguments import complaint, read_arguments
from orchard.workers.domains.claw.declarations import (
    BAD_ARGUMENTS,
    NOT_FOUND,
    Collection,
    Record,
    Service,
    ServiceError,
    ServiceOperation,
    ServiceState,
)
from orchard.workers.domains.claw.services import SERVICES
from orchard.workers.domains.claw.times import resolved

_IRREVERSIBLE = " This cannot be undone."


class BadWorld(ValueError):
    """The world cannot be opened; the text is one sentence."""


@dataclass(frozen=True)
class ServiceTool:
    tool: str
    service: Service
    operation: ServiceOperation

    @property
    def about(self) -> str:
        return self.operation.about + (_IRREVERSIBLE if self.operation.irreversible else "")


@dataclass(frozen=True)
class CallResult:
    entry: AuditEntry
    wait: float = 0.0
    """Delay in seconds before the caller gets the answer."""

    @cached_property
    def text(self) -> str:
        """The response body that the caller receives."""
        response = self.entry.response
        return response if self.entry.injected == "malformed" else msgspec.json.encode(response).decode()


class Services:
    """The services of one world. Raises BadWorld for unknown services, collections or tools."""

    def __init__(self, world: ClawWorld, seed: int) -> None:
        if world.now.tzinfo is None:
            raise BadWorld("now must have a time zone, as in 2026-04-10T09:00:00+00:00")
        self._world = world
        self._injection = Injection(seed if world.error_seed is None else world.error_seed, world.error_rate)
        self.offers = _offers(world)
        self.audit: list[AuditEntry] = []
        self._states = {
            name: _state_of(SERVICES[name], records, world) for name, records in world.services.items()
        }
        self.initial = self.state()
        """The records of each service at the start."""

    def call(self, tool: str, arguments: str | Record) -> CallResult:
        """Carries out a call and logs it. `arguments` are an object, or whatever was given instead. Every
        call gets an answer."""
        number = len(self.audit) + 1
        now = self._world.now + timedelta(seconds=number)
        given, wrong = read_arguments(arguments)
        offer = self.offers.get(tool)
        injected = self._injection.draw(number) if offer else None
        status, response = 200, None
        if injected and injected.answer is not None:
            status, response = injected.answer
        else:
            try:
                response = self._do(offer, tool, given, wrong, now, injected is not None and injected.spoils)
            except ServiceError as refusal:
                status, response = refusal.status, {"error": refusal.message}
                injected = injected if injected and not injected.spoils else None
        entry = AuditEntry(
            sequence=number,
            time=now.isoformat(),
            service=offer.service.name if offer else "",
            operation=offer.operation.name if offer else "",
            tool=tool,
            arguments=given,
            status=status,
            response=response,
            injected=injected.kind if injected else None,
        )
        self.audit.append(entry)
        return CallResult(entry, injected.wait if injected else 0.0)

    def state(self) -> dict[str, Records]:
        held = {
            name: {kind: [*records.values()] for kind, records in state.records.items()}
            for name, state in self._states.items()
        }
        copied: dict[str, Records] = _copied(held)
        return copied

    def _do(
        self, offer: ServiceTool | None, tool: str, given: Any, wrong: str, now: Any, spoilt: bool
    ) -> Any:
        if offer is None:
            raise ServiceError(NOT_FOUND, f"there is no tool {tool[:60]!r}")
        if wrong or (wrong := complaint(given, offer.operation.schema)):
            raise ServiceError(BAD_ARGUMENTS, f"{tool}: {wrong}")
        state = self._states[offer.service.name]
        state.now = now
        if spoilt:
            state = copy.deepcopy(state)
        answer = _copied(offer.operation.do(state, given))
        return garbled(answer) if spoilt else answer


def _copied(value: Any) -> Any:
    """Copies JSON data in a tenth of the time of `copy.deepcopy`."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _offers(world: ClawWorld) -> dict[str, ServiceTool]:
    if unknown := [name for name in world.services if name not in SERVICES]:
        raise BadWorld(f"there is no service {unknown[0]!r}: use one of {', '.join(SERVICES)}")
    all_of_them = {
        offer.tool: offer
        for name in world.services
        for operation in SERVICES[name].operations
        for offer in (ServiceTool(f"{name}_{operation.name}", SERVICES[name], operation),)
    }
    if absent := [tool for tool in world.tools if tool not in all_of_them]:
        raise BadWorld(
            f"no service of the world has the tool {absent[0]!r}: use one of {', '.join(all_of_them)}"
        )
    return {tool: all_of_them[tool] for tool in world.tools} if world.tools else all_of_them


def _state_of(service: Service, records: Records, world: ClawWorld) -> ServiceState:
    known = {collection.name: collection for collection in service.collections}
    if unknown := [name for name in records if name not in known]:
        raise BadWorld(f"{service.name} holds no {unknown[0]!r}: it holds {', '.join(known)}")
    made = {name: _collected(service, each, records.get(name, []), world) for name, each in known.items()}
    return ServiceState(made, world.owner, world.now)


def _collected(
    service: Service, collection: Collection, records: list[Record], world: ClawWorld
) -> dict[str, Record]:
    """Completes a fixture's records and maps them by id. Raises BadWorld."""
    where: Callable[[int], str] = lambda index: f"{service.name}.{collection.name}[{index}]"  # noqa: E731
    schema = {
        "type": "object",
        "properties": {collection.id: {"type": "string"}, **collection.fields},
        "required": list(collection.required),
    }
    found: dict[str, Record] = {}
    times = frozenset(collection.times)
    for index, record in enumerate(records):
        try:
            whole = resolved(record, world.now, times)
        except ValueError as error:
            raise BadWorld(f"{where(index)}: {error}") from error
        key = whole.get(collection.id, f"{collection.one}_{index + 1:03d}x")
        whole = {collection.id: key, **_copied(collection.defaults), **whole}
        if wrong := complaint(whole, schema, where(index)):
            raise BadWorld(f"{where(index)}: {wrong}")
        if key in found:
            raise BadWorld(f"{where(index)}: another record has the id {key!r}")
        found[key] = whole
    return found


_KINDS: tuple[Injected, ...] = ("rate_limited", "server_error", "slow", "malformed")
SLOW = (2.0, 4.0)
"""Range of the delay of a slow call, in seconds."""


@dataclass(frozen=True)
class InjectedError:
    kind: Injected
    wait: float = 0.0
    answer: tuple[int, Any] | None = None
    """The status and response that replace the service's; None means that the service is called."""

    @property
    def spoils(self) -> bool:
        """Whether the answer is cut off and the service's state stays unchanged."""
        return self.kind == "malformed"


@dataclass(frozen=True)
class Injection:
    seed: int
    rate: float

    def draw(self, number: int) -> InjectedError | None:
        if not self.rate:
            return None
        dice = random.Random(f"{self.seed}/{number}")
        if dice.random() >= self.rate:
            return None
        kind = dice.choice(_KINDS)
        match kind:
            case "rate_limited":
                seconds = dice.randint(1, 3)
                told = {"error": f"too many requests: retry after {seconds} s", "retry_after": seconds}
                return InjectedError(kind, answer=(429, told))
            case "server_error":
                return InjectedError(kind, answer=(500, {"error": "internal server error"}))
            case "slow":
                return InjectedError(kind, wait=round(dice.uniform(*SLOW), 3))
            case "malformed":
                return InjectedError(kind)


def garbled(answer: Any) -> str:
    """Returns an answer's JSON cut in the middle, so that it is invalid."""
    text = msgspec.json.encode(answer).decode()
    return text[: max(1, len(text) // 2)]
