"""A machine that cannot isolate says so in one sentence with the remedy, and never runs a command anyway."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.errors import SandboxFailed, SandboxRequestInvalid
from orchard.injector.local.capabilities import capabilities

if TYPE_CHECKING:
    from tests.injector.conftest import Service


UNPRIVILEGED = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]


def agent(state: Path, *arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "orchard.injector.agent", "--state", str(state), *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


def test_without_privileges(tmp_path: Path) -> None:
    """As root without capabilities, as in a container that is not privileged."""
    line = [*UNPRIVILEGED, sys.executable, "-m", "orchard.injector.agent", "--state", str(tmp_path / "state")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--privileged" in done.stderr and "--sandbox http://" in done.stderr


def test_with_a_state_directory_on_an_overlay(tmp_path: Path) -> None:
    for name in ("lower", "upper", "work", "point"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, tmp_path / "point"], check=True)
    try:
        done = agent(tmp_path / "point" / "state")
    finally:
        subprocess.run(["umount", tmp_path / "point"], check=True)
    assert done.returncode == 1
    assert "ext4, xfs or tmpfs" in done.stderr


@pytest.mark.long
def test_the_orchestrator_ends_with_the_agents_complaint(tmp_path: Path) -> None:
    line = [
        *UNPRIVILEGED,
        sys.executable,
        "-m",
        "orchard.injector.orchestrator",
        "--state",
        str(tmp_path / "state"),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--sandbox http://" in done.stderr


def test_capabilities_tell_what_works_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    able = {capability.name: capability for capability in capabilities()}
    assert able["local sandboxes"].able and able["local sandboxes"].remedy == ""
    assert set(able) == {
        "local sandboxes",
        "sandboxes with a network",
        "limit of memory",
        "limit of process count",
        "limit of processor time",
        "limit of socket buffers",
        "limit of disk",
    }
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    unable = capabilities()[1]
    assert not unable.able and "apt-get install slirp4netns" in unable.remedy


@pytest.mark.long
async def test_without_isolation_only_by_name(tmp_path: Path, start_service: "type[Service]") -> None:
    workspace = Path("/workspace")
    before = workspace.exists()
    running = start_service(tmp_path / "state", "--backend", "unsafe-host")
    try:
        async with running.client() as client:
            sandbox = await client.create_sandbox("host")
            job = await sandbox.exec("echo $$", cwd=str(tmp_path))
            outside = await sandbox.exec(["cat", f"/proc/{os.getpid()}/comm"], cwd="/")
            assert "not isolated" in sandbox.info.status_message
            assert job.succeeded and outside.succeeded
            with pytest.raises(SandboxRequestInvalid, match="no snapshot"):
                await sandbox.snapshot("x:y")
            with pytest.raises(SandboxFailed, match="the only image is `host`"):
                await client.create_sandbox("python:3.11")
            timed = await sandbox.exec("echo a; sleep 1013", cwd="/", timeout_seconds=2)
            assert (timed.exit_code, timed.stdout) == (124, "a\n")
    finally:
        running.stop()
        if not before:
            workspace.rmdir()
