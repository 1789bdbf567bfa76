"""An agent with a shell, root in its sandbox, tries to reach the log, the records, the grader, another world.

It knows more than an agent can: the ports and paths of the worker, of the sandbox service, of the queue and
of another attempt's world. A try succeeds when a canary comes out, or when a log or a state differs from
what the logged calls make of the world.
"""

import shlex
import tomllib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from orchard.injector.client import AsyncSandboxClient
from orchard.schemas.claw import ClawBundle, ClawWorld, ServiceCalled
from orchard.schemas.messages import ToolCall
from orchard.schemas.outcomes import ExitStatus
from orchard.storage.blobs import BlobStore
from orchard.streams.server import EmbeddedServer
from orchard.workers.domains.claw.engine import Services
from orchard.workers.domains.claw.world import ClawAttempt, ClawServices
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.episode.worlds import WorldContext
from tests.claw_world import DESK, desk, desk_task
from tests.sandbox_service import LocalService

pytestmark = pytest.mark.long

OTHER, HIDDEN, HOST = "canary-other-world", "canary-graders-script", "canary-file-of-the-worker"
CANARIES = (OTHER, HIDDEN, HOST)


@dataclass
class Seat:
    """A sandbox with its world."""

    machine: SandboxMachine
    world: ClawAttempt
    settings: ClawWorld
    port: int
    """Of the world's faces, on the worker's loopback."""
    path: str
    url: str
    """As the sandbox reaches them, without the last part."""
    published: list[ServiceCalled] = field(default_factory=list)


@dataclass
class Room:
    """An agent's seat, another's, and what the agent knows."""

    mine: Seat
    other: Seat
    facts: dict[str, str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    made = LocalService(tmp_path_factory.mktemp("tampering") / "state")
    yield made
    made.stop()


async def _seat(stack: AsyncExitStack, client: AsyncSandboxClient, store: Path, world: ClawWorld) -> Seat:
    sandbox = await stack.enter_async_context(await client.create_sandbox("host", memory="512Mi", cpu="1"))
    machine = SandboxMachine(sandbox)
    published: list[ServiceCalled] = []

    async def publish(data: msgspec.Struct) -> None:
        assert isinstance(data, ServiceCalled)
        published.append(data)

    def no_sandbox(_image: str, _purpose: str) -> Any:
        raise AssertionError

    opening = WorldContext(
        task=desk_task(),
        machine=machine,
        seed=1,
        name="a.1",
        publish=publish,
        blobs=BlobStore(str(store)),
        sandbox=no_sandbox,
        command_seconds=60.0,
    )
    opened = await stack.enter_async_context(ClawServices().open(world, opening))
    port, path = await stack.enter_async_context(opened.door())
    tunnel = await stack.enter_async_context(machine.reverse(port))
    url = f"http://127.0.0.1:{tunnel.port}{path.removesuffix('/mcp')}"
    return Seat(machine, opened, world, port, path, url, published)


@pytest.fixture
async def room(nats_server: EmbeddedServer, service: LocalService, tmp_path: Path) -> AsyncIterator[Room]:
    store = tmp_path / "store"
    store.mkdir()
    (store / "secret.txt").write_text(HOST)
    (store / "test.py").write_text(HIDDEN)
    letter = {**DESK["mail"]["messages"][0], "body": OTHER}
    theirs = desk(services={**DESK, "mail": {"messages": [letter]}}, files={"notes.txt": OTHER})
    async with AsyncSandboxClient(service.url) as client, AsyncExitStack() as stack:
        mine, other = [await _seat(stack, client, store, world) for world in (desk(), theirs)]
        facts = {
            "URL": mine.url,
            "OTHER_PORT": str(other.port),
            "OTHER_PATH": other.path,
            "OTHER_TUNNEL": other.url,
            "MY_PORT": str(mine.port),
            "NATS": nats_server.url.rsplit(":", 1)[1].strip("/"),
            "SERVICE": str(service.port),
            "STORE": str(store),
            "STATE": str(service.state),
        }
        yield Room(mine, other, facts)


HTTP = """\
import json, os, sys, urllib.request, urllib.error
def ask(url, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=5) as reply:
            print(reply.status, reply.read().decode()[:4000])
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode()[:4000])
    except Exception as error:
        print(type(error).__name__, error)
def rpc(method, **params):
    ask(U + "/mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
def tool(name, **arguments):
    ask(U + "/tools/" + name, arguments)
E = os.environ
U = E["URL"]
"""

TRIES = tomllib.loads((Path(__file__).parent / "tampering.toml").read_text())


async def _tried(room: Room, line: str) -> str:
    """What the agent sees of a shell line, by its own tool."""
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in room.facts.items())
    arguments = msgspec.json.encode({"command": f"export {exports}; {line}", "timeout": 50}).decode()
    _, shown = await room.mine.world.call(ToolCall(id="c", name="Bash", arguments=arguments))
    return shown


def _replayed(seat: Seat) -> Services:
    """A new world after the calls that are in the log."""
    services = Services(seat.settings, 1)
    for entry in seat.world.services.audit:
        again = services.call(entry.tool, entry.arguments).entry
        assert again == entry
    return services


async def test_none_of_the_tries_succeeds(room: Room) -> None:
    assert len(TRIES["web"]) + len(TRIES["shell"]) >= 30
    mine, other = room.mine, room.other
    before = msgspec.json.encode(other.world.services.state())
    control = "tool('mail_get_message', message_id='msg_401')"
    assert "Please write to Tom" in await _tried(room, f"python3 -c {shlex.quote(HTTP + control)}")
    seen: dict[str, str] = {}
    for name, code in TRIES["web"].items():
        seen[name] = await _tried(room, f"python3 -c {shlex.quote(HTTP + code)}")
    for name, line in TRIES["shell"].items():
        seen[name] = await _tried(room, line)
    reached = [name for name, shown in seen.items() if any(canary in shown for canary in CANARIES)]
    assert reached == []
    assert seen["every port of the loopback"] == "(no output)"
    assert "Traceback" not in "".join(seen.values())

    bundle = msgspec.json.decode(await mine.world.hand_in(ExitStatus.FINISHED, []), type=ClawBundle)
    assert [entry.sequence for entry in bundle.audit] == list(range(1, len(bundle.audit) + 1))
    assert [entry.number for entry in mine.published] == [entry.sequence for entry in bundle.audit]
    assert _replayed(mine).state() == bundle.state
    asked = [entry for entry in bundle.audit if "audit" in entry.tool or "reset" in entry.tool]
    assert all(entry.failed for entry in asked)
    assert bundle.state["transfers"] == bundle.initial["transfers"]
    assert [each["from"] for each in bundle.state["mail"]["messages"]] == [
        "diana@example.com",
        *["me@example.com"] * 2,
    ]

    carried = msgspec.json.encode(bundle.snapshot).decode()
    assert not any(canary in carried for canary in CANARIES)
    assert bundle.snapshot["audit.json"].text == "[]\n"
    assert [bundle.snapshot[each].text for each in ("closed", "locked/in", "no text \ufffd")] == 3 * ["t\n"]

    assert msgspec.json.encode(other.world.services.state()) == before
    assert (other.world.services.audit, other.published) == ([], [])
