"""`orchard try`, and what `submit` and `doctor` ask of an endpoint, against fakes over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from typer.testing import CliRunner

from orchard.actions import endpoint_calls
from orchard.actions.endpoint_trial import ModelNotNamed, Trial
from orchard.actions.replica_trial import try_endpoint
from orchard.actions.tried_endpoints import check_endpoints, examine_endpoints, remember, remembered
from orchard.cli.app import app
from orchard.configuration.config import ConfigError
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignSpec, ModelSpec, TaskRef
from orchard.schemas.llm_calls import ModelKind
from orchard.workers.llm.settings import EndpointSettings, Price
from tests.fake_endpoint import serving
from tests.orchard.test_facts import check

KEY = "sk-secret-0123456789"
USAGE = {"prompt_tokens": 600, "completion_tokens": 2, "total_tokens": 602}


class Server:
    """A chat endpoint that serves all, but for what is taken from it."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.tools = "calls"
        """Or `refused`, `broken`, `text`, `left out`."""
        self.listed = ["m"]
        self.broken: set[str] = set()
        """Fields of requests that it answers with 500."""
        self.without: set[str] = set()
        """Of models, stream, end, usage, logprobs, ids, max_tokens, length."""
        self.failures = 0
        """Number of next requests that it answers with 500."""
        self.always: web.Response | None = None
        """The answer to everything."""

    async def models(self, _: web.Request) -> web.Response:
        if "models" in self.without:
            raise web.HTTPNotFound
        listed = [{"id": name, "object": "model", "created": 0} for name in self.listed]
        return web.json_response({"object": "list", "data": listed})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.requests.append(asked)
        if self.failures or any(asked.get(field) for field in self.broken):
            self.failures = max(self.failures - 1, 0)
            return web.json_response({"error": {"message": "overloaded"}}, status=500)
        if self.always is not None:
            return web.Response(
                status=self.always.status, text=self.always.text, content_type=self.always.content_type
            )
        if self.tools == "broken" and asked.get("tools"):
            return web.json_response({"error": {"message": "internal"}}, status=500)
        if refused := self.refusal(asked):
            return web.json_response({"error": {"message": refused}}, status=400)
        if asked.get("stream") and "stream" not in self.without:
            return await self.streamed(request)
        return web.json_response(self.completion(asked))

    def refusal(self, asked: Mapping[str, Any]) -> str:
        most = asked.get("max_tokens", asked.get("max_completion_tokens", 0))
        if "max_tokens" in self.without and "max_tokens" in asked:
            return "Unsupported parameter: use 'max_completion_tokens' instead"
        if most > 10**6 and "length" not in self.without:
            return "This model's maximum context length is 8192 tokens. However, you requested 1000000009"
        if self.tools == "refused" and asked.get("tools"):
            return '"auto" tool choice requires --enable-auto-tool-choice'
        if "ids" in self.without and "return_token_ids" in asked:
            return "Unrecognized request argument: return_token_ids"
        return "no logprobs here" if "logprobs" in self.without and asked.get("logprobs") else ""

    def completion(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "yes"}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
        if self.tools == "calls" and asked.get("tools"):
            function = {"name": "add", "arguments": "{}"}
            message["tool_calls"] = [{"id": "1", "type": "function", "function": function}]
            choice["finish_reason"] = "tool_calls"
        if asked.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": "yes", "logprob": -0.1}]}
            if asked.get("return_token_ids"):
                choice["token_ids"] = [7]
        usage = {**USAGE, **({"prompt_tokens": 9, "total_tokens": 11} if self.tools == "left out" else {})}
        reply = {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}
        return reply if "usage" in self.without else {**reply, "usage": usage}

    async def streamed(self, request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        for delta, reason in (({"content": "yes"}, None), ({}, "stop")):
            chunk = {"id": "c", "model": "m", "object": "chat.completion.chunk"}
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            await reply.write(b"data: " + msgspec.json.encode({**chunk, "choices": [choice]}) + b"\n\n")
            if "end" in self.without:
                request.transport.abort()
        if "usage" not in self.without:
            await reply.write(b"data: " + msgspec.json.encode({"choices": [], "usage": USAGE}) + b"\n\n")
        await reply.write(b"data: [DONE]\n\n")
        return reply


@pytest_asyncio.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(endpoint_calls, "AGAIN_SECONDS", (0.0, 0.0))
    fake = Server()
    async with serving(fake.models, fake.chat) as fake.url:
        yield fake


async def tried(server: Server, model: str | None = "m", **settings: Any) -> Trial:
    return await try_endpoint("default", EndpointSettings(base_url=server.url, **settings), model, 20.0)


def plan(harness: str = "orchard-bash", **model: Any) -> CampaignSpec:
    task = TaskRef(task_id="t", source="s", repo="r", blob=BlobRef(sha256="0" * 64, size=1))
    spec = ModelSpec(**{"name": "m", "endpoint": "default", **model})
    return CampaignSpec(name="c", tasks=(task,), harnesses=(harness,), models=(spec,), samples=1)


async def test_a_whole_endpoint_is_told_with_all_that_it_serves(server: Server) -> None:
    trial = await tried(server, None, prices={"m": Price(prompt=1.0, completion=2.0)})
    assert (trial.tools, trial.streams, trial.usage, trial.logprobs, trial.token_ids) == (True,) * 5
    assert (trial.model, trial.context_length, trial.problem) == ("m", 8192, "")
    assert trial.command == "orchard submit first --model m --limit 3"
    assert trial.harnesses[0] == "orchard-bash"
    assert trial.tokens == 3 * 602 and trial.cost_usd == pytest.approx(3 * 604e-6)
    assert all(finding.good for finding in trial.findings)


@pytest.mark.parametrize("tools", ["refused", "left out"])
async def test_a_server_without_tools_suits_the_text_harness(server: Server, tools: str) -> None:
    server.tools = tools
    trial = await tried(server)
    assert (trial.tools, trial.harnesses, trial.problem) == (False, ["mini-swe-agent-text"], "")
    assert trial.command == "orchard submit first --model m --harness mini-swe-agent-text --limit 3"


async def test_a_model_that_writes_text_in_place_of_a_call_is_not_known_to_lack_tools(server: Server) -> None:
    server.tools = "text"
    trial = await tried(server)
    [finding] = [each for each in trial.findings if each.what == "tool calls"]
    assert trial.tools is None and not finding.good and "wrote text: 'yes'" in finding.says


async def test_what_is_missing_is_told_and_not_guessed(server: Server) -> None:
    server.without = {"models", "stream", "usage", "logprobs", "length"}
    trial = await tried(server)
    assert (trial.streams, trial.usage, trial.logprobs, trial.token_ids) == (False,) * 4
    assert (trial.context_length, trial.price, trial.tokens, trial.cost_usd) == (None,) * 4
    assert trial.harnesses[0] == "orchard-bash"
    said = {each.what: each for each in trial.findings}
    assert said["context"].says == "unknown" and '[endpoints.default.prices."m"]' in said["price"].remedy


async def test_strict_servers_get_the_names_that_they_know(server: Server) -> None:
    server.without = {"ids", "max_tokens"}
    trial = await tried(server)
    assert (trial.tools, trial.logprobs, trial.token_ids) == (True, True, False)


async def test_a_stream_that_breaks_off_is_not_said_to_work(server: Server) -> None:
    server.without = {"end"}
    trial = await tried(server)
    [finding] = [each for each in trial.findings if each.what == "streams"]
    assert trial.streams is False and "a request for a stream" in finding.says and trial.tools is True


async def test_an_endpoint_without_streams_cannot_be_configured_with_them(server: Server) -> None:
    server.without = {"stream"}
    assert "`stream = true`" in (await tried(server, stream=True)).problem


@pytest.mark.parametrize(
    ("status", "kind", "says", "temporary"),
    [
        (401, "application/json", "check the key in TRY_KEY", False),
        (404, "application/json", "check base_url and the model's name", False),
        (200, "text/html", "answered a web page", False),
        (404, "text/html", "with a web page", False),
        (503, "application/json", "answered 503", True),
        (200, "application/json", "gave no completion", True),
    ],
)
async def test_an_endpoint_that_serves_nothing_is_one_sentence_without_its_key(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int, kind: str, says: str, temporary: bool
) -> None:
    monkeypatch.setenv("TRY_KEY", KEY)
    server.always = web.Response(
        status=status, text=json.dumps({"error": {"message": f"not for {KEY}"}}), content_type=kind
    )
    trial = await tried(server, api_key_env="TRY_KEY")
    assert says in trial.problem and trial.temporary is temporary and trial.harnesses == []
    assert KEY not in msgspec.json.encode(trial).decode()


async def test_a_server_that_fails_at_tools_once_is_not_said_to_lack_them(server: Server) -> None:
    server.tools = "broken"
    trial = await tried(server)
    assert trial.tools is None and trial.problem == ""


async def test_a_failure_of_the_server_that_passes_is_not_seen(server: Server) -> None:
    whole = await tried(server)
    server.failures = 2
    assert await tried(server) == whole


async def test_what_a_failing_server_did_not_answer_is_unknown_and_not_missing(
    server: Server, tmp_path: Path
) -> None:
    """Nor remembered: another time it may answer."""
    server.broken = {"stream", "logprobs"}
    trial = await tried(server)
    assert (trial.tools, trial.streams, trial.logprobs) == (True, None, None)
    assert trial.harnesses[0] == "orchard-bash" and trial.temporary
    [finding] = [each for each in trial.findings if each.what == "streams"]
    assert "a request for a stream answered 500: overloaded" in finding.says
    settings = EndpointSettings(base_url=server.url)
    remember(tmp_path, settings, trial)
    assert remembered(tmp_path, settings, "default", "m") is None


async def test_a_model_that_the_server_does_not_list_is_told_with_the_nearest(
    server: Server, tmp_path: Path
) -> None:
    server.listed = ["qwen-coder", "llama"]
    trial = await tried(server, "qwen-codr")
    [finding] = [each for each in trial.findings if each.what == "model"]
    said = "the server's list of models lacks qwen-codr: did you mean 'qwen-coder'?"
    assert not finding.good and finding.says == said
    notes = await check_endpoints(
        tmp_path, plan(name="qwen-codr"), {"default": EndpointSettings(base_url=server.url)}
    )
    assert f"endpoint default: {said}" in notes
    server.always = web.Response(status=404, text="{}", content_type="application/json")
    assert said in (await tried(server, "qwen-codr")).problem


async def test_a_model_is_named_where_the_server_does_not_tell_it(server: Server) -> None:
    server.without = {"models"}
    with pytest.raises(ModelNotNamed, match="name one with --model"):
        await tried(server, None)


async def test_submit_asks_each_endpoint_once(server: Server, tmp_path: Path) -> None:
    endpoints = {"default": EndpointSettings(base_url=server.url)}
    [note] = await check_endpoints(tmp_path, plan(), endpoints)
    asked = len(server.requests)
    assert "tried once with m" in note and asked > 0
    assert await check_endpoints(tmp_path, plan("mini-swe-agent-compact"), endpoints) == []
    for oracle in (plan(kind=ModelKind.ORACLE), plan(name="oracle/resolves")):
        assert await check_endpoints(tmp_path, oracle, endpoints) == []
    assert await check_endpoints(tmp_path, plan(endpoint="workers-have-it"), endpoints) == []
    assert len(server.requests) == asked
    [_, unlisted] = await check_endpoints(tmp_path, plan(name="other"), endpoints)
    assert "lacks other" in unlisted


async def test_submit_refuses_what_cannot_work_and_asks_again_once_it_is_mended(
    server: Server, tmp_path: Path
) -> None:
    endpoints = {"default": EndpointSettings(base_url=server.url)}
    server.tools = "refused"
    with pytest.raises(ConfigError, match=r"orchard-bash needs tool calls.*mini-swe-agent-text.*--no-try"):
        await check_endpoints(tmp_path, plan(), endpoints)
    assert await check_endpoints(tmp_path, plan("mini-swe-agent-text"), endpoints) == []
    server.tools = "calls"
    assert len(await check_endpoints(tmp_path, plan(), endpoints)) == 1
    server.always = web.Response(status=404, text="{}", content_type="application/json")
    with pytest.raises(ConfigError, match="answered 404"):
        await check_endpoints(tmp_path, plan(name="gone"), endpoints)


async def test_submit_goes_on_where_the_endpoint_may_come_later(server: Server, tmp_path: Path) -> None:
    endpoints = {"default": EndpointSettings(base_url="http://127.0.0.1:9/v1")}
    [note] = await check_endpoints(tmp_path, plan(), endpoints)
    assert "endpoint 'default' at http://127.0.0.1:9/v1 could not be reached" in note
    keyed = {"default": EndpointSettings(base_url=server.url, api_key_env="NOT_SET_HERE")}
    [note] = await check_endpoints(tmp_path, plan(), keyed)
    assert note.startswith("not tried: ") and "NOT_SET_HERE" in note and server.requests == []


async def test_doctor_has_a_line_for_each_endpoint(server: Server) -> None:
    good, bad = await examine_endpoints(
        {
            "default": EndpointSettings(base_url=server.url),
            "gone": EndpointSettings(base_url="http://[::1]:9"),
        }
    )
    assert good.good and good.what == "endpoint default" and "m works with orchard-bash" in good.says
    assert not bad.good and "could not be reached" in bad.remedy


async def test_every_server_of_an_endpoint_is_told_by_address_with_what_differs(
    server: Server, tmp_path: Path
) -> None:
    less, same = Server(), Server()
    less.tools, less.without = "refused", {"length", "models"}
    async with serving(less.models, less.chat) as less.url, serving(same.models, same.chat) as same.url:
        replicas = (less.url, same.url, "http://127.0.0.1:9/v1")
        settings = EndpointSettings(base_url=server.url, replicas=replicas)
        trial = await try_endpoint("default", settings, "m", 20.0)
        host = {each.url: each.url.split("/")[2] for each in (server, less, same)}
        assert (trial.server, trial.tools, trial.harnesses) == (
            host[less.url],
            False,
            ["mini-swe-agent-text"],
        )
        assert trial.tokens is None and trial.problem == ""
        said = {each.what: each for each in trial.findings}
        for one in (server, same):
            finding = said[f"server {host[one.url]}"]
            assert not finding.good and finding.says == (
                f"differs from {host[less.url]}: models: m, not none; tool calls: yes, not no; "
                "context: 8192, not unknown"
            )
        assert "could not be reached" in said["server 127.0.0.1:9"].remedy
        notes = await check_endpoints(tmp_path, plan("mini-swe-agent-text"), {"default": settings})
        assert sum("endpoint default: server" in note for note in notes) == 3
        with pytest.raises(ConfigError, match="orchard-bash needs tool calls"):
            await check_endpoints(tmp_path, plan(), {"default": settings})
        [line] = await examine_endpoints({"default": settings})
        assert not line.good and "could not be reached" in line.says
        equal = msgspec.structs.replace(settings, replicas=(same.url,))
        [line] = await examine_endpoints({"default": equal})
        assert line.good
        alike = await try_endpoint("default", equal, None, 20.0)
        assert alike.findings[-1].says == f"serves the same as {host[server.url]}" and alike.tokens == 6 * 602


async def test_the_command_prints_a_table_or_one_object_and_its_status(
    server: Server, tmp_path: Path
) -> None:
    words = ["--store", str(tmp_path), "try", "--base-url", server.url]
    shown = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert shown.exit_code == 0 and "Continue with: orchard submit first --model m" in shown.output
    lines = shown.output.partition("add to orchard.toml:\n")[2].partition("Continue")[0]
    assert '# [endpoints.default.prices."m"]' in lines
    (tmp_path / "orchard.toml").write_text(dedent(lines))
    again = ["--config", str(tmp_path / "orchard.toml"), "--store", str(tmp_path), "try"]
    kept = await asyncio.to_thread(CliRunner().invoke, app, again)
    assert kept.exit_code == 0 and "add to orchard.toml" not in kept.output
    as_json = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--json"])
    check("try", as_json.output)
    server.always = web.Response(status=401, text="{}", content_type="application/json")
    refused = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--json"])
    assert refused.exit_code == 1 and json.loads(refused.output)["problem"]
    unknown = await asyncio.to_thread(CliRunner().invoke, app, ["--store", str(tmp_path), "try", "nonesuch"])
    assert "no endpoint is named 'nonesuch'" in str(unknown.exception)
