"""What clients of the published service send, and what they read in the answers."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from orchard.injector.client import AsyncSandbox

if TYPE_CHECKING:
    from tests.injector.conftest import Service

GUARDED = """\
case $- in *i*) ;; *) return;; esac
[ -z "$PS1" ] && return
greet() { echo "hello $1"; }
export FROM_BASHRC=yes
"""


@pytest.fixture
async def http(service: "Service") -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(service.url) as session:
        yield session


async def test_a_login_shell_reads_a_guarded_bashrc_and_says_nothing_of_its_own(
    sandbox: AsyncSandbox,
) -> None:
    await sandbox.upload_content(GUARDED, "/root/.bashrc")
    line = 'greet "$FROM_BASHRC!"; sleep 0 & wait; echo to stderr >&2; exit 3'
    job = await sandbox.exec(line, login_shell=True)
    assert (job.stdout, job.stderr, job.exit_code) == ("hello yes!\n", "to stderr\n", 3)
    merged = await sandbox.exec(line, login_shell=True, merge_output=True)
    assert merged.stdout == "hello yes!\nto stderr\n"
    words = await sandbox.exec(["printenv", "FROM_BASHRC"], login_shell=True)
    assert (words.stdout, words.stderr, words.exit_code) == ("yes\n", "", 0)
    assert (await sandbox.exec("echo $FROM_BASHRC")).stdout == "\n"


@pytest.mark.parametrize("login", [False, True])
async def test_a_line_of_any_length_is_run(sandbox: AsyncSandbox, login: bool) -> None:
    long = "x" * 300_000
    line = f"text={long}; echo ${{#text}} $0 $#; ls /proc/self/fd | tr '\\n' ' '; cat; exit 5"
    job = await sandbox.exec(line, stdin="typed", login_shell=login)
    assert (job.stdout, job.stderr) == ("300000 bash 0\n0 1 2 3 typed", "") if not login else job.stdout
    assert (job.exit_code, job.error) == (5, None)


async def test_a_line_of_any_length_is_typed_at_a_terminal(sandbox: AsyncSandbox) -> None:
    process = await sandbox.exec(f"text={'x' * 300_000}; echo ${{#text}}; tty", pty=True)
    assert (await process.read_all(60)).split() == [b"300000", b"/dev/pts/0"]


@pytest.mark.parametrize(
    ("command", "cwd", "says"),
    [
        (["no-such-program"], "/", "no-such-program"),
        (["/etc/passwd"], "/", "/etc/passwd"),
        (["true"], "/nowhere", "/nowhere"),
        ("true", "/nowhere", "/nowhere"),
        ("no-such-program", "/", "did not find"),
    ],
)
async def test_what_cannot_start_ends_with_127_and_says_why(
    sandbox: AsyncSandbox, command: str | list[str], cwd: str, says: str
) -> None:
    job = await sandbox.exec(command, cwd=cwd)
    assert (job.status, job.exit_code) == ("failed", 127)
    assert says in (job.error or "")
    if cwd == "/nowhere" or isinstance(command, list):
        process = await sandbox.exec(command, cwd=cwd, pty=True)
        assert await process.wait(60) == 127
        assert says.encode() in await process.read_all()


async def test_a_command_that_a_signal_killed_has_its_negative_number(sandbox: AsyncSandbox) -> None:
    assert (await sandbox.exec("kill -9 $$")).exit_code == -9
    assert (await sandbox.exec(["sh", "-c", "kill -TERM $$"])).exit_code == -15
    assert (await sandbox.exec("sh -c 'kill -9 $$'; exit $?")).exit_code == 137


async def test_a_close_frame_is_a_sigterm_and_frames_of_no_meaning_are_passed_over(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox
) -> None:
    async with http.ws_connect(f"/sandboxes/{sandbox.sandbox_id}/exec/pty") as line:
        await line.send_json(
            {"type": "init", "cmd": ["sh", "-c", "read line; echo got $line; exec sleep 999"]}
        )
        assert (await line.receive_json())["type"] == "ready"
        for frame in ("nonsense", "[1]", '{"type":"ping"}', '{"type":"resize","rows":"x"}'):
            await line.send_str(frame)
        await line.send_json({"type": "stdin", "data": base64.b64encode(b"it\n").decode()})
        printed = b""
        while b"got it" not in printed:
            printed += base64.b64decode((await line.receive_json())["data"])
        await line.send_json({"type": "close"})
        assert await line.receive_json() == {"type": "exit", "code": -15}


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


async def exec_of(http: aiohttp.ClientSession, sandbox: AsyncSandbox, **body: object) -> tuple[int, Any]:
    reply = await http.post(f"/sandboxes/{sandbox.sandbox_id}/exec", json=body)
    return reply.status, await reply.json()


async def test_numbers_and_truth_may_be_strings_and_nothing_is_left_out(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox
) -> None:
    fields = {"timeout_seconds": "30", "cwd": "", "env": {}, "wait": "true", "login_shell": "false"}
    assert (await exec_of(http, sandbox, command="pwd", **fields))[1]["stdout"] == "/workspace\n"
    assert (await exec_of(http, sandbox, command="pwd", timeout_seconds=0, wait=1))[1]["exit_code"] == 0
    made = await (
        await http.post("/sandboxes", json={"image": "host", "sandbox_id": "", "timeout": 0, "cpu": ""})
    ).json()
    assert (len(made["sandbox_id"]), made["timeout"], made["cpu"]) == (8, 3600, "4")
    await http.delete(f"/sandboxes/{made['sandbox_id']}")


async def test_a_field_that_nobody_knows_is_refused_by_its_name(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox
) -> None:
    status, body = await exec_of(http, sandbox, command="true", timeout_second=3)
    assert (status, body["detail"][0]["loc"]) == (422, ["body", "timeout_second"])
    assert "did you mean `timeout_seconds`?" in body["detail"][0]["msg"]
    for path, known in (
        ("/sandboxes", {"image": "host"}),
        (f"/sandboxes/{sandbox.sandbox_id}/apply_patch", {"patch": ""}),
        (f"/sandboxes/{sandbox.sandbox_id}/files", {"path": "/x", "content": ""}),
        (f"/sandboxes/{sandbox.sandbox_id}/fork", {}),
        (f"/sandboxes/{sandbox.sandbox_id}/snapshot", {"image": "x"}),
    ):
        reply = await http.post(path, json={**known, "colour": "red"})
        assert (reply.status, (await reply.json())["detail"][0]["loc"]) == (422, ["body", "colour"]), path


async def test_a_sandbox_may_have_a_long_id(http: aiohttp.ClientSession) -> None:
    name = "a" * 55
    assert (await http.post("/sandboxes", json={"image": "host", "sandbox_id": name})).status == 200
    waited = await (await http.get(f"/sandboxes/{name}/wait")).json()
    assert waited["ready"], waited
    said = await http.post(f"/sandboxes/{name}/exec", json={"command": "hostname", "wait": True})
    assert (await said.json())["stdout"] == f"sandbox-{name}\n"
    await http.delete(f"/sandboxes/{name}")
    assert (await http.post("/sandboxes", json={"image": "host", "sandbox_id": name + "a"})).status == 422


async def test_an_idempotency_key_is_of_one_request(http: aiohttp.ClientSession) -> None:
    key = {"Idempotency-Key": "one request"}
    made = await (await http.post("/sandboxes", json={"image": "host"}, headers=key)).json()
    again = await (await http.post("/sandboxes", json={"image": "host"}, headers=key)).json()
    for other in ({"image": "other"}, {"image": "host", "cpu": "1"}, {"image": "host", "sandbox_id": "else"}):
        refused = await http.post("/sandboxes", json=other, headers=key)
        assert (refused.status, refused.headers["X-Error-Reason"]) == (409, "key_reused")
    assert made["sandbox_id"] == again["sandbox_id"]
    await http.delete(f"/sandboxes/{made['sandbox_id']}")


async def test_relative_paths_start_at_the_working_directory_of_the_image(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox
) -> None:
    files = f"/sandboxes/{sandbox.sandbox_id}/files"
    written = await (await http.post(files, json={"path": "tmp/a/b", "content": encoded(b"x")})).json()
    assert written == {"success": True, "path": "tmp/a/b", "size": 1}
    assert await sandbox.download_content("/tmp/a/b") == b"x" == await sandbox.download_content("tmp/a/b")


async def test_a_list_without_a_path_is_of_the_workspace_and_follows_links(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox
) -> None:
    await sandbox.exec(
        "mkdir d; echo four > f; ln -s f lf; ln -s d ld; ln -s /nowhere n; ln -s /../../../etc/hostname out;"
        "touch -d '2001-02-03 04:05:06 UTC' f"
    )
    body = await (await http.get(f"/sandboxes/{sandbox.sandbox_id}/files/list")).json()
    found = {entry["name"]: entry for entry in body["files"]}
    assert body["path"] == "/workspace"
    kinds = {name: (entry["type"], entry["symlink"]) for name, entry in found.items() if name != "out"}
    assert kinds == {
        "d": ("directory", False),
        "f": ("file", False),
        "ld": ("directory", True),
        "lf": ("file", True),
        "n": ("symlink", True),
    }
    assert (found["lf"]["size"], found["lf"]["modified"]) == (5, "2001-02-03T04:05:06")
    assert found["f"]["modified_at"] == 981173106.0
    assert (await sandbox.list_files("/workspace"))[1]["modified"] == "2001-02-03T04:05:06"


BYTES = bytes(range(256)) * 3 + b"!"
LINES = base64.encodebytes(BYTES).decode()


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"path": "/tmp/up", "content": LINES}),
        json.dumps({"content": LINES, "path": "/tmp/up"}),
        json.dumps({"path": "/tmp/up", "content": encoded(BYTES)}, indent=2),
        json.dumps({"path": "/tmp/up", "content": encoded(BYTES)})
        .replace("+", "\\u002b")
        .replace("/", "\\/"),
        json.dumps({"path": "/tmp/up", "content": encoded(BYTES)}).replace("content", "c\\u006fntent"),
    ],
    ids=["lines", "path last", "indented", "escaped", "escaped name"],
)
@pytest.mark.parametrize("piece", [1, 7, 100_000])
async def test_base64_comes_in_any_form_and_in_any_pieces(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox, body: str, piece: int
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for begin in range(0, len(body), piece):
            yield body[begin : begin + piece].encode()

    url, headers = f"/sandboxes/{sandbox.sandbox_id}/files", {"Content-Type": "application/json"}
    reply = await http.post(url, data=pieces(), headers=headers)
    if "c\\u006f" in body:
        assert reply.status == 422  # said, not misread
        return
    assert await reply.json() == {"success": True, "path": "/tmp/up", "size": len(BYTES)}
    assert await sandbox.download_content("/tmp/up") == BYTES


GOOD = encoded(BYTES * 200)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"path": "/tmp/bad", "content": GOOD + "?"}, ["body", "content"]),
        ({"path": "/tmp/bad", "content": GOOD + "A"}, ["body", "content"]),
        ({"path": "/tmp/bad", "content": "AA==" + GOOD}, ["body", "content"]),
        ({"path": "/tmp/bad", "content": GOOD + "\\u0041AAA"}, ["body", "content"]),
        ({"path": "/tmp/bad", "content": GOOD, "colour": "red"}, ["body", "colour"]),
        ({"content": GOOD}, ["body"]),
        ({"path": "/tmp/bad"}, ["body"]),
        ({"path": "/tmp/bad", "content": None}, ["body"]),
        ({"path": "/tmp/bad", "content": 3}, ["body", "content"]),
        ({"path": 3, "content": GOOD}, ["body", "path"]),
        ('{"path":"/tmp/bad","content":"' + GOOD, ["body"]),
        ('{"path":"/tmp/bad","content":"' + GOOD + '"', ["body"]),
        ('{"path":"/tmp/bad","content":"' + GOOD + '","content":"AAAA"}', ["body"]),
        ('{"path":"/tmp/bad","content":"' + GOOD + '","path":"/tmp/worse"}', ["body"]),
    ],
    ids=range(14),
)
async def test_an_upload_that_is_refused_leaves_no_file(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox, body: Any, place: list[str]
) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    headers = {"Content-Type": "application/json"}
    reply = await http.post(f"/sandboxes/{sandbox.sandbox_id}/files", data=text, headers=headers)
    assert (reply.status, (await reply.json())["detail"][0]["loc"]) == (422, place)
    # The agent hears that its request was broken off after the client has the answer.
    async with asyncio.timeout(60):
        while (await sandbox.exec("ls -A /tmp | grep -c .")).stdout != "0\n":
            await asyncio.sleep(0.05)


async def test_the_document_is_a_page_too(http: aiohttp.ClientSession) -> None:
    reply = await http.get("/docs")
    text = await reply.text()
    assert (reply.status, reply.content_type) == (200, "text/html")
    assert "/sandboxes/{id}/exec" in text and "ExecRequest" in text and "://" not in text
