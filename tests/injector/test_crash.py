"""After SIGKILL of agent and orchestrator nothing of theirs is left, whatever their sandboxes were doing."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from orchard.injector.agent.local.cgroups import Cgroups, cgroup_name

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from tests.injector.conftest import Service

Eventually = Callable[[Callable[[], bool], str], None]
NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "cgroup")


class Inventory(NamedTuple):
    """What an agent has on its machine."""

    processes: dict[int, str]
    """By process id: its name."""
    namespaces: set[str]
    """Those that only the agent and what it started are in."""
    mounts: set[str]
    """Lines of any process's mount table that name the state directory."""
    groups: set[Path]
    """Control groups."""
    layers: set[str]
    files: set[str]
    """In the sandboxes' directories, beside their records."""


def below(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield pid
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from below(int(child))


def inventory(state: Path, processes: dict[int, str], others: set[str]) -> Inventory:
    """Look; `processes` are those to look for, `others` the namespaces of everybody else."""
    living: dict[int, str] = {}
    namespaces: set[str] = set()
    mounts: set[str] = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(path.name)
            if processes.get(pid) == (path / "comm").read_text().strip():
                living[pid] = processes[pid]
                namespaces |= namespaces_of(pid) - others
            mounts |= {line for line in (path / "mounts").read_text().splitlines() if f"{state}/" in line}
    name = cgroup_name(state)
    groups = set()
    for parent in set(Cgroups(state).layout.parents.values()):
        groups |= set((parent / name).glob("*/"))
    return Inventory(
        living,
        namespaces,
        mounts,
        groups,
        {path.name for path in (state / "layers").glob("fork-*")}
        | {str(p) for p in (state / "tmp").iterdir()},
        {path.name for path in (state / "sandboxes").glob("*/*") if path.name != "record.json"},
    )


def namespaces_of(pid: int) -> set[str]:
    return {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in NAMESPACES}


async def test_everything_goes_with_a_killed_agent_and_orchestrator(
    own_service: "Service", eventually: Eventually
) -> None:
    state, ours = own_service.state.resolve(), namespaces_of(os.getpid())
    async with own_service.client(auto_cleanup=False, retry_seconds=0.0) as client:
        plain = await client.create_sandbox("host")
        connected = await client.create_sandbox("host", block_network=False)
        (fork,) = await plain.fork(1)
        for sandbox in (plain, connected, fork):
            await sandbox.exec(
                "setsid sh -c 'sleep 1071 & sleep 1071' & sleep 1071 & head -c 9999 /dev/zero > f"
            )
            await sandbox.exec("sleep 1071", wait=False)
        processes = {}
        for pid in below(own_service.agent_pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # of a command that is over
                processes[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
        before = inventory(state, processes, ours)

        assert {"sleep", "slirp4netns"} <= set(before.processes.values())
        assert len(before.namespaces) >= 3 * 4 and before.mounts and len(before.layers) == 1
        assert len(before.groups) >= 3 and {"upper", "work"} <= before.files

        own_service.kill()
        own_service.kill_agent()
        eventually(lambda: not inventory(state, processes, ours).processes, "all processes are gone")
        dead = inventory(state, processes, ours)
        assert (dead.namespaces, dead.mounts) == (set(), set())

        own_service.start()
        after = inventory(state, processes, ours)
        assert after == Inventory({}, set(), after.mounts, set(), set(), set())
        assert {sandbox.reason for sandbox in await client.list_sandboxes()} == {"agent_died"}
    async with own_service.client() as again:
        for sandbox_id in (plain.sandbox_id, connected.sandbox_id, fork.sandbox_id):
            await again.delete_sandbox(sandbox_id)
        assert (await (await again.create_sandbox("host", block_network=False)).exec("true")).succeeded
        assert list((state / "sandboxes").iterdir()) != []
    own_service.stop()
    assert list((state / "sandboxes").iterdir()) == []
    gone = inventory(state, processes, ours)
    assert gone == Inventory({}, set(), set(), set(), set(), set())


async def test_a_paused_sandbox_ends_with_its_killed_agent(
    own_service: "Service", eventually: Eventually
) -> None:
    """Where control groups are version 1, what is frozen is not even killed."""
    async with own_service.client(auto_cleanup=False, retry_seconds=0.0) as client:
        sandbox = await client.create_sandbox("host")
        await sandbox.exec("sleep 1072", wait=False)
        await sandbox.pause()
        groups = own_service.cgroups()
        held = {pid for group in groups for pid in (group / "cgroup.procs").read_text().split()}
        assert held
        own_service.kill()
        own_service.kill_agent()
        own_service.start()
        eventually(lambda: not any(Path("/proc", pid).exists() for pid in held), "all processes are gone")
        assert not any(group.exists() for group in groups)
        assert (await sandbox.status()).reason == "agent_died"
        await sandbox.delete()
