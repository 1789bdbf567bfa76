"""Seals: what is made by a holder of the key passes once and unchanged; all else is noticed."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.injector.agent import signing
from orchard.injector.agent.protocol import KEY_HEADER
from orchard.injector.agent.signing import (
    Admitted,
    Seal,
    SealBroken,
    SealedRequest,
    SealRefused,
    SealVerifier,
    sandbox_key,
)

KEY = sandbox_key(b"master", "s1", "uid")
OTHER = sandbox_key(b"master", "s1", "another uid")
NOW = 1_700_000_000.0

texts = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), max_size=20)
chunks = st.lists(st.binary(min_size=1, max_size=50), max_size=6)


def ends(key: bytes = KEY, *, ahead: float = 0.0) -> tuple[Seal, SealVerifier]:
    """A caller and an agent whose clocks differ by `ahead` seconds."""
    return Seal(KEY, lambda: NOW + ahead), SealVerifier(key, lambda: NOW)


def exchange(target: str = "/x", body: bytes | None = b"") -> tuple[SealedRequest, Admitted]:
    caller, agent = ends()
    request = caller.request("POST", target, body=body)
    return request, agent.admit("POST", target, request.headers)


async def source(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


def framed(request: SealedRequest, pieces: Sequence[bytes]) -> list[bytes]:
    async def given() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def collect() -> list[bytes]:
        return [frame async for frame in request.frames(given())]

    return asyncio.run(collect())


def opened(end: Admitted | SealedRequest, data: bytes) -> bytes:
    async def collect() -> bytes:
        return b"".join([piece async for piece in end.opened(await source(data))])

    return asyncio.run(collect())


class TestKeys:
    def test_every_sandbox_and_every_pod_has_its_own(self) -> None:
        keys = {sandbox_key(b"m", "a", "u"), sandbox_key(b"m", "b", "u"), sandbox_key(b"m", "a", "v")}
        assert len(keys) == 3
        assert {len(key) for key in keys} == {signing.KEY_SIZE}
        assert sandbox_key(b"m", "ab", "c") != sandbox_key(b"m", "a", "bc")

    def test_the_same_for_every_replica(self) -> None:
        assert sandbox_key(b"m", "a", "u") == sandbox_key(b"m", "a", "u")
        assert sandbox_key(b"m", "a", "u") != sandbox_key(b"n", "a", "u")


class TestRequests:
    @given(method=texts, target=texts, body=st.binary(), key=st.none() | texts.filter(bool))
    def test_what_was_sealed_passes(self, method: str, target: str, body: bytes, key: str | None) -> None:
        caller, agent = ends()
        request = caller.request(method, target, body=body, idempotency_key=key)
        headers = request.headers | ({} if key is None else {KEY_HEADER: key})

        admitted = agent.admit(method, target, headers)

        admitted.insist()
        admitted.check_body(body)
        assert not admitted.streamed

    @given(data=st.data())
    def test_no_part_can_be_changed(self, data: st.DataObject) -> None:
        caller, agent = ends()
        request = caller.request("POST", "/x?a=b", body=b"body", idempotency_key="k")
        parts = {"method": "POST", "target": "/x?a=b", **request.headers, KEY_HEADER: "k"}
        name = data.draw(st.sampled_from(sorted(parts)))
        parts[name] = data.draw(st.text().filter(lambda other: other != parts[name]))
        method, target = parts.pop("method"), parts.pop("target")

        with pytest.raises(SealBroken):
            agent.admit(method, target, parts)

    @given(
        name=st.sampled_from(
            [signing.TIME_HEADER, signing.NONCE_HEADER, signing.BODY_HEADER, signing.SEAL_HEADER]
        )
    )
    def test_no_part_can_be_left_out(self, name: str) -> None:
        caller, agent = ends()
        headers = caller.request("GET", "/").headers
        del headers[name]
        with pytest.raises(SealBroken):
            agent.admit("GET", "/", headers)

    def test_another_key_does_not_open(self) -> None:
        caller, agent = ends(OTHER)
        with pytest.raises(SealBroken):
            agent.admit("GET", "/", caller.request("GET", "/").headers)

    def test_the_body_must_be_the_one(self) -> None:
        _, admitted = exchange(body=b"rm -r /tmp/x")
        with pytest.raises(SealBroken):
            admitted.check_body(b"rm -r /tmp/y")


class TestReplays:
    def test_a_request_counts_once(self) -> None:
        caller, agent = ends()
        headers = caller.request("GET", "/").headers
        agent.admit("GET", "/", headers).insist()
        with pytest.raises(SealRefused, match="before"):
            agent.admit("GET", "/", headers).insist()

    @pytest.mark.parametrize("ahead", [-61.0, 61.0])
    def test_clocks_may_differ_a_little_and_no_more(self, ahead: float) -> None:
        for seconds, refused in ((ahead * 0.9, False), (ahead, True)):
            caller, agent = ends(ahead=seconds)
            admitted = agent.admit("GET", "/", caller.request("GET", "/").headers)
            if not refused:
                admitted.insist()
                continue
            with pytest.raises(SealRefused, match="clock"):
                admitted.insist()

    @given(st.lists(st.tuples(st.floats(-70, 70), st.integers(0, 9)), max_size=60), st.integers(1, 5))
    def test_no_nonce_passes_twice_however_few_are_remembered(
        self, asked: list[tuple[float, int]], remembered: int
    ) -> None:
        """Whatever time a replay claims, it is the time that was sealed: the pair repeats, or is new."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(signing, "REMEMBERED", remembered)
            seen, passed = signing._Seen(), set()
            for sent, number in asked:
                nonce = f"{sent} {number}".encode()
                if seen.refusal(NOW + sent, nonce, NOW) is None:
                    assert nonce not in passed
                    passed.add(nonce)

    @pytest.mark.long
    def test_many_requests_take_little_memory_and_all_pass(self) -> None:
        now = NOW
        caller, agent = Seal(KEY, lambda: now), SealVerifier(KEY, lambda: now)
        tracemalloc.start()
        try:
            for number in range(3 * signing.REMEMBERED):
                now = NOW + number / 1000
                agent.admit("GET", "/", caller.request("GET", "/").headers).insist()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert taken < 4_000_000


class TestAnswers:
    @given(status=st.integers(100, 599), body=st.binary(), reason=texts)
    def test_the_agents_answer_passes(self, status: int, body: bytes, reason: str) -> None:
        request, admitted = exchange()
        headers = admitted.answer(status, body, reason) | {signing.REASON_HEADER: reason}
        request.check_whole(status, headers, body)

    def test_no_part_can_be_changed(self) -> None:
        request, admitted = exchange()
        headers = admitted.answer(410, b"body", "died") | {signing.REASON_HEADER: "died"}
        with pytest.raises(SealBroken):
            request.check_whole(200, headers, b"body")
        with pytest.raises(SealBroken):
            request.check_whole(410, headers, b"Body")
        for name in headers:
            with pytest.raises(SealBroken):
                request.check_whole(410, {**headers, name: "0" * 64}, b"body")
        with pytest.raises(SealBroken):
            request.check_whole(410, {}, b"body")

    def test_an_answer_is_to_one_request(self) -> None:
        _, admitted = exchange()
        request, _ = exchange()
        with pytest.raises(SealBroken):
            request.check_whole(200, admitted.answer(200, b""), b"")

    def test_a_request_sent_back_is_no_answer(self) -> None:
        request, _ = exchange()
        with pytest.raises(SealBroken):
            request.check(200, request.headers)

    def test_a_refusal_of_a_replay_is_sealed_too(self) -> None:
        caller, agent = ends(ahead=1000)
        request = caller.request("GET", "/")
        request.check_whole(403, agent.admit("GET", "/", request.headers).answer(403, b"no"), b"no")


class TestStreams:
    @given(chunks)
    def test_to_the_agent(self, pieces: list[bytes]) -> None:
        request, admitted = exchange(body=None)
        assert admitted.streamed
        assert opened(admitted, b"".join(framed(request, pieces))) == b"".join(pieces)

    @given(chunks)
    def test_from_the_agent(self, pieces: list[bytes]) -> None:
        request, admitted = exchange()
        sent = b"".join(frame for piece in [*pieces, b""] for frame in admitted.frames(piece))
        assert opened(request, sent) == b"".join(pieces)

    def test_large_pieces_are_cut_into_frames(self) -> None:
        piece = bytes(range(256)) * (signing.FRAME // 100)
        request, admitted = exchange(body=None)
        frames = framed(request, [piece])
        assert max(map(len, frames)) <= signing.FRAME + 36
        assert opened(admitted, b"".join(frames)) == piece
        sent = b"".join([*admitted.frames(piece), *admitted.frames(b"")])
        assert opened(request, sent) == piece

    @given(chunks.filter(bool), st.data())
    def test_a_changed_byte_is_noticed(self, pieces: list[bytes], data: st.DataObject) -> None:
        request, admitted = exchange(body=None)
        sent = bytearray(b"".join(framed(request, pieces)))
        sent[data.draw(st.integers(0, len(sent) - 1))] ^= data.draw(st.integers(1, 255))
        with pytest.raises(SealBroken):
            opened(admitted, bytes(sent))

    @given(chunks, st.data())
    def test_an_end_too_early_is_noticed(self, pieces: list[bytes], data: st.DataObject) -> None:
        request, admitted = exchange(body=None)
        sent = b"".join(framed(request, pieces))
        with pytest.raises(SealBroken):
            opened(admitted, sent[: data.draw(st.integers(0, len(sent) - 1))])

    @given(st.lists(st.binary(min_size=1, max_size=9), min_size=2, max_size=5, unique=True), st.data())
    def test_frames_cannot_be_moved_left_out_or_repeated(
        self, pieces: list[bytes], data: st.DataObject
    ) -> None:
        request, admitted = exchange(body=None)
        frames = framed(request, pieces)
        order = data.draw(st.lists(st.sampled_from(range(len(frames))), max_size=len(frames) + 2))
        if order == list(range(len(frames))):
            return
        with pytest.raises(SealBroken):
            opened(admitted, b"".join(frames[number] for number in order))

    def test_a_stream_is_of_one_request_and_one_direction(self) -> None:
        request, admitted = exchange(body=None)
        sent = b"".join(framed(request, [b"data"]))
        with pytest.raises(SealBroken):
            opened(request, sent)
        with pytest.raises(SealBroken):
            opened(exchange(body=None)[1], sent)
        assert opened(admitted, sent) == b"data"
