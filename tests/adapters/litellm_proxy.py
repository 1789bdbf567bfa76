"""LiteLLM's proxy before llama.cpp's server: what the server behind says still has its meaning."""

import json
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

KEY = "sk-front"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With the models `small`, `locked` (a wrong key behind it) and `dead` (nobody behind it)."""
    directory, port = tmp_path_factory.mktemp("litellm"), free_port()
    with llama(chat_template=TOOL_TEMPLATE, api_keys=["right"]) as url:
        behind = {
            "small": (url, "right"),
            "locked": (url, "wrong"),
            "dead": ("http://127.0.0.1:9/v1", "right"),
        }
        configuration = {
            "model_list": [
                {
                    "model_name": name,
                    "litellm_params": {"model": "openai/small", "api_base": base, "api_key": key},
                }
                for name, (base, key) in behind.items()
            ],
            "litellm_settings": {"num_retries": 0},
            "general_settings": {"master_key": KEY},
        }
        file = directory / "config.yaml"
        file.write_text(json.dumps(configuration))  # JSON is YAML
        options = ["--config", file, "--host", "127.0.0.1", "--port", str(port)]
        command = [python("litellm").with_name("litellm"), *options]
        log = directory / "log"
        with log.open("w") as out, running(command, stdout=out, stderr=out, cwd=directory, env=_alone()):
            yield f"http://127.0.0.1:{port}/v1"


def _alone() -> dict[str, str]:
    """The environment of a proxy that asks nobody else."""
    path = str(Path(python("litellm")).parent)
    return {"PATH": f"{path}:/usr/bin:/bin", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRONT_KEY", KEY)


FRONT = {"api_key_env": "FRONT_KEY"}


async def test_it_answers_when_it_has_started(proxy: str) -> None:
    answer = await ask(proxy, max_tries=1000, **FRONT)
    assert answer.usage.prompt_tokens and answer.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_context_behind_it_is_told_with_both_sizes(proxy: str, stream: bool) -> None:
    long = [{"role": "user", "content": "word " * 1500}]
    with pytest.raises(ContextLengthExceeded, match=r"15\d\d tokens.*1024 tokens"):
        await ask(proxy, long, stream=stream, **FRONT)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_server_behind_it_cannot_parse_is_the_models(proxy: str, stream: bool) -> None:
    broken = [*HELLO, {"role": "assistant", "content": BROKEN_CALL}]
    answer = await ask(proxy, broken, tools=[TOOL], max_tokens=16, stream=stream, **FRONT)
    assert (answer.finish_reason, answer.tries) == ("unparsed", 1)


@pytest.mark.parametrize(("model", "front"), [("locked", KEY), ("nope", KEY), ("small", "sk-wrong")])
async def test_a_wrong_key_behind_it_or_of_it_and_an_unknown_model_are_refusals(
    proxy: str, monkeypatch: pytest.MonkeyPatch, model: str, front: str
) -> None:
    monkeypatch.setenv("FRONT_KEY", front)
    with pytest.raises(InfrastructureError) as caught:
        await ask(proxy, model=model, **FRONT)
    assert caught.value.cause is AbortCause.LLM_REFUSED


async def test_nobody_behind_it_is_no_answer_and_no_refusal(proxy: str) -> None:
    with pytest.raises(InfrastructureError, match="Connection error") as caught:
        await ask(proxy, model="dead", max_tries=2, **FRONT)
    assert caught.value.cause is AbortCause.LLM_UNAVAILABLE
