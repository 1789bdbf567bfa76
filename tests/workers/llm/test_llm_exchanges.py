"""Replies of vLLM and SGLang, replayed over real HTTP: what was sampled comes through to the log-probability.

tests/workers/llm/exchanges/*.json name their server, its version and how they were written. Each has the
request that makes the server answer so; the client must send exactly this.
"""

import json
from pathlib import Path

import pytest

from orchard.schemas.campaigns import ModelSpec
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings

EXCHANGES = sorted((Path(__file__).parent / "exchanges").glob("*.json"))


@pytest.fixture
def ask(endpoint):
    async def asked(exchange):
        endpoint.answer(exchange["response"])
        settings = EndpointSettings(base_url=endpoint.url, extra_body=exchange["extra_body"])
        sent = exchange["request"]
        spec = ModelSpec(
            name=sent["model"],
            temperature=sent["temperature"],
            max_tokens=sent["max_tokens"],
            logprobs=sent["logprobs"],
        )
        async with ModelClient({"default": settings}) as client:
            return await client.complete(
                spec, sent["messages"], sent["tools"], seed=sent["seed"], timeout=20.0
            )

    return asked


@pytest.mark.parametrize("file", EXCHANGES, ids=lambda file: file.stem)
async def test_what_was_sampled_is_read_from_the_servers_own_fields(endpoint, ask, file):
    exchange = json.loads(file.read_text())
    answer = await ask(exchange)
    assert endpoint.requests == [exchange["request"]]
    expected, tokens = exchange["expected"], answer.tokens
    assert list(tokens.ids) == expected["ids"]
    assert list(tokens.logprobs) == expected["logprobs"]
    assert list(tokens.prompt_ids) == expected["prompt_ids"]
    assert [[run.start, run.version] for run in tokens.versions] == expected["versions"]
    assert answer.text == "I will list them.\n"
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("bash", '{"command": "ls"}')]
    assert (answer.finish_reason, answer.usage.completion_tokens) == ("tool_calls", len(expected["ids"]))


def test_both_servers_are_there():
    assert {file.stem.split("-")[0] for file in EXCHANGES} == {"vllm", "sglang"}


async def test_a_log_probability_that_vllm_does_not_know_is_none(ask):
    exchange = json.loads((EXCHANGES[0].parent / "vllm-token-ids.json").read_text())
    exchange["response"]["choices"][0]["logprobs"]["content"][3]["logprob"] = -9999.0
    tokens = (await ask(exchange)).tokens
    assert list(tokens.ids) == exchange["expected"]["ids"]
    assert tokens.logprobs == ()
