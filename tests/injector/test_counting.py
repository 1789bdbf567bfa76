"""A key's sandboxes are counted before it makes more: exactly, and not once for each of a crowd."""

import asyncio
from typing import Any

import pytest

from orchard.injector.agent.interfaces import OWNER
from orchard.injector.orchestrator import ownership
from orchard.injector.orchestrator.keys import Keys
from orchard.injector.orchestrator.limits import (
    KeyLimits,
    OverLimit,
    RequestAdmission,
    ServiceLimits,
    name_of,
)
from orchard.injector.orchestrator.ownership import Ownership
from orchard.schemas.sandboxes import SandboxInfo, SandboxStatus

KEY, OTHER = name_of("one"), name_of("two")


class Counted:
    """A backend that knows how often it was asked for a list."""

    def __init__(self) -> None:
        self.there: list[SandboxInfo] = []
        self.lists = 0

    async def list(self, labels: dict[str, str]) -> list[SandboxInfo]:
        self.lists += 1
        await asyncio.sleep(0)
        return [info for info in self.there if labels.items() <= info.labels.items()]

    def made(self, labels: dict[str, str]) -> SandboxInfo:
        info = SandboxInfo(
            sandbox_id=f"s{len(self.there)}",
            namespace="n",
            image="i",
            pod_name="p",
            block_network=True,
            cpu="1",
            memory="1Gi",
            created_at=0.0,
            ready=True,
            status=SandboxStatus.READY,
            labels=labels,
        )
        self.there.append(info)
        return info


def owners(backend: Counted, most: int | None = None) -> Ownership:
    limits = ServiceLimits(default=KeyLimits(sandboxes=most))
    here: Any = backend
    return Ownership(here, RequestAdmission(limits, keys=2), Keys(["one", "two"]))


async def make(owned: Ownership, backend: Counted, key: str, number: int) -> bool:
    """Whether it may be; it takes some turns of the loop."""
    try:
        async with owned.of(key, 1, f"idempotency-{number}", {}) as labels:
            for _ in range(5):
                await asyncio.sleep(0)
            assert labels is not None and labels[OWNER] == key
            backend.made(labels)
    except OverLimit:
        return False
    return True


async def test_with_several_keys_and_no_limit_nothing_is_counted() -> None:
    """While a key is exchanged for another there are two."""
    backend = Counted()
    owned = owners(backend)

    assert all(await asyncio.gather(*(make(owned, backend, KEY, number) for number in range(1_000))))
    assert backend.lists == 0
    assert {info.labels[OWNER] for info in backend.there} == {KEY}


async def test_a_crowd_gets_as_many_as_it_may_and_costs_a_few_counts() -> None:
    backend = Counted()
    owned = owners(backend, most=600)

    made = await asyncio.gather(
        *(make(owned, backend, key, number) for key in (KEY, OTHER) for number in range(1_000))
    )

    assert sum(made) == len(backend.there) == 1_200
    assert {sum(info.labels[OWNER] == key for info in backend.there) for key in (KEY, OTHER)} == {600}
    assert backend.lists < 10, "one at first, one for all that would be too many"


async def test_what_has_ended_makes_room_at_once_and_a_repeat_takes_none() -> None:
    backend = Counted()
    owned = owners(backend, most=1)
    assert await make(owned, backend, KEY, 1)
    assert not await make(owned, backend, KEY, 2)
    assert await make(owned, backend, KEY, 1), "the same again is there already"
    backend.there.clear()
    assert await make(owned, backend, KEY, 3)


@pytest.mark.parametrize("most", [4, 150])
async def test_what_another_replica_makes_is_counted(most: int) -> None:
    backend = Counted()
    replicas = [owners(backend, most), owners(backend, most)]
    made = [await make(replicas[number % 2], backend, KEY, number) for number in range(most + 2)]
    assert made == [True] * most + [False] * 2


async def test_far_from_its_limit_nobody_is_counted_at_each_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, as in a campaign that goes on: each count is a list of all that there are."""
    monkeypatch.setattr(ownership, "COUNTED_SECONDS", 3600.0)
    backend = Counted()
    owned = owners(backend, most=1_000)
    for number in range(500):
        assert await make(owned, backend, KEY, number)
    assert backend.lists == 1


async def test_one_that_fails_takes_no_room_for_long() -> None:
    backend = Counted()
    owned = owners(backend, most=1)
    with pytest.raises(RuntimeError):
        async with owned.of(KEY, 1, None, {}):
            raise RuntimeError
    assert await make(owned, backend, KEY, 1)
