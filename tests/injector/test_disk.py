"""A sandbox that takes too much disk is stopped and its files removed; nobody else notices."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.agent.local.disk import (
    RESERVE,
    SMALL,
    DiskLimits,
    DiskUsage,
    DiskWatch,
    Space,
    excess,
    scarce,
)
from orchard.injector.client import AsyncSandbox
from orchard.injector.errors import SandboxFailed

if TYPE_CHECKING:
    from tests.injector.conftest import Service

Eventually = Callable[[Callable[[], bool], str], None]

FILLERS = {
    "one large file": "head -c 100000000 /dev/zero > large; sleep 1041",
    "many files": "i=0; while [ $i -lt 8000 ]; do : > $i; i=$((i+1)); done; sleep 1041",
    "an open file without a name": ("exec 3> gone; rm gone; head -c 100000000 /dev/zero >&3; sleep 1041"),
}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory, start_service: "type[Service]") -> Iterator["Service"]:
    """A service on a disk of its own, with a limit of 50 MiB for each sandbox."""
    disk = tmp_path_factory.mktemp("disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600m", "none", str(disk)], check=True)
    limits = {"ORCHARD_SANDBOX_DISK": "50Mi", "ORCHARD_SANDBOX_FILES": "5000"}
    running = start_service(disk / "state", env=limits)
    yield running
    running.stop()
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.long
@pytest.mark.needs_root("mounts")
@pytest.mark.parametrize("how", FILLERS)
async def test_a_disk_filler_is_stopped_and_its_files_are_gone(
    limited: "Service", eventually: Eventually, how: str
) -> None:
    async with limited.client() as client:
        other = await client.create_sandbox("host")
        filler = await client.create_sandbox("host")
        before = Space.of(limited.state).free
        job = await filler.exec(FILLERS[how], timeout_seconds=60)
        assert job.error == "the sandbox died"
        info = await filler.status()
        assert (info.status, info.reason) == ("failed", "disk_limit")
        limit = "files and directories, and 5000" if how == "many files" else f"{50 * 2**20}"
        assert f"{limit} is the limit" in info.status_message
        left = limited.state / "sandboxes" / filler.sandbox_id
        eventually(lambda: [path.name for path in left.iterdir()] == ["record.json"], "its files are gone")
        assert before - Space.of(limited.state).free < 10_000_000
        with pytest.raises(SandboxFailed):
            await filler.exec("true")
        await filler.delete()
        assert (await other.exec("echo fine > f; cat f")).stdout == "fine\n"


@pytest.mark.long
@pytest.mark.needs_root("mounts")
async def test_below_the_limit_nothing_happens(limited: "Service") -> None:
    async with limited.client() as client:
        sandbox: AsyncSandbox = await client.create_sandbox("host")
        fill = "for i in 1 2 3; do head -c 30000000 /dev/zero > x; rm x; done; head -c 30000000 /dev/zero > x"
        assert (await sandbox.exec(fill)).succeeded
        assert (await sandbox.exec("sleep 1.5; stat -c %s x")).stdout == "30000000\n"


class Writing:
    """A sandbox that writes once more after du(1) has measured it, and then rests."""

    def __init__(self, changes: Path) -> None:
        self.changes = changes
        self.stopped = asyncio.Event()

    @property
    def root(self) -> int:
        (self.changes / "late").write_bytes(b"x" * 40_000_000)
        return -1

    async def stop(self, reason: str, _message: str) -> None:
        assert reason == "disk_limit"
        self.stopped.set()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "none", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.needs_root("mounts")
async def test_what_is_written_while_files_are_counted_is_counted_next(small_disk: Path) -> None:
    (small_disk / "changes").mkdir()
    writing = Writing(small_disk / "changes")
    limits = DiskLimits(20_000_000, 1000)
    watch = DiskWatch(small_disk, limits, lambda: () if writing.stopped.is_set() else (writing,))
    watch.wake()
    await asyncio.sleep(0)  # it has looked for the first time
    (writing.changes / "first").write_bytes(b"x" * 10_000_000)
    async with asyncio.timeout(30):
        await writing.stopped.wait()


LIMITS = DiskLimits(10, 100)


def test_who_has_to_be_stopped() -> None:
    plenty = Space(total=100 * SMALL, free=50 * SMALL, files=50 * SMALL)
    assert excess({"a": DiskUsage(5), "b": DiskUsage(11), "c": DiskUsage(12)}, LIMITS, plenty).keys() == {
        "b",
        "c",
    }
    assert excess({"a": DiskUsage(5), "b": DiskUsage(10)}, LIMITS, plenty) == {}
    assert excess({}, LIMITS, Space(total=SMALL, free=0, files=0)) == {}
    over = excess({"a": DiskUsage(5, 101), "b": DiskUsage(5, 100)}, DiskLimits(2**30, 100), plenty)
    assert over == {"a": ("disk_limit", "it made 101 files and directories, and 100 is the limit")}


def test_of_a_disk_that_is_nearly_full_the_largest_goes() -> None:
    full = Space(total=100 * SMALL, free=RESERVE - 1, files=SMALL)
    assert scarce(full) and scarce(Space(total=100 * SMALL, free=SMALL, files=RESERVE - 1))
    [(place, stopped)] = excess({"a": DiskUsage(5), "b": DiskUsage(7)}, LIMITS, full).items()
    assert (place, stopped.reason) == ("b", "evicted"), "within its limits: who filled the disk is not known"
    [(place, stopped)] = excess({"a": DiskUsage(5), "b": DiskUsage(11)}, LIMITS, full).items()
    assert (place, stopped.reason) == ("b", "disk_limit")


def test_a_small_disk_may_be_filled() -> None:
    """It was made for sandboxes, and they see that it is full."""
    assert not scarce(Space(total=SMALL - 1, free=0, files=0))


def test_bytes_and_files_can_both_run_out() -> None:
    before = Space(total=SMALL, free=1000, files=1000)
    assert Space(total=SMALL, free=900, files=1000).less_than(before) == 100
    assert Space(total=SMALL, free=1100, files=700).less_than(before) == 300


@pytest.mark.parametrize(("inodes", "worth"), [(950, False), (889, True), (None, False)])
def test_a_tenth_of_either_limit_is_worth_counting(inodes: int | None, worth: bool) -> None:
    limits, before = DiskLimits(SMALL, 1100), Space(total=SMALL, free=1000, files=1000, inodes=1000)
    after = Space(total=SMALL, free=1000, files=1000, inodes=inodes)
    assert after.worth_counting(before, limits) is worth


def test_a_limit_that_is_no_size_is_refused_with_a_sentence(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "orchard.injector.agent", "--state", str(tmp_path / "s")]
    done = subprocess.run([*line, "--disk-limit", "much"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--disk-limit" in done.stderr and "`much` is not a quantity" in done.stderr
