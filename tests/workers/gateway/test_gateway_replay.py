"""Recorded exchanges of every wire, replayed through the gateway byte for byte.

tests/workers/gateway/wires/*.json name the client that wrote the requests. Each has what the model is asked
and answers, and for each request all that the program is to read. Only the id and the time that the gateway
gives are set by the test.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchard.workers.gateway import server
from tests.workers.gateway.test_gateway_server import program  # noqa: F401 (a fixture)

WIRES = sorted((Path(__file__).parent / "wires").glob("*.json"))


@pytest.mark.parametrize("file", WIRES, ids=lambda file: file.stem)
async def test_a_recorded_exchange_is_the_same_to_the_byte(program, endpoint, monkeypatch, file):  # noqa: F811
    recorded = json.loads(file.read_text())
    monkeypatch.setattr(server, "secrets", SimpleNamespace(token_hex=lambda size: "0" * 2 * size))
    monkeypatch.setattr(server, "time", SimpleNamespace(time=lambda: 1.7e9))
    for answer in recorded["model"]:
        endpoint.answer(answer)
    async with program() as mine:
        for exchange in recorded["exchanges"]:
            reply = await mine.http.request(
                exchange["method"],
                mine.door.url + exchange["path"],
                content=exchange["request"].encode(),
                headers=exchange["headers"],
            )
            kind = reply.headers["content-type"].partition(";")[0]
            assert (reply.status_code, kind) == (exchange["status"], exchange["type"])
            assert reply.content == exchange["response"].encode()
        mine.recording.check()
    assert endpoint.requests == recorded["upstream"]


def test_every_wire_is_recorded_in_each_form():
    wires = ("chat", "completions", "responses", "anthropic")
    both = {f"{wire}-{form}" for wire in wires for form in ("json", "sse")}
    assert {file.stem for file in WIRES} == both | {"count-tokens", "models", "refused"}
