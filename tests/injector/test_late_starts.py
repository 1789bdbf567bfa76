"""What happens between two steps of a start: a helper that dies, a second service."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from orchard.injector.agent.errors import AgentError
from orchard.injector.agent.local import network
from orchard.injector.orchestrator import __main__ as service


class Spawner:
    """Starts a helper that says that it is ready."""

    async def launch(self, _name, _argv, _environment, descriptors, report, gone, started) -> None:
        self.report, self.gone = report, gone
        started(1, 1)
        os.write(descriptors[-1], b"1")

    def kill(self, _name: str, _signal: int) -> None:
        self.gone.set()


async def test_a_network_whose_helper_died_after_it_was_ready_is_not_open(monkeypatch) -> None:
    spawner, loop = Spawner(), asyncio.get_running_loop()
    monkeypatch.setattr(network, "lacking", lambda _program: "")
    monkeypatch.setattr(network, "add_routes", lambda *_: loop.call_soon_threadsafe(spawner.report, 9, None))
    outbound = network.Outbound(spawner, "network of s1", "slirp4netns")
    with pytest.raises(AgentError, match=r"ended \(status -9\)"):
        await outbound.open(1, (), lambda: None)
    await outbound.close()


def test_services_that_start_together_have_one_key(tmp_path: Path, monkeypatch) -> None:
    """The first is held where it has made its file and not yet written it."""
    made, go_on, keys = threading.Event(), threading.Event(), []
    token = service.secrets.token_urlsafe

    def slow(length: int) -> str:
        if not made.is_set():
            made.set()
            assert go_on.wait(30)
        return token(length)

    monkeypatch.setattr(service.secrets, "token_urlsafe", slow)
    first = threading.Thread(target=lambda: keys.append(service._own_key(tmp_path)))
    first.start()
    assert made.wait(30)
    try:
        keys.append(service._own_key(tmp_path))
    finally:
        go_on.set()
        first.join()
    assert len(keys) == 2 and keys[0] == keys[1]
    assert [path.name for path in tmp_path.iterdir()] == [service.KEY_FILE]
    assert (tmp_path / service.KEY_FILE).stat().st_mode & 0o777 == 0o600
