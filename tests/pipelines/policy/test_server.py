"""The policy server over its real wire, asked by our own client and by plain HTTP."""

import asyncio
import json

import aiohttp
import pytest
import torch

from orchard.pipelines.datasets.tokenization import ChatTokenizer
from orchard.pipelines.models.directories import load_model, load_tokenizer, save_model
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.messages import VersionRun
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.errors import ContextLengthExceeded
from orchard.workers.llm.settings import EndpointSettings
from tests.pipelines.policy.small_models import BASH
from tests.real_tokenizers import real_tokenizer

HELLO = [{"role": "system", "content": "You mend code."}, {"role": "user", "content": "Fix add.py"}]
SPEC = ModelSpec(name="policy", max_tokens=24, temperature=1.0, logprobs=True)


def client_of(server, **settings) -> ModelClient:
    extra = {"return_token_ids": True}
    return ModelClient({"default": EndpointSettings(base_url=server.url, extra_body=extra, **settings)})


async def post(server, path, body, **headers):
    address = f"http://{server.host}:{server.port}{path}"
    async with aiohttp.ClientSession() as session, session.post(address, json=body, headers=headers) as reply:
        return reply.status, await reply.json(), reply.headers


async def get(server, path):
    address = f"http://{server.host}:{server.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(address) as reply:
        return reply.status, await reply.text()


async def complete(server, **body):
    status, reply, _ = await post(server, "/v1/completions", {"model": "policy"} | body)
    assert status == 200, reply
    return reply["choices"][0]


async def test_a_turn_is_recorded_with_all_its_tokens(serve, model_directory, tmp_path):
    """Through client and trace to the message node: ids, log-probabilities, prompt and policy version."""
    server = await serve(version=4)
    published = []

    async def publish(fact):
        published.append(fact)

    trace = MessageTree(publish, BlobStore(str(tmp_path)))
    leaf = await trace.user(await trace.system("You mend code."), "Fix add.py")
    async with client_of(server) as client:
        completion = await client.complete(SPEC, trace.messages(leaf), [BASH], seed=5, timeout=60)
    node = await trace.answered(leaf, completion)
    tokens = next(fact for fact in published if getattr(fact, "node_id", None) == node).tokens
    assert len(tokens.ids) == len(tokens.logprobs) == completion.usage.completion_tokens <= 24
    assert tokens.versions == (VersionRun(start=0, version=4),)
    tokenizer = ChatTokenizer.load(str(model_directory))
    rendered = tokenizer.decode(tokens.prompt_ids)
    assert rendered.endswith("<|im_start|>user\nFix add.py<|im_end|>\n<|im_start|>assistant\n")
    assert '"name": "bash"' in rendered
    assert completion.usage.prompt_tokens == len(tokens.prompt_ids)
    assert tokenizer.decode(tokens.ids).removesuffix("<|im_end|>") == completion.text


async def test_what_was_sampled_is_never_tokenized_again(serve, model_directory):
    """The second turn's prompt begins with the first turn's prompt and sampled ids, to the token."""
    server = await serve()
    server_text = ChatTokenizer.load(str(model_directory)).decode
    async with client_of(server) as client:
        for seed in range(5):
            first = await client.complete(SPEC, HELLO, [BASH], seed=seed, timeout=60)
            said = {"role": "assistant", "content": first.text}
            second = await client.complete(
                SPEC, [*HELLO, said, {"role": "user", "content": "go on"}], [BASH], seed=seed, timeout=60
            )
            whole = first.tokens.prompt_ids + first.tokens.ids
            assert second.tokens.prompt_ids[: len(whole)] == whole
            following = server_text(second.tokens.prompt_ids[len(whole) - 1 :])
            assert "<|im_end|>\n<|im_start|>user\ngo on" in following  # of an answer that was cut off, too


async def test_the_turn_after_a_format_error_is_answered(serve, model_directory, tmp_path):
    """With Qwen3's own template, which drops the reasoning of turns before a user's message."""
    tokenizer = load_tokenizer(model_directory)
    known = json.loads((real_tokenizer("qwen3") / "tokenizer_config.json").read_text())
    tokenizer.chat_template = known["chat_template"]
    save_model(load_model(model_directory), tmp_path / "model", tokenizer=tokenizer)
    server = await serve(tmp_path / "model", context=4096)
    said = {"role": "assistant", "content": "No call.", "reasoning_content": "Which one?"}
    again = {"role": "user", "content": "Format error: call a tool."}
    async with client_of(server) as client:
        first = await client.complete(SPEC, HELLO, [BASH], seed=1, timeout=60)
        second = await client.complete(SPEC, [*HELLO, said, again], [BASH], seed=1, timeout=60)
        third = await client.complete(SPEC, [*HELLO, said, again, said, again], [BASH], seed=1, timeout=60)
    assert second.tokens.prompt_ids[: len(first.tokens.prompt_ids)] == first.tokens.prompt_ids
    assert third.tokens.prompt_ids[: len(second.tokens.prompt_ids)] == second.tokens.prompt_ids


async def test_a_rewritten_history_starts_a_new_branch(serve, model_directory):
    server = await serve()
    tokenizer = ChatTokenizer.load(str(model_directory))
    async with client_of(server) as client:
        first = await client.complete(SPEC, HELLO, [], seed=1, timeout=60)
        messages = [
            *HELLO,
            {"role": "assistant", "content": f"{first.text}!"},
            {"role": "user", "content": "on"},
        ]
        second = await client.complete(SPEC, messages, [], seed=1, timeout=60)
    assert f"{first.text}!<|im_end|>" in tokenizer.decode(second.tokens.prompt_ids)


async def test_a_seed_decides_whatever_else_is_asked(serve):
    server = await serve(slots=8)
    async with client_of(server) as client:
        alone = await client.complete(SPEC, HELLO, [], seed=9, timeout=60)
        crowd = [client.complete(SPEC, HELLO, [BASH] * (n % 3), seed=n, timeout=60) for n in range(20)]
        again, *_ = await asyncio.gather(client.complete(SPEC, HELLO, [], seed=9, timeout=60), *crowd)
    assert again.tokens == alone.tokens


async def test_tokens_in_tokens_out(serve):
    server = await serve(version=2)
    choice = await complete(server, prompt=[5, 6, 7], max_tokens=9, seed=1, logprobs=1)
    assert choice["prompt_token_ids"] == [5, 6, 7]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 9
    assert choice["policy_versions"] == [{"start": 0, "version": 2}]
    assert choice["finish_reason"] == "length"
    named = await complete(
        server, prompt=[5, 6, 7], max_tokens=9, seed=1, logprobs=1, return_tokens_as_token_ids=True
    )
    assert named["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]


async def test_a_stop_text_ends_an_answer_and_is_not_part_of_it(serve):
    server = await serve()
    free = await complete(server, prompt="ls -la", max_tokens=40, seed=3)
    stop = free["text"][12:14]
    choice = await complete(
        server, prompt="ls -la", max_tokens=40, seed=3, stop=[stop], return_token_ids=True
    )
    assert choice["text"] == free["text"].partition(stop)[0]
    assert choice["finish_reason"] == "stop"
    assert len(choice["token_ids"]) < 40


@pytest.mark.long
async def test_reloaded_weights_keep_requests_under_way(serve, model_directory, other_directory):
    """Requests go in without a pause while weights change three times: none fails, every token has its
    version, and each answer's versions only rise."""
    server = await serve(version=0)
    done = asyncio.Event()
    answers = []

    async def ask(client, seed):
        while not done.is_set():
            answers.append(
                await client.complete(
                    ModelSpec(name="policy", max_tokens=200, temperature=1.0),
                    HELLO,
                    [],
                    seed=seed,
                    timeout=60,
                )
            )

    async with client_of(server) as client, asyncio.TaskGroup() as group:
        for seed in range(6):
            group.create_task(ask(client, seed))
        for version, directory in enumerate((other_directory, model_directory, other_directory), start=1):
            target = len(answers) + 7  # more than are under way: one at least begins after the exchange
            while len(answers) < target:
                await asyncio.sleep(0.01)
            status, reply, _ = await post(
                server, "/admin/reload", {"path": str(directory), "version": version}
            )
            assert (status, reply["policy_version"]) == (200, version)
        done.set()
    seen = set()
    for answer in answers:
        versions = [run.version for run in answer.tokens.versions]
        assert versions == sorted(versions)
        assert answer.tokens.versions[0].start == 0
        seen |= set(versions)
    assert seen == {0, 1, 2, 3}
    assert '"policy_version": 3' in (await get(server, "/health"))[1]


async def test_weights_that_do_not_fit_change_nothing(serve, tmp_path):
    server = await serve()
    for path, says in ((tmp_path / "nothing", "no causal language model"),):
        status, reply, _ = await post(server, "/admin/reload", {"path": str(path), "version": 1})
        assert status == 400
        assert says in reply["error"]["message"]
    assert '"policy_version": 0' in (await get(server, "/health"))[1]


async def test_a_full_queue_is_refused_with_a_time_to_come_back(serve):
    server = await serve(slots=1, waiting=1)
    body = {"model": "policy", "prompt": [1], "max_tokens": 400, "ignore_eos": True}
    replies = await asyncio.gather(*(post(server, "/v1/completions", body) for _ in range(12)))
    statuses = sorted(status for status, _, _ in replies)
    assert statuses[0] == 200
    assert statuses[-1] == 503
    assert all(headers["Retry-After"] == "1" for status, _, headers in replies if status == 503)


async def test_our_client_waits_out_a_full_queue(serve):
    server = await serve(slots=1, waiting=1)
    async with client_of(server, max_tries=50) as client:
        answers = await asyncio.gather(
            *(client.complete(SPEC, HELLO, [], seed=n, timeout=120) for n in range(5))
        )
    assert len(answers) == 5


async def test_a_client_that_leaves_frees_its_slot(serve):
    server = await serve(slots=1, context=16_000)
    body = {"model": "policy", "prompt": [1], "max_tokens": 15_000, "ignore_eos": True}
    asking = asyncio.create_task(post(server, "/v1/completions", body))
    while server.engine.figures.requests == 0:
        await asyncio.sleep(0.001)
    asking.cancel()
    await complete(server, prompt=[2], max_tokens=2)
    assert server.engine.figures.generated_tokens < 15_000


async def test_stopping_finishes_requests_and_refuses_new_ones(serve):
    server = await serve()
    body = {"model": "policy", "prompt": [1], "max_tokens": 300, "ignore_eos": True}
    asking = asyncio.create_task(post(server, "/v1/completions", body))
    while server.engine.figures.requests == 0:
        await asyncio.sleep(0.001)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    assert (await get(server, "/health"))[0] == 503
    status, reply, _ = await asking
    await stopping
    assert (status, reply["usage"]["completion_tokens"]) == (200, 300)


async def test_a_prompt_beyond_the_context_is_a_budget_not_a_failure(serve):
    server = await serve(context=128)
    async with client_of(server) as client:
        with pytest.raises(ContextLengthExceeded):
            await client.complete(SPEC, [{"role": "user", "content": "add " * 300}], [], seed=1, timeout=60)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"model": "gpt"}, 404, "'policy' is"),
        ({"stream": True}, 400, "does not support stream"),
        ({"n": 2}, 400, "does not support n"),
        ({"tool_choice": "required"}, 400, "does not support tool_choice"),
        ({"logit_bias": {"1": 5}}, 400, "does not support logit_bias"),
        ({"temperature": -1}, 400, "temperature"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"content": "x"}]}, 400, "role"),
    ],
    ids=str,
)
async def test_what_cannot_be_done_is_refused(serve, change, status, says):
    server = await serve()
    found, reply, _ = await post(
        server, "/v1/chat/completions", {"model": "policy", "messages": HELLO} | change
    )
    assert found == status
    assert says in reply["error"]["message"]


async def test_a_key_is_wanted_where_one_is_set(serve, monkeypatch):
    server = await serve(api_key="k" * 20)
    monkeypatch.setenv("POLICY_KEY", "k" * 20)
    async with client_of(server, api_key_env="POLICY_KEY") as client:
        assert await client.complete(SPEC, HELLO, [], seed=1, timeout=60)
    async with client_of(server) as client:
        with pytest.raises(InfrastructureError, match="answered 401"):
            await client.complete(SPEC, HELLO, [], seed=1, timeout=60)
    assert (await get(server, "/health"))[0] == 200
    assert (await get(server, "/metrics"))[0] == 401


async def test_models_and_metrics(serve):
    server = await serve(name="swe-1")
    assert json.loads((await get(server, "/v1/models"))[1])["data"][0]["id"] == "swe-1"
    body = {"model": "swe-1", "prompt": [1, 2], "max_tokens": 5, "ignore_eos": True}
    assert (await post(server, "/v1/completions", body))[0] == 200
    lines = dict(
        line.rsplit(" ", 1) for line in (await get(server, "/metrics"))[1].splitlines() if line[0] != "#"
    )
    assert lines["orchard_policy_generated_tokens_total"] == "5"
    assert lines["orchard_policy_prompt_tokens_total"] == "2"


async def test_a_page_of_a_stranger_moves_no_weights(serve, model_directory):
    """A browser sends plain forms to any address, and JSON to a name that was made to point here."""
    server = await serve(hosts=("proxy.example",))
    address = f"http://{server.host}:{server.port}"
    wanted = json.dumps({"path": str(model_directory), "version": 9, "run": "theirs"})
    plain = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(address) as http:
        for headers, status in (
            ({"Content-Type": "text/plain"}, 415),
            ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
            (plain | {"Origin": "https://pages.example"}, 403),
            (plain | {"Origin": "null"}, 403),
            (plain | {"Host": "pages.example"}, 421),
        ):
            async with http.post("/admin/reload", data=wanted, headers=headers) as reply:
                assert reply.status == status, headers
        for path in ("/health", "/metrics", "/v1/models"):
            async with http.get(path, headers={"Host": "pages.example"}) as reply:
                assert reply.status == 421
        assert server.engine.version == 0
        async with http.post(
            "/admin/reload", data=wanted, headers=plain | {"Host": "proxy.example"}
        ) as reply:
            assert reply.status == 200 and server.engine.version == 9


@pytest.mark.parametrize("encoding", ["zstd", "gzip", "deflate"])
async def test_a_body_that_is_not_encoded_as_it_says_is_the_clients_fault(serve, encoding):
    server = await serve()
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    async with (
        aiohttp.ClientSession(f"http://{server.host}:{server.port}") as http,
        http.post("/v1/completions", data=b'{"model": "policy"}', headers=headers) as reply,
    ):
        assert reply.status == 400
        assert "not encoded as its headers say" in (await reply.json())["error"]["message"]


async def test_tokens_of_prompts_are_scored_as_by_the_model_itself(serve, model_directory):
    """Several prompts in one request, whatever a slot holds: vLLM's `prompt_logprobs`."""
    server = await serve(slots=2, prefix_cache=True)
    model = load_model(model_directory)
    prompts = [[7, 8, 9, 10, 11, 12, 13], [7, 8, 9, 300, 5], [3, 4], list(range(2, 300))]
    await complete(server, prompt=prompts[0], max_tokens=4)
    body = {"model": "policy", "prompt": prompts, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
    status, reply, _ = await post(server, "/v1/completions", body)
    assert status == 200, reply
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["prompt_tokens"] == sum(map(len, prompts))
    for prompt, choice in zip(prompts, reply["choices"], strict=True):
        first, *scored = choice["prompt_logprobs"]
        assert first is None
        with torch.no_grad():
            logits = model(torch.tensor([prompt])).logits[0, :-1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        found = [scores[str(token)]["logprob"] for token, scores in zip(prompt[1:], scored, strict=True)]
        assert torch.allclose(torch.tensor(found), expected, atol=1e-4)


async def test_prompts_that_cannot_be_scored_are_refused(serve):
    server = await serve(context=16)
    for prompt, wrong in (([1, [2]], "mixes"), ([[1] * 16], "maximum context length"), ([[]], "one or more")):
        body = {"model": "policy", "prompt": prompt, "max_tokens": 1, "prompt_logprobs": 0}
        status, reply, _ = await post(server, "/v1/completions", body)
        assert status == 400 and wrong in reply["error"]["message"]
    status, reply, _ = await post(
        server, "/v1/completions", {"model": "policy", "prompt": [1, 2], "prompt_logprobs": 5}
    )
    assert status == 400 and "prompt_logprobs" in reply["error"]["message"]
