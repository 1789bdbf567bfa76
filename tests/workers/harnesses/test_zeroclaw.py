"""ZeroClaw by a binary that the user names. The real one cannot be had here: a script stands in for it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from orchard.cli.app import app
from orchard.pipelines.trajectories.forests import training
from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.llm_calls import CallKind
from orchard.schemas.outcomes import ExitStatus
from orchard.streams.server import EmbeddedServer
from orchard.workers.gateway import server
from tests.attempts_world import world
from tests.programs.upstream import Upstream
from tests.tiny_tasks import tiny_service, tiny_task
from tests.workers.harnesses.zeroclaw_stand_in import SCRIPT

FIX = "sed -i 's/left - right/left + right/' arithmetic/mod_1.py; tail -n +3 /proc/net/dev | cut -d: -f1"


class Changing(Upstream):
    """A model that does not say the same when it is asked again."""

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """See Upstream.answer."""
        self.commands = ("echo lost",) if len(self.requests) == 1 else (FIX,)
        return super().answer(body)


def _said(state: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["--state", str(state), "harness", *words])
    return done.output if done.exception is None else str(done.exception)


@pytest.mark.long
async def test_a_task_is_solved_and_the_answer_of_a_broken_stream_does_not_train(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = server._sent, list[bytes]()

    async def sent(request: web.Request, body: bytes, headers: Any) -> web.StreamResponse:
        """The line breaks in the middle of the first stream."""
        if broken or headers is not server._STREAM:
            return await whole(request, body, headers)
        broken.append(body)
        answer = web.StreamResponse(headers={**headers, "Content-Length": str(len(body))})
        await answer.prepare(request)
        await answer.write(body[: len(body) // 2])
        assert request.transport is not None
        request.transport.close()
        return answer

    monkeypatch.setattr(server, "_sent", sent)
    (binary := tmp_path / "zeroclaw-x86_64").write_text(SCRIPT)
    words = ("install", "zeroclaw==0.8.0", "--from", str(binary))
    assert "installed zeroclaw 0.8.0" in await asyncio.to_thread(_said, tmp_path, *words)
    async with (
        tiny_service(tmp_path / "sandboxes") as service,
        world(nats_server.url, service.url, tmp_path / "store", ()) as place,
        Changing(()).served() as model,
    ):
        (rollout,) = await place.submit(tiny_task(1), harnesses=("zeroclaw",), max_tries=1)
        async with place.working(base_url=model.url):
            data = payload((await place.outcomes(rollout))[rollout])
        said = await place.rows("select node_id, parent, role, content from messages order by sequence")
        calls = await place.rows("select node, call_kind, turn from llm_calls order by sequence")
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.reward, data.harness_version) == (ExitStatus.FINISHED, 1.0, "0.8.0")
    assert "diff --git" in data.submission and data.submission.count("diff --git") == 1, (
        "nothing else is left"
    )
    assert [content for _, _, role, content in said if role == "tool"] == ["    lo\n"], "and no other network"
    parent_of = {node: parent for node, parent, *_ in said}
    lost, fixed, done = (node for node, *_ in calls)
    assert broken and [request.get("stream") for request in model.requests] == [None] * 3
    assert parent_of[lost] == parent_of[fixed] != parent_of[done]
    assert training(parent_of, {node: CallKind(kind) for node, kind, _ in calls}) == {fixed, done}
    assert data.leaf == done


def test_a_binary_that_is_not_named_or_is_none_is_one_clear_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert "no: orchard harness install zeroclaw --from PATH" in _said(tmp_path, "list")
    assert _said(tmp_path, "install", "zeroclaw") == (
        "zeroclaw is in no package: get it (a release of zeroclaw-labs/zeroclaw, 0.8, for this machine) and "
        "name it with `orchard harness install zeroclaw --from PATH`"
    )
    (archive := tmp_path / "zeroclaw.tar.gz").write_bytes(b"\x1f\x8b\x08\x00")
    assert "not the archive that it came in" in _said(tmp_path, "install", "zeroclaw", "--from", str(archive))
    (source := tmp_path / "source").mkdir()
    assert "source has no bin/zeroclaw, which zeroclaw is started by: name the binary itself" in _said(
        tmp_path, "install", "zeroclaw", "--from", str(source)
    )
    assert [path.name for path in (tmp_path / "harnesses").iterdir()] == ["lock"]
