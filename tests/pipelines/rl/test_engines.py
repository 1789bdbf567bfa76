"""Policies reach SGLang and vLLM: servers that speak their routes over real HTTP, and the trainer beside."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import torch

from orchard.pipelines.policy.engine import EngineSettings
from orchard.pipelines.policy.server import PolicyServer
from orchard.pipelines.policy.weights import load_weights
from orchard.pipelines.rl import engines
from orchard.pipelines.rl import trainer as trainer_module
from orchard.pipelines.rl.coordinator import RunError, begin
from orchard.pipelines.rl.engines import Refused, ServingEngine, all_serve
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.policies import NEWEST, Newest, policy_directory, write_newest
from orchard.pipelines.rl.settings import EngineKind, RlSettings, settings_from
from orchard.pipelines.rl.trainer import RlTrainer
from orchard.pipelines.sft.settings import Lora, TrainingError
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.terminal.errors import mistakes
from tests.pipelines.policy.small_models import write_model
from tests.pipelines.rl.engine_servers import ForeignServer
from tests.pipelines.rl.test_learner import ALONE
from tests.pipelines.rl.written_log import plan_of, run_settings, whole_group

VLLM_BEGIN = ["/pause?mode=keep", "/update_weight_version"]
VLLM_END = ["/reset_prefix_cache?reset_running_requests=true", "/update_weight_version", "/resume"]
CALLS = {
    EngineKind.SGLANG: ["/pause_generation", "/update_weights_from_disk", "/continue_generation"],
    EngineKind.VLLM: [*VLLM_BEGIN, "/collective_rpc", *VLLM_END],
}
ADAPTER_CALLS = [*VLLM_BEGIN, "/v1/load_lora_adapter", *VLLM_END]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("engines") / "model")


@pytest.fixture
async def behind(directory: Path) -> AsyncIterator[PolicyServer]:
    async with PolicyServer(directory, settings=EngineSettings(slots=8, context=128)) as server:
        yield server


async def a_trainer(
    connection: Connection, tmp_path: Path, settings: RlSettings, *foreign: ForeignServer
) -> tuple[RlTrainer, RunPlan, int]:
    plan, blobs = plan_of(settings), BlobStore(str(tmp_path / "store"))
    start = await begin(connection, blobs, plan)
    adapter = "policy" if settings.lora else None
    each = [ServingEngine(one.kind, one.address, plan.name, adapter=adapter) for one in foreign]
    return RlTrainer(settings, plan, connection, blobs, ALONE, engines=each), plan, start


def engine_of(foreign: ForeignServer) -> ServingEngine:
    return ServingEngine(foreign.kind, foreign.address, "run")


async def groups(connection: Connection, plan: RunPlan, *prompts: int) -> None:
    for prompt in prompts:
        await Publisher(connection).events(whole_group(plan, prompt))


def same_weights(server: PolicyServer, policy: Path) -> bool:
    found = load_weights(policy, device=torch.device("cpu"), dtype=torch.float32)
    served = server.engine._model
    pairs = zip(found._decoder.parameters(), served._decoder.parameters(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "lora"),
    [(EngineKind.SGLANG, None), (EngineKind.VLLM, None), (EngineKind.VLLM, Lora(rank=2))],
    ids=str,
)
async def test_each_policy_reaches_the_engine(
    connection: Connection,
    directory: Path,
    behind: PolicyServer,
    tmp_path: Path,
    kind: EngineKind,
    lora: Lora | None,
) -> None:
    settings = run_settings(str(directory), str(tmp_path / "out"), steps=2, engine=kind, lora=lora)
    async with ForeignServer(kind, behind) as foreign:
        trainer, plan, start = await a_trainer(connection, tmp_path, settings, foreign)
        await groups(connection, plan, 0, 1, 2, 3)
        await asyncio.wait_for(trainer.run(start), 240)
        engine = ServingEngine(kind, foreign.address, plan.name)
        assert await engine.version() == 2
        await engine.wait_for(1)
    once = ADAPTER_CALLS if lora else CALLS[kind]
    assert foreign.calls == once * 3, "version 0 is there before the first rollout"
    assert same_weights(behind, policy_directory(tmp_path / "out", 2))
    assert not same_weights(behind, directory)


async def test_a_request_that_comes_meanwhile_is_kept_and_answered_by_the_new_policy(
    directory: Path, behind: PolicyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = write_model(tmp_path / "version-000007", seed=5, tokenizer=directory)
    async with ForeignServer(EngineKind.SGLANG, behind) as foreign, aiohttp.ClientSession() as session:
        body = {"model": "policy", "prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True}
        asked: list[asyncio.Task[aiohttp.ClientResponse]] = []
        load = foreign._load

        async def while_loading(path: str) -> None:
            asked.append(asyncio.create_task(session.post(f"{foreign.address}/v1/completions", json=body)))
            await foreign.waiting.wait()
            await load(path)

        monkeypatch.setattr(foreign, "_load", while_loading)
        await engine_of(foreign).take(Newest(path=str(new), version=7))
        reply = await asked[0]
        (choice,) = (await reply.json())["choices"]
    assert choice["policy_versions"] == [{"start": 0, "version": 7}]


@pytest.mark.long
async def test_an_engine_that_was_started_again_gets_the_newest_policy(
    connection: Connection,
    directory: Path,
    behind: PolicyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer_module, "LOOK_SECONDS", 0.02)
    settings = run_settings(str(directory), str(tmp_path / "out"), steps=2, engine=EngineKind.SGLANG)
    async with ForeignServer(EngineKind.SGLANG, behind) as foreign, asyncio.timeout(240):
        trainer, plan, start = await a_trainer(connection, tmp_path, settings, foreign)
        running = asyncio.create_task(trainer.run(start))
        await groups(connection, plan, 0, 1)
        engine = engine_of(foreign)
        await engine.wait_for(1)
        foreign.weight_version = "default"
        await engine.wait_for(1)
        await groups(connection, plan, 2, 3)
        await running
    assert foreign.weight_version == "run#2"


async def test_an_engine_gets_nothing_that_an_earlier_run_left(
    connection: Connection,
    directory: Path,
    behind: PolicyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer_module, "LOOK_SECONDS", 0.0)
    out = tmp_path / "out"
    settings = run_settings(str(directory), str(out), steps=1, engine=EngineKind.SGLANG)
    left = write_model(policy_directory(out, 0), seed=5, tokenizer=directory)
    write_newest(out / NEWEST, Newest(version=0, path=str(left)), keep=2)
    async with ForeignServer(EngineKind.SGLANG, behind) as foreign, asyncio.timeout(240):
        trainer, plan, start = await a_trainer(connection, tmp_path, settings, foreign)
        loop, write, given = asyncio.get_running_loop(), trainer._write_policy, []

        async def looks() -> None:
            """Long enough for looks at the engine."""
            for _ in range(30):
                await engine_of(foreign).version()

        def slowly() -> None:
            asyncio.run_coroutine_threadsafe(looks(), loop).result()
            given.append(len(foreign.calls))
            write()

        monkeypatch.setattr(trainer, "_write_policy", slowly)
        await groups(connection, plan, 0, 1)
        await trainer.run(start)
    assert given[0] == 0


async def test_a_policy_that_is_refused_again_and_again_ends_the_run_and_pauses_nothing(
    connection: Connection,
    directory: Path,
    behind: PolicyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer_module, "LOOK_SECONDS", 0.02)
    settings = run_settings(str(directory), str(tmp_path / "out"), steps=2, engine=EngineKind.SGLANG)
    async with ForeignServer(EngineKind.SGLANG, behind) as foreign:
        foreign.refuses = 400
        trainer, _, start = await a_trainer(connection, tmp_path, settings, foreign)
        with pytest.raises(RunError, match="was refused 5 times: the engine at http"):
            await asyncio.wait_for(trainer.run(start), 240)
        assert not foreign.paused
    assert foreign.calls == CALLS[EngineKind.SGLANG] * 5


async def test_a_server_that_is_away_keeps_no_other_from_its_policies_and_the_run_from_no_end(
    connection: Connection, directory: Path, behind: PolicyServer, tmp_path: Path
) -> None:
    settings = run_settings(str(directory), str(tmp_path / "out"), steps=1, engine=EngineKind.SGLANG)
    async with ForeignServer(EngineKind.SGLANG, behind) as there:
        async with ForeignServer(EngineKind.SGLANG, behind) as away:
            both = [engine_of(away), engine_of(there)]
            trainer, plan, start = await a_trainer(connection, tmp_path, settings, away, there)
        await groups(connection, plan, 0, 1)
        await asyncio.wait_for(trainer.run(start), 240)
        assert there.weight_version == "run#1"
        await all_serve(both[1:], 1)
        for order in (both, both[::-1]):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(all_serve(order, 1), 0.1)


async def test_of_several_servers_the_one_that_refuses_is_named(
    connection: Connection,
    directory: Path,
    behind: PolicyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer_module, "LOOK_SECONDS", 0.02)
    settings = run_settings(str(directory), str(tmp_path / "out"), steps=2, engine=EngineKind.SGLANG)
    async with (
        ForeignServer(EngineKind.SGLANG, behind) as refusing,
        ForeignServer(EngineKind.SGLANG, behind) as taking,
    ):
        refusing.refuses = 400
        trainer, _, start = await a_trainer(connection, tmp_path, settings, refusing, taking)
        with pytest.raises(RunError, match=f"was refused 5 times: the engine at {refusing.address} "):
            await asyncio.wait_for(trainer.run(start), 240)
        assert not taking.paused


async def test_a_trainer_does_not_end_before_its_last_policy_is_served(
    connection: Connection,
    directory: Path,
    behind: PolicyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine is not resumed by the tries of the first time."""
    monkeypatch.setattr(trainer_module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(engines, "RESUME_PAUSES", (0.01,))
    settings = run_settings(str(directory), str(tmp_path / "out"), steps=1, engine=EngineKind.SGLANG)
    async with ForeignServer(EngineKind.SGLANG, behind) as foreign:
        load, last = foreign._load, str(policy_directory(tmp_path / "out", 1))

        async def and_fail(path: str) -> None:
            foreign.failing = 2 if path == last and last not in foreign.loaded else 0
            await load(path)

        monkeypatch.setattr(foreign, "_load", and_fail)
        trainer, plan, start = await a_trainer(connection, tmp_path, settings, foreign)
        await groups(connection, plan, 0, 1)
        await asyncio.wait_for(trainer.run(start), 240)
        assert (foreign.paused, foreign.loaded.count(last)) == (False, 2)


@pytest.mark.parametrize("kind", CALLS, ids=str)
async def test_generation_is_resumed_where_the_first_tries_fail(
    directory: Path, behind: PolicyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: EngineKind
) -> None:
    monkeypatch.setattr(engines, "RESUME_PAUSES", (0.01, 0.01))
    new = Newest(path=str(write_model(tmp_path / "version-000001", seed=5, tokenizer=directory)), version=1)
    async with ForeignServer(kind, behind) as foreign:
        engine = engine_of(foreign)
        foreign.failing = 2
        await engine.take(new)
        assert not foreign.paused
        foreign.weight_version, foreign.failing = "default", 99
        with pytest.raises(Refused, match=r"stays paused: .* is answered with 503"):
            await engine.take(new)
        assert await engine.version() == 1, "its label is no proof"
        foreign.failing = 0
        await engine.take(new)
        assert not foreign.paused


@pytest.mark.parametrize("kind", CALLS, ids=str)
async def test_what_another_process_gave_an_engine_is_given_again(
    directory: Path, behind: PolicyServer, tmp_path: Path, kind: EngineKind
) -> None:
    """A trainer that is killed leaves its label on a paused engine; a run before left another's, or none."""
    new = Newest(path=str(write_model(tmp_path / "version-000001", seed=5, tokenizer=directory)), version=1)
    async with ForeignServer(kind, behind) as foreign:
        for label, version in (
            ("run#1", 1),
            ("run.1", -1),
            ("other#1", -1),
            ("other#7", -1),
            ("7", -1),
            ("default", -1),
        ):
            foreign.weight_version = label
            foreign.pause()
            engine = engine_of(foreign)
            assert await engine.version() == version
            await engine.take(new)
            await engine.take(new)
            assert (foreign.weight_version, foreign.paused) == ("run#1", False)
        assert foreign.loaded == [new.path] * 6
        foreign.weight_version = "other#7"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.wait_for(0), 0.1)


async def test_what_was_refused_is_said_also_where_generation_is_not_resumed(
    behind: PolicyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "RESUME_PAUSES", (0.01,))
    async with ForeignServer(EngineKind.SGLANG, behind) as foreign:
        foreign.refuses, foreign.failing = 400, 99
        with pytest.raises(Refused, match="answers /update_weights_from_disk with 400"):
            await engine_of(foreign).take(Newest(path="p", version=1))


@pytest.mark.parametrize(("status", "error"), [(500, Refused), (503, aiohttp.ClientError)], ids=str)
async def test_an_error_in_answer_to_weights_is_a_refusal_and_one_of_a_proxy_is_not(
    behind: PolicyServer, status: int, error: type[Exception]
) -> None:
    async with ForeignServer(EngineKind.VLLM, behind) as foreign:
        foreign.refuses, foreign.weight_version = status, "run#0"
        with pytest.raises(error, match=f"answer.* {status}"):
            await engine_of(foreign).take(Newest(path="p", version=1))
        assert not foreign.paused
        assert await engine_of(foreign).version() == -1, "its weights may be half of either policy"


async def test_our_own_server_says_whose_policy_it_serves(directory: Path, behind: PolicyServer) -> None:
    mine, other = (
        ServingEngine(EngineKind.ORCHARD, behind.url.removesuffix("/v1"), run) for run in ("mine", "other")
    )
    assert await mine.version() == -1
    await mine.take(Newest(path=str(directory), version=0))
    assert (await mine.version(), await other.version()) == (0, -1)
    await other.take(Newest(path=str(directory), version=0))
    assert (await mine.version(), await other.version()) == (-1, 0)


async def test_what_an_engine_lacks_is_named(behind: PolicyServer) -> None:
    assert issubclass(Refused, mistakes()), "a coordinator that waits for it says so in one sentence"
    async with ForeignServer(EngineKind.SGLANG, behind) as foreign:
        engine = ServingEngine(EngineKind.VLLM, foreign.address, "run")
        for asked in (engine.version(), engine.take(Newest(path="p", version=1))):
            with pytest.raises(Refused, match="start it with VLLM_SERVER_DEV_MODE=1"):
                await asked
        assert not foreign.calls
        assert await engine_of(foreign).version() == -1
        away = foreign.address
    assert await ServingEngine(EngineKind.SGLANG, away, "run").version() is None
    with pytest.raises(TrainingError, match="SGLang takes whole policies"):
        settings_from({"run": "r", "model": "m", "out": "o", "engine": "sglang", "lora": {}})
