"""Names and orders of arguments that callers of the published client rely on; both clients have the same."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import orchard
from orchard import AsyncSandbox, AsyncSandboxClient, JobResult, Sandbox, SandboxClient

CLIENT = {
    "create_sandbox": ["image", "block_network", "sandbox_id", "cpu", "memory", "timeout", "wait_ready"],
    "get_sandbox": ["sandbox_id"],
    "delete_sandbox": ["sandbox_id"],
    "cleanup_all": [],
    "health": [],
    "close": [],
}
INSTANCE = {
    "exec": ["command", "timeout", "cwd", "env", "wait", "poll_interval", "login_shell"],
    "apply_patch": ["patch", "timeout"],
    "upload_file": ["local_path", "remote_path"],
    "upload_content": ["content", "remote_path"],
    "download_file": ["remote_path", "local_path"],
    "download_content": ["remote_path"],
    "list_files": ["remote_path"],
    "get_job": ["job_id"],
    "start_heartbeat": ["interval"],
    "stop_heartbeat": [],
    "check_env": ["verbose"],
    "delete": [],
}


def parameters(function: Any) -> list[inspect.Parameter]:
    return [one for one in inspect.signature(function).parameters.values() if one.name != "self"]


def public(kind: type) -> dict[str, Any]:
    members = inspect.getmembers(kind, callable)
    return {name: value for name, value in members if not name.startswith("_")}


@pytest.mark.parametrize("kind", [SandboxClient, AsyncSandboxClient, Sandbox, AsyncSandbox])
def test_methods_take_their_arguments_in_the_published_order(kind: type) -> None:
    published = CLIENT if kind in (SandboxClient, AsyncSandboxClient) else INSTANCE
    for name, arguments in published.items():
        found = [one.name for one in parameters(getattr(kind, name)) if one.kind is not one.KEYWORD_ONLY]
        assert found[: len(arguments)] == arguments, name
    for name in (
        ("__enter__", "__exit__") if not kind.__name__.startswith("Async") else ("__aenter__", "__aexit__")
    ):
        assert hasattr(kind, name)


@pytest.mark.parametrize("kind", [SandboxClient, AsyncSandboxClient])
def test_a_client_is_made_of_the_published_arguments(kind: type) -> None:
    found = [(one.name, one.default) for one in parameters(kind.__init__) if one.kind is not one.KEYWORD_ONLY]
    assert found == [
        ("base_url", None),
        ("timeout", 1200.0),
        ("auto_cleanup", True),
        ("api_key", None),
        ("prefix", None),
    ]


@pytest.mark.parametrize(
    ("blocking", "awaited", "only_awaited"),
    [
        (SandboxClient, AsyncSandboxClient, set()),
        (Sandbox, AsyncSandbox, {"start"}),
        (orchard.ContainerProcess, orchard.AsyncContainerProcess, {"start"}),
    ],
)
def test_the_blocking_class_has_what_the_other_has(
    blocking: type, awaited: type, only_awaited: set[str]
) -> None:
    assert set(public(blocking)) == set(public(awaited)) - only_awaited
    for name, method in public(blocking).items():
        ours, theirs = parameters(method), parameters(getattr(awaited, name))
        assert [(one.name, one.default, one.kind) for one in ours] == [
            (one.name, one.default, one.kind) for one in theirs
        ], name


def test_a_result_has_the_published_fields() -> None:
    fields = {"job_id", "sandbox_id", "command", "status", "stdout", "stderr", "exit_code", "error"}
    fields |= {"created_at", "started_at", "completed_at", "succeeded", "failed", "is_complete"}
    assert all(hasattr(JobResult, field) for field in fields)
    assert orchard.SandboxInstance is Sandbox and orchard.AsyncSandboxInstance is AsyncSandbox


USER = """
from typing import assert_type
from orchard import AsyncContainerProcess, AsyncSandbox, AsyncSandboxClient
from orchard import ContainerProcess, JobResult, Sandbox, SandboxClient

def blocking(client: SandboxClient) -> None:
    with client as same:
        assert_type(same, SandboxClient)
    with client.create_sandbox("host", cpu="2", labels={"a": "b"}) as box:
        assert_type(box, Sandbox)
    assert_type(client.get_sandbox("x"), Sandbox)
    assert_type(box.exec(["true"], timeout=3, wait=True), JobResult)
    assert_type(box.exec("sh", pty=True, rows=9).read(1.0), bytes)
    assert_type(box.exec("sh", pty=True), ContainerProcess)
    assert_type(box.fork(2, labels={}), list[Sandbox])
    assert_type(box.download_content("/x", limit=3), bytes)
    box.get_job(3)  # type: ignore[arg-type]
    box.wait_job()  # type: ignore[call-arg]
    box.apply_patch("x", cdw="y")  # type: ignore[call-arg]
    client.create_sandbox("host", cores=2)  # type: ignore[call-arg]

async def awaited(client: AsyncSandboxClient) -> None:
    async with await client.create_sandbox("host", cpu="2") as box:
        assert_type(box, AsyncSandbox)
    assert_type(await box.exec(["true"], timeout=3, wait=True), JobResult)
    assert_type(await box.exec("sh", pty=True), AsyncContainerProcess)
    assert_type(await box.fork(2, labels={}), list[AsyncSandbox])
    await box.get_job(3)  # type: ignore[arg-type]
"""


@pytest.mark.slow
def test_a_users_type_checker_knows_both_clients(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    options = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    line = [sys.executable, "-m", "mypy", *options, str(tmp_path / "user.py")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout
