"""What servers say instead of a completion (refusals.toml raw), what it means, and whose fault it is."""

import json
import tomllib
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from orchard.schemas.campaigns import Budget, ModelSpec, Timeouts
from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.schemas.tasks import Task
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.failures import InfrastructureError
from orchard.workers.harnesses import get_harness
from orchard.workers.harnesses.interface import Episode, Harness
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.errors import ContextLengthExceeded
from orchard.workers.llm.known_errors import KNOWN, meaning, samples_anew
from orchard.workers.llm.refusals import ErrorBody, Meaning, error_of
from orchard.workers.llm.settings import EndpointSettings, Price

REFUSALS = tomllib.loads((Path(__file__).parent / "refusals.toml").read_text())["refusal"]
LLAMA_UNPARSED = next(
    each["body"] for each in REFUSALS if each["server"] == "llama.cpp" and each["means"] == "unparsed"
)
LLAMA_CONTEXT = next(
    each["body"] for each in REFUSALS if each["server"] == "llama.cpp" and each["means"] == "context_exceeded"
)
HELLO = [{"role": "user", "content": "hello"}]
MODEL = ModelSpec(name="m")
TOOL = {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {}}}


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: f"{each['server']} {each['status']}")
def test_each_servers_words_have_their_meaning(refusal):
    body = error_of(refusal["body"].encode())
    assert meaning(refusal["status"], body).value == refusal["means"], body
    assert body.retry_seconds == refusal.get("retry_seconds")


def test_of_each_server_there_is_what_it_says_of_its_context_its_load_and_its_users():
    hosted = {"OpenAI", "Anthropic", "Gemini", "Azure", "Bedrock"}
    servers = hosted | {"vLLM", "SGLang", "TGI", "llama.cpp", "Ollama", "LM Studio", "LiteLLM"}
    told = {(each["server"], each["means"]) for each in REFUSALS}
    assert {(server, means) for server in servers for means in ("context_exceeded", "refused")} <= told
    busy = {server for server, means in told if means in ("throttled", "transient")}
    assert busy >= servers - {"LM Studio"}  # it queues


def test_each_line_of_the_table_is_somebodys():
    used = set()
    for refusal in REFUSALS:
        body = error_of(refusal["body"].encode())
        for known in KNOWN:
            if known.kinds & body.kinds or (known.words and known.words.search(body.message)):
                used.add(known)
    assert used == set(KNOWN)


@pytest.mark.parametrize(
    "words",
    [
        "the assistant said: maximum context length is 9",
        "The model produced output that does not match the expected json format",
    ],
)
def test_what_a_validation_error_quotes_of_the_request_has_no_meaning(words):
    body = ErrorBody(message=f"1 validation error: [{{'type': 'string_type', 'input': '{words}'}}]")
    assert meaning(400, body) is Meaning.REFUSED


def test_both_sizes_are_in_the_text_where_llama_cpp_has_them_beside_it():
    body = error_of(b'{"error": {"message": "the request exceeds", "n_prompt_tokens": 1531, "n_ctx": 1024}}')
    assert body.message == "the request exceeds (1531 tokens, the context has 1024)"


def test_another_seed_is_for_errors_that_may_lie_in_what_was_sampled():
    assert [status for status in (200, 408, 429, 500, 502, 503, 504, 507, 529) if samples_anew(status)] == [
        *(200, 500, 507)
    ]


# --- through the client ---------------------------------------------------------------------------


@pytest.fixture
def call(endpoint):
    async def run(*, tools=(), messages=HELLO, **settings):
        settings = EndpointSettings(**{"base_url": endpoint.url, **settings})
        async with ModelClient({"default": settings}) as client:
            return await client.complete(MODEL, messages, list(tools), seed=7, timeout=20.0)

    return run


@pytest.mark.parametrize("status", [500, 200])
async def test_an_answer_that_its_server_cannot_read_is_the_models_and_asked_for_once(endpoint, call, status):
    endpoint.answer(LLAMA_UNPARSED.encode(), status=status)
    answer = await call()
    assert (answer.text, answer.tool_calls, answer.finish_reason) == ("", (), "unparsed")
    assert (answer.tries, len(endpoint.requests)) == (1, 1)


async def test_an_answer_that_cannot_be_read_may_fail_in_the_middle_of_a_stream(endpoint, call):
    begun = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "I"}, "finish_reason": None}]}
    error = json.dumps(json.loads(LLAMA_UNPARSED))

    async def stream(_):
        text = f"data: {json.dumps(begun)}\n\ndata: {error}\n\n"
        return web.Response(text=text, content_type="text/event-stream")

    endpoint.replies.append(stream)
    answer = await call(stream=True)
    assert (answer.finish_reason, answer.tries, len(endpoint.requests)) == ("unparsed", 1, 1)


@pytest.mark.parametrize("reason", ["function_call_filter: MALFORMED_FUNCTION_CALL", "malformed_tool_use"])
async def test_an_ending_may_say_that_a_call_could_not_be_read(endpoint, call, reason):
    """Gemini's and Bedrock's words, the latter through routers."""
    reply = endpoint.completion("")
    reply["choices"][0]["finish_reason"] = reason
    endpoint.answer(reply)
    assert (await call()).finish_reason == "unparsed"


async def test_an_error_without_a_code_inside_of_a_reply_is_read_too(endpoint, call):
    """As LM Studio says with status 200 that the context is full."""
    endpoint.answer({"error": "the initial prompt is greater than the context length"})
    with pytest.raises(ContextLengthExceeded):
        await call()


async def test_a_failure_at_one_request_is_tried_with_another_seed_which_is_recorded(endpoint, call):
    for _ in range(2):
        endpoint.answer({"error": {"message": "Compute error.", "code": 500}}, status=500)
    endpoint.says("at last")
    answer = await call()
    assert [sent["seed"] for sent in endpoint.requests] == [7, 8, 9]
    assert (answer.seed, answer.tries) == (9, 3)


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504, 529])
async def test_who_has_not_sampled_is_asked_the_same_again(endpoint, call, status):
    endpoint.answer({"error": {"message": "later"}}, status=status, headers={"Retry-After": "0"})
    endpoint.says("at last")
    assert (await call()).seed == 7
    assert endpoint.requests[0] == endpoint.requests[1]


async def test_the_configurations_seed_is_kept(endpoint, call):
    endpoint.answer({"error": {"message": "Compute error."}}, status=500)
    endpoint.says("at last")
    answer = await call(extra_body={"seed": 3})
    assert [sent["seed"] for sent in endpoint.requests] == [3, 3]
    assert answer.seed == 3


# --- whether the model is told of its tools -------------------------------------------------------

PROMPT = [{"role": "user", "content": "word " * 100}]


def counted(endpoint, tokens, text="x", **fields):
    endpoint.says(text, usage={"prompt_tokens": tokens, "completion_tokens": 1}, **fields)


@pytest.mark.parametrize(("tokens", "left_out"), [(31, True), (900, False)])
async def test_a_template_that_leaves_tools_out_is_noticed_at_the_first_reply(
    endpoint, caplog, tokens, left_out
):
    """By the tokens of one short question with a long tool, asked once."""
    counted(endpoint, 120)
    counted(endpoint, tokens)
    counted(endpoint, 120)
    settings = EndpointSettings(base_url=endpoint.url, prices={"m": Price(prompt=1.0, completion=1.0)})
    async with ModelClient({"default": settings}) as client:
        answers = [await client.complete(MODEL, PROMPT, [TOOL], seed=7, timeout=20.0) for _ in range(2)]
    assert [answer.tools_left_out for answer in answers] == [left_out, left_out]
    assert len(endpoint.requests) == 3
    asked = endpoint.requests[1]
    assert asked["max_tokens"] == 1 and len(json.dumps(asked)) < 6000
    assert answers[0].cost_usd == pytest.approx((121 + tokens + 1) / 1e6)  # and the question's
    assert answers[1].cost_usd == pytest.approx(121 / 1e6)
    assert ("leaves tools out" in caplog.text) is left_out


async def test_an_answer_with_a_call_proves_that_tools_are_told(endpoint, call):
    endpoint.says("", "ls", usage={"prompt_tokens": 120, "completion_tokens": 1})
    assert (await call(tools=[TOOL], messages=PROMPT)).tools_left_out is False
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 3, "completion_tokens": 1}])
async def test_a_count_that_cannot_be_true_tells_nothing(endpoint, call, usage):
    endpoint.says("x", usage=usage)
    assert (await call(tools=[TOOL], messages=PROMPT)).tools_left_out is None
    assert len(endpoint.requests) == 1


async def test_a_question_that_is_refused_costs_nothing_else(endpoint, call):
    counted(endpoint, 120, "mine")
    endpoint.answer({"error": {"message": "no"}}, status=400)
    answer = await call(tools=[TOOL], messages=PROMPT)
    assert (answer.text, answer.tools_left_out) == ("mine", None)


# --- in an attempt --------------------------------------------------------------------------------


@pytest.fixture
def run(task: Task, machine, models, blobs):
    async def run(harness: Harness, **fields):
        published: list[msgspec.Struct] = []

        async def publish(data: msgspec.Struct) -> None:
            published.append(data)

        episode = Episode(
            task=task,
            machine=machine,
            model=models,
            student=MODEL,
            trace=MessageTree(publish, blobs),
            budget=Budget(),
            timeouts=Timeouts(),
            seed=1,
            **fields,
        )
        return await harness.run(episode), published

    return run


async def test_a_first_prompt_that_does_not_fit_is_configuration_and_says_both_sizes(run, endpoint):
    endpoint.answer(LLAMA_CONTEXT.encode(), status=400)
    with pytest.raises(InfrastructureError, match=r"1531 tokens.*1024 tokens.*larger context") as caught:
        await run(get_harness("orchard-bash"))
    assert (caught.value.cause, caught.value.retryable) == (AbortCause.CONTEXT_TOO_SMALL, False)


async def test_three_answers_that_cannot_be_read_end_as_a_format_failure(run, endpoint):
    for _ in range(3):
        endpoint.answer(LLAMA_UNPARSED.encode(), status=500)
    result, published = await run(get_harness("orchard-bash"))
    assert result.exit_status is ExitStatus.FORMAT_FAILURE
    assert len(endpoint.requests) == 3
    calls = [data for data in published if isinstance(data, LLMCall)]
    assert [(call.finish_reason, call.seed) for call in calls] == [("unparsed", 1)] * 3


class Desk:
    """A world with one tool."""

    about = "A desk."
    tools = (TOOL,)

    async def call(self, _):
        return CommandOutcome(output="done", returncode=0, seconds=0.0), "done"


async def test_an_assistant_that_cannot_be_read_has_not_answered(run, endpoint):
    """An answer without a call is an assistant's last word: one that nobody can read is none."""
    endpoint.answer(LLAMA_UNPARSED.encode(), status=500)
    endpoint.says("Here you are.")
    result, _ = await run(get_harness("claw-react"), world=Desk())
    assert result.exit_status is ExitStatus.FINISHED
    assert "could not be read" in endpoint.requests[1]["messages"][-1]["content"]


async def test_an_assistant_that_cannot_be_read_three_times_is_a_format_failure(run, endpoint):
    for _ in range(3):
        endpoint.answer(LLAMA_UNPARSED.encode(), status=500)
    result, _ = await run(get_harness("claw-react"), world=Desk())
    assert result.exit_status is ExitStatus.FORMAT_FAILURE


async def test_an_assistants_first_prompt_that_does_not_fit_is_configuration(run, endpoint):
    endpoint.answer(LLAMA_CONTEXT.encode(), status=400)
    with pytest.raises(InfrastructureError) as caught:
        await run(get_harness("claw-react"), world=Desk())
    assert caught.value.cause is AbortCause.CONTEXT_TOO_SMALL
