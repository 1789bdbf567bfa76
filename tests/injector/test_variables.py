"""Variables of a sandbox's environment: of each of its commands, and nobody else's to see."""

from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from orchard.injector.agent.pod.variables import VARIABLES, packed, unpacked
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxConflict, SandboxRequestInvalid
from orchard.schemas import sandboxes

if TYPE_CHECKING:
    from tests.injector.conftest import Service

ODD = {"LD_PRELOAD": "", "SECRET": "never-to-be-logged", "odd": "$(PATH) $$ 'a' \"b\"\n\té", "EMPTY": ""}


async def test_every_command_has_them_below_its_own(client: AsyncSandboxClient) -> None:
    env = {**ODD, "WHO": "sandbox"}
    async with await client.create_sandbox("host", env=env) as sandbox:
        ran = await sandbox.exec('printf %s "$odd"; echo "[$EMPTY$WHO]"', env={"WHO": "command"})
        assert ran.stdout == ODD["odd"] + "[command]\n"
        assert (await sandbox.exec("printf %s $WHO", login_shell=True)).stdout == "sandbox"
        process = await sandbox.exec(["sh", "-c", "printf %s $WHO"], pty=True)
        assert await process.read_all(60) == b"sandbox"
        (fork,) = await sandbox.fork()
        assert (await fork.exec("printf %s $SECRET")).stdout == ODD["SECRET"]
        await fork.delete()


async def test_nothing_shows_them(
    capfd: pytest.CaptureFixture[str], start_service: "type[Service]", tmp_path: Path
) -> None:
    own = start_service(tmp_path / "state")
    async with own.client() as client:
        sandbox = await client.create_sandbox("host", env=ODD)
        await sandbox.snapshot("variables/copy:1")
        assert ODD["SECRET"] not in repr(await sandbox.status())
        copy = await client.create_sandbox("variables/copy:1")
        assert (await copy.exec('printf %s "$SECRET"')).stdout == ""
        with pytest.raises(SandboxRequestInvalid) as refused:
            await client.create_sandbox("host", env={"no-name": ODD["SECRET"]})
        assert "env" in str(refused.value) and ODD["SECRET"] not in str(refused.value)
    own.stop()
    printed = "".join(capfd.readouterr()) + (own.state / "agent.log").read_text()
    assert '"request"' in printed and ODD["SECRET"] not in printed


@pytest.mark.parametrize(
    "env",
    [
        {"1A": "b"},
        {"A=": "b"},
        {"": "b"},
        {"A\n": "b"},
        {"A": "zero\0byte"},
        {f"A{number}": "" for number in range(sandboxes.VARIABLES + 1)},
        {"A": "é" * (sandboxes.ENVIRONMENT_SIZE // 2)},
    ],
)
async def test_what_cannot_be_one_is_refused(client: AsyncSandboxClient, env: dict[str, str]) -> None:
    with pytest.raises(SandboxRequestInvalid, match="env"):
        await client.create_sandbox("host", env=env)


@pytest.mark.parametrize("name", ["", "A=B", "A\0", "=A"])
async def test_of_a_command_only_what_can_be_one_is_taken(client: AsyncSandboxClient, name: str) -> None:
    sandbox = await client.create_sandbox("host")
    with pytest.raises(SandboxRequestInvalid, match="env") as refused:
        await sandbox.exec("env", env={name: "value"})
    assert refused.value.status == 422
    assert "no-name.1=2" in (await sandbox.exec("env", env={"no-name.1": "2"})).stdout


async def test_a_repeated_request_has_the_same(client: AsyncSandboxClient, service: "Service") -> None:
    first = await client.create_sandbox("host", env={"A": "1"}, idempotency_key="variables")
    again = await client.create_sandbox("host", env={"A": "1"}, idempotency_key="variables")
    assert again.sandbox_id == first.sandbox_id
    with pytest.raises(SandboxConflict, match="another sandbox"):
        await client.create_sandbox("host", env={"A": "2"}, idempotency_key="variables")
    async with aiohttp.ClientSession(service.url) as http:
        body = {"image": "host", "sandbox_id": "no-variables", "env": None}
        assert (await http.post("/sandboxes", json=body)).status == 200
        assert (await http.delete("/sandboxes/no-variables")).status == 200


def test_they_reach_a_container_whatever_they_are() -> None:
    """Kubernetes expands `$(NAME)` in values, and the loader of the agent heeds LD_PRELOAD."""
    given = {"PATH": "/bin", VARIABLES: packed(ODD)}
    assert "$" not in given[VARIABLES]
    assert unpacked(given) == {"PATH": "/bin", **ODD}
    assert unpacked({"PATH": "/bin"}) == {"PATH": "/bin"}
