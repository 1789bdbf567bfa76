"""Terminal sessions whose client sends anything: frames in any order, nonsense, bytes that are no frames.

Each ends, with an error or an exit that says so, and takes its processes with it.
"""

import asyncio
import base64
import contextlib
import json
import os
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.conftest import EXAMPLES, KEY, LIMIT, Target

fuzzed = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES < 100, suppress_health_check=list(HealthCheck)
)

anything = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.text(max_size=3))
)
data = st.binary(max_size=50).map(lambda content: base64.b64encode(content).decode()) | st.text(max_size=8)
frames = st.one_of(
    st.fixed_dictionaries({"type": st.just("stdin"), "data": data | anything}),
    st.fixed_dictionaries(
        {"type": st.just("signal"), "sig": st.sampled_from(["INT", "TERM", "X", ""]) | anything}
    ),
    st.fixed_dictionaries(
        {"type": st.just("resize"), "rows": st.integers() | anything, "cols": st.integers(-1, 300)}
    ),
    st.fixed_dictionaries({"type": st.just("init"), "cmd": st.just(["cat"]) | anything}),
    st.fixed_dictionaries({"type": anything}),
    anything,
)
inits = st.fixed_dictionaries(
    {
        "type": st.just("init"),
        "cmd": st.sampled_from([["cat"], "cat", "yes", ["sh", "-i"], ["true"], "a\0b", ["\0"], [""]])
        | anything,
    },
    optional={
        "env": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2) | anything,
        "cwd": st.sampled_from(["/", "/nowhere", "\0", ""]) | anything,
        "rows": st.integers(-1, 70_000) | anything,
        "cols": st.integers(-1, 70_000) | anything,
        "login_shell": anything,
    },
)


def _text(frame: Any) -> str:
    return json.dumps(frame, ensure_ascii=True)


@pytest.mark.long
@fuzzed
@given(init=inits | frames, following=st.lists(frames, max_size=6))
def test_any_frames(target: Target, init: Any, following: list[Any]) -> None:
    asyncio.run(_session(target, [_text(init), *map(_text, following)]))


@pytest.mark.long
@fuzzed
@given(pieces=st.lists(st.text(max_size=20) | st.binary(max_size=20), min_size=1, max_size=4))
def test_what_is_no_json_frame(target: Target, pieces: list[str | bytes]) -> None:
    asyncio.run(_session(target, pieces))


async def _session(target: Target, messages: list[str | bytes]) -> None:
    """Send them, then ask for the end; what comes back is frames of the contract, and the line is closed."""
    async with (
        asyncio.timeout(LIMIT),
        aiohttp.ClientSession(target.url, headers={"X-API-Key": KEY}) as http,
        http.ws_connect(f"/sandboxes/{target.sandbox_id}/exec/pty") as line,
    ):
        with contextlib.suppress(ConnectionError):  # it may end in the middle
            for message in messages:
                await (line.send_str(message) if isinstance(message, str) else line.send_bytes(message))
            await line.send_str(_text({"type": "close"}))
        kinds = []
        async for answer in line:
            assert answer.type is aiohttp.WSMsgType.TEXT
            kinds.append(json.loads(answer.data)["type"])
    assert set(kinds) <= {"ready", "stdout", "exit", "error"}
    assert not kinds or kinds[-1] in ("exit", "error"), kinds


UPGRADE = (
    "GET /sandboxes/{id}/exec/pty HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {nonce}\r\n\r\n"
)


@fuzzed
@given(pieces=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4), begun=st.booleans())
def test_bytes_that_are_no_websocket_frames(target: Target, pieces: list[bytes], begun: bool) -> None:
    asyncio.run(_bytes(target, pieces, begun))


async def _bytes(target: Target, pieces: list[bytes], begun: bool) -> None:
    async with asyncio.timeout(LIMIT):
        reader, writer = await asyncio.open_connection("127.0.0.1", target.service.port)
        nonce = base64.b64encode(os.urandom(16)).decode()
        writer.write(UPGRADE.format(id=target.sandbox_id, key=KEY, nonce=nonce).encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        if begun:
            writer.write(_masked(_text({"type": "init", "cmd": "cat"}).encode()))
        for piece in pieces:
            writer.write(piece)
        with contextlib.suppress(OSError):
            writer.write_eof()
            while await reader.read(65536):
                pass
        writer.close()
    assert target.http.get("/health").status_code == 200


def _masked(payload: bytes) -> bytes:
    """A text frame of a client, masked with zeros; short."""
    return bytes([0x81, 0x80 | len(payload)]) + bytes(4) + payload


def test_nothing_runs_on_in_the_sandbox(target: Target) -> None:
    """After all of the above."""
    body = {"command": "while pidof yes cat; do sleep 0.05; done", "timeout_seconds": LIMIT, "wait": True}
    reply = target.http.post(f"/sandboxes/{target.sandbox_id}/exec", json=body)
    assert reply.json()["exit_code"] == 0
