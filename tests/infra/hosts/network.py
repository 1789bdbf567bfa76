"""Hosts on one network, each a network namespace, that run the units of infra/hosts as systemd would.

A unit's ExecStart and EnvironmentFile lines are taken as they stand, but for the three places that they
name: /etc/orchard, /var/lib/orchard and /opt/orchard are directories of the test and its environment here.
"""

import asyncio
import os
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchard.processes.signals import die_with_parent
from tests.infra.conftest import INFRA
from tests.infra.hosts import confined

UNITS = INFRA / "hosts"
SWITCH = "10.77.0.254"
"""Address of the namespace that joins the others: what is outside of the hosts is there."""


@dataclass(frozen=True)
class Unit:
    """The lines of a unit file that make its process."""

    command: list[str]
    files: list[Path]
    """Of the environment."""
    stop_seconds: float
    confined: Path
    """Its drop-in file of `infra/hosts`."""
    state: list[Path]
    """Directories that it may write to."""

    @classmethod
    def read(cls, name: str, instance: str, host: "Host") -> "Unit":
        """The unit `name` on a host; `instance` as in `orchard-worker@1`."""
        lines = host.local((UNITS / name).read_text()).splitlines()
        pairs = [line.partition("=")[::2] for line in lines if not line.startswith("#")]
        (start,) = [value for key, value in pairs if key == "ExecStart"]
        named = [value for key, value in pairs if key == "EnvironmentFile"]
        files = [Path(value.removeprefix("-")) for value in named]
        assert all(path.is_file() or f"-{path}" in named for path in files), f"{name} lacks one of {files}"
        stop = next((float(value) for key, value in pairs if key == "TimeoutStopSec"), 90.0)
        words = shlex.split(start.replace("%H", host.name).replace("%i", instance))
        drop_ins = [UNITS / f"{each}.service.d" / "confined.conf" for each in (Path(name).stem, "orchard-")]
        state = [host.root / "var" / Path(value).name for key, value in pairs if key == "StateDirectory"]
        for directory in state:
            directory.mkdir(exist_ok=True)
        there = [path for path in files if path.is_file()]
        return cls(words, there, stop, next(path for path in drop_ins if path.is_file()), state)

    def environment(self) -> dict[str, str]:
        """What the process finds, and nothing of the test's own but where programs are."""
        found = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        for path in self.files:
            lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
            found |= dict(line.split("=", 1) for line in lines)
        return found


@dataclass
class Host:
    """A machine: its address, its files, and the services that run on it."""

    name: str
    address: str
    namespace: str
    root: Path
    """Holds `etc` and `var`, which stand for /etc/orchard and /var/lib/orchard."""
    services: dict[str, "Service"] = field(default_factory=dict)

    def local(self, text: str) -> str:
        """A text of infra/hosts with the places of this host."""
        for old, new in {
            "/etc/orchard": str(self.root / "etc"),
            "/var/lib/orchard": str(self.root / "var"),
            "/opt/orchard": sys.prefix,
        }.items():
            text = text.replace(old, new)
        return text

    def install(self, files: Path) -> None:
        """Copy what the guide copies to /etc/orchard."""
        place = self.root / "etc"
        place.mkdir(parents=True)
        (self.root / "var").mkdir()
        for path in files.iterdir():
            (place / path.name).write_text(self.local(path.read_text()))

    def confined(self, unit: Unit) -> list[str]:
        """The words that run a unit's command on this host, as far as it is confined without systemd."""
        if unit.confined.parent.name != "orchard-.service.d":
            taken = dict(confined.settings(unit.confined))["CapabilityBoundingSet"].removeprefix("~")
            names = taken.lower().replace("cap_", "-").split()
            return self.inside("setpriv", f"--bounding-set={','.join(names)}", *unit.command)
        places = [str(path) for path in (unit.confined, self.root, *unit.state)]
        launcher = (sys.executable, "-m", "tests.infra.hosts.confined", *places, "--")
        return self.inside("env", f"--chdir={INFRA.parent}", *launcher, *unit.command)

    def inside(self, *command: str) -> list[str]:
        """The words that run a command on this host."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *command]

    def start(self, unit: str, instance: str = "") -> None:
        """`systemctl start`."""
        service = Service(self, Unit.read(unit, instance, self), self.root / f"{unit}{instance}.log")
        self.services[unit] = service
        service.keeping = asyncio.create_task(service.keep())

    async def stop(self, unit: str, number: signal.Signals = signal.SIGTERM) -> None:
        """`systemctl stop`, or `kill` by another signal."""
        await self.services.pop(unit).stop(number)

    async def run(self, unit: str) -> str:
        """`systemctl start` of a oneshot unit: what it says; it must succeed."""
        once = Unit.read(unit, "", self)
        process = await asyncio.create_subprocess_exec(
            *self.confined(once),
            env=once.environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return said.decode()

    def plug(self, *, on: bool) -> None:
        """Connect or cut this host."""
        _ip(
            "-n",
            self.namespace.replace(self.name, "switch"),
            "link",
            "set",
            self.name,
            "up" if on else "down",
        )


@dataclass
class Service:
    """A process that is started again when it ends, as `Restart=always` has it."""

    host: Host
    unit: Unit
    log: Path
    process: asyncio.subprocess.Process | None = None
    keeping: "asyncio.Task[None] | None" = None

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            with self.log.open("ab") as log:
                self.process = await asyncio.create_subprocess_exec(
                    *self.host.confined(self.unit),
                    env=self.unit.environment(),
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=die_with_parent,
                )
            await self.process.wait()
            await asyncio.sleep(0.5)

    async def stop(self, number: signal.Signals) -> None:
        """End it, and do not start it again."""
        assert self.keeping is not None
        self.keeping.cancel()
        with suppress(asyncio.CancelledError):
            await self.keeping
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)
            await asyncio.wait_for(self.process.wait(), self.unit.stop_seconds)


@contextmanager
def network(root: Path, *names: str) -> Iterator[dict[str, Host]]:
    """Hosts by name, the first with the address 10.77.0.1, and `switch`, which joins them."""
    mark = f"orchard-{secrets.token_hex(3)}"
    switch = Host("switch", SWITCH, f"{mark}-switch", root / "switch")
    hosts = {
        name: Host(name, f"10.77.0.{number}", f"{mark}-{name}", root / name)
        for number, name in enumerate(names, start=1)
    }
    made: list[str] = []
    try:
        for host in (switch, *hosts.values()):
            _ip("netns", "add", host.namespace)
            made.append(host.namespace)
            _ip("-n", host.namespace, "link", "set", "lo", "up")
        _ip("-n", switch.namespace, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", switch.namespace, "address", "add", f"{SWITCH}/24", "dev", "bridge0")
        _ip("-n", switch.namespace, "link", "set", "bridge0", "up")
        for host in hosts.values():
            ends = ("eth0", "netns", host.namespace, "type", "veth", "peer", "name", host.name)
            _ip("link", "add", *ends, "netns", switch.namespace)
            _ip("-n", switch.namespace, "link", "set", host.name, "master", "bridge0", "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")
        yield {"switch": switch, **hosts}
    finally:
        for namespace in made:
            _ip("netns", "delete", namespace)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
