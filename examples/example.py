"""A running example: its folder in a store, its pipeline's configuration, its policy servers."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from orchard.actions.session import Session
from orchard.configuration.config import Config, load
from orchard.configuration.config_toml import toml_value
from orchard.processes.ports import free_port
from orchard.processes.signals import die_with_parent
from orchard.streams.tasks import end
from orchard.terminal.console import console
from orchard.workers.oracle.behaviours import DEFAULT_MIX

SERVER_SECONDS = 300.0
MEMORY_SECONDS = 2.0
"""Seconds between two looks at the memory of all processes."""


class CommandFailed(RuntimeError):
    """A command of an example failed."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(f"`{command}` ended with exit code {code}: run it again to go on")
        self.code = code


class Example:
    """Context that the steps of an example share."""

    session: Session
    """Session of the running pipeline."""

    def __init__(
        self,
        store: str,
        described: Mapping[str, Any],
        steps: list[dict[str, Any]],
        report: list[list[str]],
    ) -> None:
        """Takes an example's file as `described`, with its placeholders filled in except those of steps
        and report."""
        self.steps, self.report = steps, report
        self.directory = Path(store).absolute() / described["directory"]
        self.directory.mkdir(parents=True, exist_ok=True)
        self.campaign: Mapping[str, Any] = described.get("campaign", {})
        """Fields common to all its campaigns."""
        self.seconds: dict[str, float] = {}
        """Seconds of each titled step."""
        self.peak_bytes = 0
        """Most memory that this process and its descendants had together, as far as it was seen."""
        self.ports = {name: free_port() for name in described.get("endpoints", ["policy"])}
        self.config = self._configuration(store, described["settings"])

    def _configuration(self, store: str, settings: Mapping[str, Any]) -> Config:
        """Configuration of all processes; each policy server is an ordinary endpoint."""
        policy = {"extra_body": {"return_token_ids": True, "logprobs": True}}
        tables = {
            "up": {"workers": settings["workers"]},
            "worker": {
                "slots": settings["slots"],
                **({"domain": self.campaign["domain"]} if "domain" in self.campaign else {}),
            },
            "oracle.mix": settings.get("mix") or {str(name): share for name, share in DEFAULT_MIX.items()},
            **{
                f"endpoints.{name}": {"base_url": f"http://127.0.0.1:{port}/v1", **policy}
                for name, port in self.ports.items()
            },
        }
        file = self.directory / "orchard.toml"
        file.write_text("\n".join(f"[{name}]\n{toml(table)}" for name, table in tables.items()))
        os.environ["ORCHARD_CONFIG"] = str(file)  # the children of `up` read it too
        return load({"store": store})

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Prints the title of the next steps, and starts their clock."""
        console.rule(title)
        began = time.monotonic()
        yield
        self.seconds[title] = time.monotonic() - began

    @asynccontextmanager
    async def watching_memory(self) -> AsyncIterator[None]:
        """Keeps `peak_bytes` during the block."""
        task = asyncio.create_task(self._watch_memory())
        try:
            yield
        finally:
            await end(task)

    async def _watch_memory(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, await asyncio.to_thread(memory_bytes))
            await asyncio.sleep(MEMORY_SECONDS)

    async def committed(self) -> None:
        """Waits until the tables have every event."""
        async with self.session.connection("example") as connection:
            await self.session.committed(connection)

    async def command(self, *words: str) -> None:
        """Runs an `orchard` command in its own process, which also ends on cancellation. Raises
        CommandFailed."""
        where = ["--store", self.config.store, "--state", str(self.config.directory)]
        command = [sys.executable, "-P", "-m", "orchard", *where, *words]
        process = await asyncio.create_subprocess_exec(*command, preexec_fn=die_with_parent)
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        if code:
            raise CommandFailed(" ".join(command), code)

    async def command_with(self, name: str, file: Path, settings: Mapping[str, Any], *options: str) -> None:
        """Runs the command with a TOML file of settings, which is written to `file`."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(toml(settings))
        await self.command(name, str(file), *options)

    @asynccontextmanager
    async def serving(
        self, model: str | Path, name: str = "policy", endpoint: str = "policy", **served: object
    ) -> AsyncIterator[None]:
        """Serves a model by this name at one of the endpoints during the block; `served`: options of
        `python -m orchard.pipelines.policy`, such as `blind`."""
        port_file, log_file = (self.directory / f"{endpoint}.{kind}" for kind in ("port", "log"))
        port_file.unlink(missing_ok=True)
        options = ["--port", str(self.ports[endpoint]), "--port-file", str(port_file), "--name", name]
        for option, value in served.items():
            flag = f"--{option.replace('_', '-')}"
            options += [flag, str(value)] if not isinstance(value, bool) else [flag] * value
        command = [sys.executable, "-P", "-m", "orchard.pipelines.policy", str(model), *options]
        with log_file.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stderr=log, stdout=log, preexec_fn=die_with_parent
            )
        try:
            try:
                async with asyncio.timeout(SERVER_SECONDS):
                    while not port_file.exists():
                        if process.returncode is not None:
                            raise RuntimeError(f"the policy server ended: see {log_file}")
                        await asyncio.sleep(0.05)
            except TimeoutError:
                raise RuntimeError(f"the policy server was not ready in time: see {log_file}") from None
            yield
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


def toml(tree: Mapping[str, Any]) -> str:
    """Formats a TOML table; tables in it are inline."""
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in tree.items())


def memory_bytes() -> int:
    """Memory of this process and its descendants; of what several share, each counts its part."""
    this = psutil.Process()
    total = 0
    for process in [this, *this.children(recursive=True)]:
        with suppress(psutil.Error):  # it has ended, or is a sandbox of another user
            total += process.memory_full_info().pss
    return total
