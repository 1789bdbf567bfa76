"""`transformers serve`, with a tiny model of random weights."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchard.schemas.outcomes import AbortCause
from orchard.workers.failures import InfrastructureError
from tests.adapters.serving import HELLO, TOOL, ask, free_port, python, running

PROMPT = [{"role": "user", "content": "List the files of this directory, and say which is the newest. " * 6}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Its base URL, and the name of its model."""
    model, port = tmp_path_factory.mktemp("model"), free_port()
    script = Path(__file__).with_name("tiny_server.py")
    with running([python("transformers"), script, model, str(port)], stderr=subprocess.DEVNULL):
        yield f"http://127.0.0.1:{port}/v1", str(model)


@pytest.mark.parametrize("stream", [False, True])
async def test_it_answers_when_it_has_started(served: tuple[str, str], stream: bool) -> None:
    url, model = served
    answer = await ask(url, model=model, max_tries=1000, stream=stream)
    assert answer.finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens


async def test_its_template_leaves_tools_out_and_is_told_of(served: tuple[str, str]) -> None:
    url, model = served
    answer = await ask(url, PROMPT, model=model, tools=[TOOL])
    assert (answer.tools_left_out, answer.tool_calls) == (True, ())


async def test_a_model_that_it_cannot_load_is_told(served: tuple[str, str]) -> None:
    url, _ = served
    with pytest.raises(InfrastructureError) as caught:
        await ask(url, HELLO, model="nobody/has-this", max_tries=2)
    assert caught.value.cause in (AbortCause.LLM_REFUSED, AbortCause.LLM_UNAVAILABLE)
