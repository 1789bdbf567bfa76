"""llama.cpp's own server, with a real model of 135 million parameters: as users run it at home."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchard.schemas.outcomes import AbortCause
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.errors import ContextLengthExceeded
from tests.adapters.serving import (
    BROKEN_CALL,
    HELLO,
    TOOL,
    TOOL_TEMPLATE,
    ask,
    free_port,
    llama,
    python,
    running,
)

PROMPT = [{"role": "user", "content": "List the files of this directory, and say which is the newest. " * 6}]


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with llama() as url:
        yield url


@pytest.fixture(scope="module")
def with_tools() -> Iterator[str]:
    with llama(chat_template=TOOL_TEMPLATE, api_keys=["right"]) as url:
        yield url


@pytest.fixture
def right(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("LLAMA_KEY", "right")
    return "LLAMA_KEY"


async def test_a_conversation_grows_beyond_the_context(plain: str) -> None:
    answer = await ask(plain)
    assert answer.usage.prompt_tokens and answer.usage.completion_tokens
    grown = [
        *HELLO,
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": "word " * 1500},
    ]
    with pytest.raises(ContextLengthExceeded, match=r"15\d\d tokens.*1024 tokens"):
        await ask(plain, grown)
    with pytest.raises(ContextLengthExceeded):
        await ask(plain, grown, stream=True)


async def test_an_answer_that_fills_the_context_is_cut(plain: str) -> None:
    answer = await ask(plain, [{"role": "user", "content": "Count: " + "one " * 930}], max_tokens=None)
    assert answer.finish_reason in ("length", "stop")
    assert (answer.usage.prompt_tokens or 0) + (answer.usage.completion_tokens or 0) <= 1024


async def test_its_template_leaves_tools_out_and_is_told_of(plain: str) -> None:
    answer = await ask(plain, PROMPT, tools=[TOOL])
    assert (answer.tools_left_out, answer.tool_calls) == (True, ())


async def test_a_template_with_tools_is_not(with_tools: str, right: str) -> None:
    assert (await ask(with_tools, PROMPT, tools=[TOOL], api_key_env=right)).tools_left_out is False


@pytest.mark.parametrize("stream", [False, True])
async def test_what_it_cannot_parse_is_the_models_answer(with_tools: str, right: str, stream: bool) -> None:
    """A call that breaks off, at max_tokens as well: asked for once."""
    broken = [*HELLO, {"role": "assistant", "content": BROKEN_CALL}]
    answer = await ask(with_tools, broken, tools=[TOOL], max_tokens=16, stream=stream, api_key_env=right)
    assert (answer.finish_reason, answer.text, answer.tries) == ("unparsed", "", 1)


async def test_a_wrong_key_is_told(with_tools: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_KEY", "wrong")
    with pytest.raises(InfrastructureError, match="LLAMA_KEY") as caught:
        await ask(with_tools, api_key_env="LLAMA_KEY")
    assert caught.value.cause is AbortCause.LLM_REFUSED


async def test_calls_wait_for_its_only_slot(plain: str) -> None:
    answers = await asyncio.gather(*(ask(plain) for _ in range(4)))
    assert [answer.tries for answer in answers] == [1] * 4


async def test_calls_go_on_while_it_starts_and_loads() -> None:
    """Nobody listens, then it says that it loads its model."""
    port = free_port()
    asking = asyncio.create_task(ask(f"http://127.0.0.1:{port}/v1", max_tries=1000))
    script = Path(__file__).with_name("llama_server.py")
    command = [python("llama.cpp"), script, json.dumps({"port": port})]
    with running(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        assert (await asking).tries > 1
