"""`orchard rl` with experts that cannot be replayed: refused before anything is queued, in a sentence."""

from pathlib import Path

import msgspec
import pytest

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError, load
from orchard.pipelines.models.directories import load_tokenizer, save_model
from orchard.pipelines.rl.settings import EngineKind, RlSettings, RouterReplay
from orchard.processes.rl_run import enter
from orchard.storage.errors import StorageError
from orchard.streams.server import EmbeddedServer
from orchard.workers.llm.settings import EndpointSettings
from tests.pipelines.moe import tiny_moe
from tests.pipelines.policy.small_models import write_model

EXPERTS = {"return_token_ids": True, "logprobs": True, "return_routed_experts": True}


@pytest.fixture
def session_with(nats_server: EmbeddedServer, tmp_path: Path):
    def made(extra_body: dict[str, bool]) -> Session:
        config = load({"store": str(tmp_path / "store"), "nats.url": nats_server.url})
        policy = EndpointSettings(base_url="http://127.0.0.1:1/v1", extra_body=extra_body)
        return Session(msgspec.structs.replace(config, endpoints={"policy": policy}))

    return made


@pytest.mark.parametrize("engine", EngineKind)
async def test_an_endpoint_that_does_not_ask_for_experts_is_refused(
    session_with, tmp_path: Path, engine: EngineKind
) -> None:
    """vLLM reports them by an option of its own; there and with the field, the missing store is the next
    obstacle."""
    directory = write_model(tmp_path / "model")
    tokenizer = load_tokenizer(directory)
    save_model(tiny_moe(len(tokenizer)), directory, tokenizer=tokenizer)
    settings = RlSettings(
        run="moe",
        model=str(directory),
        out=str(tmp_path / "out"),
        router_replay=RouterReplay.ROLLOUT,
        engine=engine,
    )
    silent = {name: True for name in EXPERTS if name != "return_routed_experts"}
    refused: tuple[type[Exception], str] = ConfigError, "return_routed_experts = true to extra_body"
    if engine is EngineKind.VLLM:
        refused = StorageError, "there is no store"
    with pytest.raises(refused[0], match=refused[1]):
        await enter(session_with(silent), settings)
    with pytest.raises(StorageError, match="there is no store"):
        await enter(session_with(EXPERTS), settings)
