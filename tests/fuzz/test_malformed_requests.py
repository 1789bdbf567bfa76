"""Requests that no HTTP library would send, written to the socket as they are.

Whatever comes: an answer below 500, or the end of the connection, in time; and the service goes on.
"""

import base64
import json
import socket
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchard.injector.operations import OPERATIONS
from tests.fuzz.conftest import EXAMPLES, KEY, LIMIT, Target

fuzzed = settings(
    max_examples=2 * EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES < 100,
    suppress_health_check=list(HealthCheck),
)
routes = st.sampled_from(OPERATIONS)
SEPARATORS = "\r\n"


def _path(target: Target, path: str) -> str:
    return path.replace("{id}", target.sandbox_id).replace("{job}", target.job_id)


def _request(method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"X-API-Key: {KEY}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogatepass") + body


def _answer(target: Target, *pieces: bytes, half_closed: bool = True) -> tuple[int, bytes]:
    """Status and all that came; 0 when the connection was closed without an answer."""
    with socket.create_connection(("127.0.0.1", target.service.port), LIMIT) as line:
        received = b""
        try:
            for piece in pieces:
                line.sendall(piece)
            if half_closed:
                line.shutdown(socket.SHUT_WR)
            while data := line.recv(65536):
                received += data
        except (ConnectionResetError, BrokenPipeError):
            pass
    words = received.split(b" ", 2)
    return (int(words[1]) if received.startswith(b"HTTP/1.1 ") else 0), received


def _fine(target: Target, status: int, received: bytes) -> None:
    assert status < 500, received
    assert b"Traceback" not in received and b"/injector/" not in received
    assert target.http.get("/health").status_code == 200


odd = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["%00", "%2e%2e%2f", "..%2f..", "%ff%fe", "%", "%zz", "a" * 5000, "\ud800", "//", "?", "#", ";"]
    ),
)


@pytest.mark.long
@fuzzed
@given(route=routes, part=odd, where=st.sampled_from(["id", "query", "value"]))
@example(route=OPERATIONS[0], part="x" * 100_000, where="query")
@example(route=next(one for one in OPERATIONS if one.path == "/jobs/{job}/wait"), part="%ff", where="value")
def test_odd_paths(target: Target, route: Any, part: str, where: str) -> None:
    quoted = "".join(letter for letter in part if letter not in "\r\n ")
    path = route.path.replace("{id}", quoted if where == "id" else target.sandbox_id)
    path = path.replace("{job}", quoted if where == "id" else target.job_id)
    path += {"query": f"?{quoted}", "value": f"?path={quoted}&timeout={quoted}&label={quoted}"}.get(where, "")
    request = _request(route.method, path, [("Content-Length", "0")], b"")
    status, received = _answer(target, request)
    _fine(target, status, received)
    target.restore()


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)
bodies = st.one_of(
    st.binary(max_size=200),
    json_like.map(lambda document: json.dumps(document).encode()),
    st.sampled_from(
        [
            b"",
            b"{",
            b"[" * 100_000,
            b'{"a":' * 50_000,
            b'{"image":"host","image":"host","cpu":"1e400"}',
            b'{"command":"\\ud800","wait":true}',
            b'{"command":["true","a\\u0000b"],"wait":true}',
            b'{"command":"true","env":{"a=b":"c","":"x"},"wait":true}',
            b'{"command":"true","env":{"A":"\\u0000"},"wait":true}',
            b'{"command":"true","cwd":"/\\u0000","wait":true}',
            b'{"command":"true","timeout_seconds":1e-320,"wait":true}',
            b'{"command":"true","output_limit":1e30,"wait":true}',
            b'{"command":"true","output_limit":100000000000000000000,"wait":true}',
            b'{"command":"true","stdin":"\\udfff","wait":true}',
            b'{"path":"/a\\u0000b","content":""}',
            b'{"path":"","content":""}',
            b'{"path":"/x","content":"===="}',
            b'{"path":"/x","content":"\\ud800"}',
            b'{"patch":"\\ud800\\u0000"}',
            b'{"image":"\\ud800"}',
            b'{"count":1e1000}',
            b"\xef\xbb\xbf{}",
            b"\xff\xfe{\x00}\x00",
            b"9" * 100_000,
        ]
    ),
)
content_types = st.sampled_from(
    [
        *("application/json", "application/json; charset=utf-16", "text/plain", "application/octet-stream"),
        *(
            "multipart/form-data",
            "multipart/form-data; boundary=x",
            "application/x-www-form-urlencoded",
            "",
            "/",
            ";",
        ),
    ]
)
WITH_BODY = [route for route in OPERATIONS if route.method in ("POST", "PUT")]


@pytest.mark.long
@fuzzed
@given(route=st.sampled_from(WITH_BODY), body=bodies, kind=content_types, chunked=st.booleans())
def test_bodies_that_are_not_what_they_should_be(
    target: Target, route: Any, body: bytes, kind: str, chunked: bool
) -> None:
    headers = [("Content-Type", kind)]
    if chunked:
        headers.append(("Transfer-Encoding", "chunked"))
        body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    else:
        headers.append(("Content-Length", str(len(body))))
    status, received = _answer(
        target, _request(route.method, _path(target, route.path), headers, body), half_closed=False
    )
    assert status, "the request was well-formed HTTP"
    _fine(target, status, received)
    target.delete(keep=target.sandbox_id)
    target.restore()


names = st.sampled_from(
    [
        *(
            "Content-Length",
            "Transfer-Encoding",
            "Content-Encoding",
            "Expect",
            "Upgrade",
            "Connection",
            "Range",
        ),
        *(
            "X-API-Key",
            "Idempotency-Key",
            "Accept",
            "Cookie",
            "Host",
            "Sec-WebSocket-Key",
            "X-Request-ID",
            "X-Odd",
        ),
    ]
)
values = st.one_of(
    st.text(st.characters(exclude_characters=SEPARATORS), max_size=30),
    st.sampled_from(
        [
            *(
                "-1",
                "1e3",
                "99999999999999999999",
                "chunked",
                "gzip, chunked",
                "gzip",
                "100-continue",
                "websocket",
            ),
            *("x" * 9000, "x" * 200_000, "\x00", "application/octet-stream", "a, b, c", "upgrade"),
        ]
    ),
)


@fuzzed
@given(route=routes, headers=st.lists(st.tuples(names, values), max_size=5), body=st.binary(max_size=50))
def test_odd_headers(target: Target, route: Any, headers: list[tuple[str, str]], body: bytes) -> None:
    request = _request(route.method, _path(target, route.path), headers, body)
    status, received = _answer(target, request)
    _fine(target, status, received)
    target.restore()


@fuzzed
@given(
    data=st.binary(max_size=300),
    prefix=st.sampled_from(
        [b"", b"GET ", b"GET / HTTP/1.1\r\n", b"POST /sandboxes HTTP/1.1\r\nContent-Length: 5\r\n\r\n"]
    ),
)
def test_what_is_no_http(target: Target, data: bytes, prefix: bytes) -> None:
    status, received = _answer(target, prefix + data)
    _fine(target, status, received)


@fuzzed
@given(
    route=st.sampled_from([route for route in WITH_BODY if route.request or route.request_media]),
    sent=st.integers(0, 40),
    length=st.sampled_from([41, 1000, 10**9]),
)
def test_bodies_that_are_cut_short(target: Target, route: Any, sent: int, length: int) -> None:
    """The sender is gone: nothing may be held for the rest of what it announced."""
    body = (b'{"image": "host", "command": "true", "path": "/x", "content": "' + b"A" * 40)[:sent]
    for query in ("", "?path=/workspace/cut"):
        path = _path(target, route.path) + query
        request = _request(route.method, path, [("Content-Length", str(length))], body)
        status, received = _answer(target, request)
        _fine(target, status, received)


def test_a_body_that_comes_slowly_holds_nobody_up(target: Target) -> None:
    body = base64.b64encode(b"slow" * 10)
    document = b'{"path": "/workspace/slow", "content": "' + body + b'"}'
    request = _request(
        "POST",
        f"/sandboxes/{target.make()}/files",
        [("Content-Length", str(len(document))), ("Content-Type", "application/json")],
        b"",
    )
    with socket.create_connection(("127.0.0.1", target.service.port), LIMIT) as line:
        line.sendall(request)
        for byte in document:
            line.sendall(bytes([byte]))
            assert target.http.get("/health").status_code == 200
        assert line.recv(100).startswith(b"HTTP/1.1 200")


def test_many_that_begin_and_say_no_more_hold_nobody_up(target: Target) -> None:
    begun = _request("POST", "/sandboxes", [("Content-Length", "100")], b"{")
    lines = [socket.create_connection(("127.0.0.1", target.service.port), LIMIT) for _ in range(200)]
    try:
        for number, line in enumerate(lines):
            line.sendall(begun[: 1 + number % len(begun)])
        assert target.http.get("/sandboxes").status_code == 200
    finally:
        for line in lines:
            line.close()


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_asks_for_the_key_before_it_reads(target: Target, route: Any) -> None:
    """A body of a gigabyte is announced, and none sent: the answer does not wait for it."""
    path = _path(target, route.path)
    for key, status in (("", 401), ("X-API-Key: wrong\r\n", 403)):
        head = f"{route.method} {path} HTTP/1.1\r\nHost: localhost\r\n{key}Content-Length: 1000000000\r\n\r\n"
        with socket.create_connection(("127.0.0.1", target.service.port), LIMIT) as line:
            line.sendall(head.encode())
            answer = line.recv(65536)
        assert int(answer.split(b" ")[1]) == (200 if route.open else status)
