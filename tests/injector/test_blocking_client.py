"""The blocking client, and what either client does at the end of its process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard import AsyncSandboxClient, JobResult
from orchard import SandboxClient as PublicClient
from orchard.injector.blocking import Sandbox, SandboxClient
from orchard.injector.errors import SandboxFailed, SandboxFileMissing, SandboxNotFound, SandboxRequestInvalid

if TYPE_CHECKING:
    from tests.injector.conftest import Service

PATCH = "--- a/greeting\n+++ b/greeting\n@@ -1 +1 @@\n-hello\n+goodbye\n"


@pytest.fixture
def blocking(service: "Service") -> Iterator[SandboxClient]:
    with SandboxClient(service.url) as client:
        yield client


@pytest.fixture
def box(blocking: SandboxClient) -> Sandbox:
    return blocking.create_sandbox("host")


def test_the_public_names_are_these_classes() -> None:
    assert PublicClient is SandboxClient
    assert AsyncSandboxClient.__module__ == "orchard.injector.client"


def test_a_command(box: Sandbox) -> None:
    result = box.exec("echo $GREETING; pwd; exit 3", 60, "/tmp", {"GREETING": "hi"})
    assert isinstance(result, JobResult)
    assert (result.stdout, result.exit_code, result.succeeded, result.failed) == (
        "hi\n/tmp\n",
        3,
        False,
        True,
    )
    assert box.get_job(result.job_id) == result


def test_a_command_that_is_not_waited_for(box: Sandbox) -> None:
    box.exec("mkfifo gate")
    queued = box.exec("read line < gate; echo $line", wait=False)
    assert (queued.status, queued.is_complete) == ("queued", False)
    box.exec("echo open > gate")
    assert box.wait_job(queued.job_id).stdout == "open\n"


def test_files_and_a_patch(box: Sandbox, tmp_path: Path) -> None:
    written = box.upload_content("hello\n", "/workspace/greeting")
    patched = box.apply_patch(PATCH, 60)
    (tmp_path / "up").write_bytes(b"\xff\x00")
    box.upload_file(tmp_path / "up", "/workspace/data")
    size = box.download_file("/workspace/data", tmp_path / "down")
    assert (written["size"], patched["success"]) == (6, True)
    assert box.download_content("/workspace/greeting") == b"goodbye\n"
    assert (size, (tmp_path / "down").read_bytes()) == (2, b"\xff\x00")
    assert [entry["name"] for entry in box.list_files("/workspace")] == ["data", "greeting"]
    with pytest.raises(SandboxFileMissing):
        box.download_content("/nowhere")


def test_an_instance_is_a_context_manager(blocking: SandboxClient) -> None:
    with blocking.create_sandbox("host") as box:
        assert blocking.get_sandbox(box.sandbox_id).status().ready
    with pytest.raises(SandboxNotFound):
        blocking.get_sandbox(box.sandbox_id)


def test_a_client_deletes_what_it_made_and_nothing_else(service: "Service", box: Sandbox) -> None:
    with SandboxClient(service.url) as client:
        mine = client.create_sandbox("host")
    ids = {info.sandbox_id for info in client.list_sandboxes()}
    assert box.sandbox_id in ids and mine.sandbox_id not in ids
    client.close()


def test_a_client_told_not_to_clean_up_does_not(service: "Service", blocking: SandboxClient) -> None:
    with SandboxClient(service.url, 1200, False) as client:
        left = client.create_sandbox("host")
    assert blocking.get_sandbox(left.sandbox_id).status().ready
    blocking.delete_sandbox(left.sandbox_id)


def test_errors_are_raised_where_the_call_is(blocking: SandboxClient) -> None:
    with pytest.raises(SandboxFailed) as failed:
        blocking.create_sandbox("no/such:image")
    assert failed.value.reason == "image_missing"


def test_the_environment_names_service_key_and_prefix(
    service: "Service", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_BASE_URL", service.url)
    monkeypatch.setenv("SANDBOX_PREFIX", "mine")
    with SandboxClient() as client, SandboxClient(prefix="other") as other:
        assert client.create_sandbox("host").sandbox_id.startswith("mine-")
        assert client.create_sandbox("host", sandbox_id="x").sandbox_id == "mine-x"
        assert client.create_sandbox("host", sandbox_id="mine-y").sandbox_id == "mine-y"
        assert other.create_sandbox("host").sandbox_id.startswith("other-")
        assert client.health()["status"] == "healthy"
    monkeypatch.delenv("SANDBOX_BASE_URL")
    with pytest.raises(SandboxRequestInvalid, match="SANDBOX_BASE_URL"):
        SandboxClient()


def test_check_env_tells_a_login_shell_from_a_plain_one(
    box: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    box.upload_content("export PATH=/opt/conda/bin:$PATH HISTCONTROL=ignoreboth\n", "/root/.bashrc")
    box.upload_content(
        "echo a greeting; . ~/.bashrc; export CONDA_EXE=/nowhere/conda\n", "/root/.bash_profile"
    )
    found = box.check_env()
    assert (found["has_bashrc"], found["bashrc_loaded"]) == (True, True)
    twice = "/opt/conda/bin:" * 2  # the profile reads ~/.bashrc by itself, too
    assert found["path"] == twice + found["bare_path"]
    assert (found["conda_available"], found["conda_broken"], found["conda_env"]) == (False, True, None)
    assert found["python3"].endswith("/python3") and found["python_version"].startswith("Python 3")
    assert "bashrc_loaded: True" in capsys.readouterr().out


def test_check_env_of_a_bare_shell_is_silent_when_asked(
    box: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    box.exec("rm -f ~/.bashrc ~/.profile ~/.bash_profile")
    found = box.check_env(verbose=False)
    assert (found["has_bashrc"], found["bashrc_loaded"], found["bashrc_content"]) == (False, False, "none")
    assert capsys.readouterr().out == ""


ENDINGS = {
    "returns": "",
    "exits": "sys.exit(3)",
    "fails": "raise ValueError",
    "interrupted": "os.kill(os.getpid(), signal.SIGINT)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "hung up": "os.kill(os.getpid(), signal.SIGHUP)",
}
BLOCKING = """
import os, signal, sys, time
from orchard import SandboxClient
client = SandboxClient()
print(client.create_sandbox("host").sandbox_id, flush=True)
{ending}
"""
ASYNCHRONOUS = """
import asyncio, os, signal, sys
from orchard import AsyncSandboxClient
async def main():
    client = AsyncSandboxClient()
    print((await client.create_sandbox("host")).sandbox_id, flush=True)
    {ending}
asyncio.run(main())
"""


def _run(service: "Service", program: str, ending: str) -> tuple[str, int]:
    """The id it printed and its exit status."""
    done = subprocess.run(
        [sys.executable, "-c", program.format(ending=ending or "pass")],
        env={**os.environ, "SANDBOX_BASE_URL": service.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return done.stdout.strip(), done.returncode


@pytest.mark.long
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_leaves_no_sandbox_however_it_ends(
    service: "Service", blocking: SandboxClient, ending: str
) -> None:
    left, status = _run(service, BLOCKING, ENDINGS[ending])
    expected = {"terminated": -signal.SIGTERM, "hung up": -signal.SIGHUP, "interrupted": -signal.SIGINT}
    assert status == expected.get(ending, status)
    with pytest.raises(SandboxNotFound):
        blocking.get_sandbox(left)


@pytest.mark.parametrize("ending", ["returns", "terminated"])
def test_so_does_a_process_with_an_event_loop(
    service: "Service", blocking: SandboxClient, ending: str
) -> None:
    left, _ = _run(service, ASYNCHRONOUS, ENDINGS[ending])
    with pytest.raises(SandboxNotFound):
        blocking.get_sandbox(left)


def test_a_service_that_is_gone_does_not_hold_the_end_of_a_process(
    start_service: "type[Service]", tmp_path: Path
) -> None:
    own = start_service(tmp_path / "state")
    try:
        program = BLOCKING.replace("{ending}", "client.create_sandbox('host'); os.kill({pid}, 9); {ending}")
        left, status = _run(own, program.replace("{pid}", str(own.process.pid)), ENDINGS["terminated"])
        assert (bool(left), status) == (True, -signal.SIGTERM)
    finally:
        own.stop()
