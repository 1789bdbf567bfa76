"""The experts that the policy server reports are those that `transformers` chooses on the same tokens."""

import base64
import copy
import io

import numpy as np
import pytest
import torch

from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.pipelines.models.directories import load_tokenizer, save_model
from orchard.pipelines.models.routers import Routers
from orchard.pipelines.policy.engine import EngineSettings, GenerationEngine
from orchard.pipelines.policy.sampling import Sampling
from orchard.pipelines.policy.weights import ServedModel
from tests.pipelines.moe import tiny_moe
from tests.pipelines.policy.small_models import TEXTS
from tests.pipelines.policy.test_server import post

VOCABULARY = 61
PATIENCE = 60


def chosen(model, ids) -> np.ndarray:
    """[tokens but the last, routers, experts of a token], by transformers."""
    with torch.no_grad(), Routers(model).recording() as choices:
        model(torch.tensor([ids]))
    return torch.stack(choices, dim=1).numpy()[:-1]


@pytest.fixture
def engine_of():
    running = []

    def start(model, **settings):
        served = ServedModel(copy.deepcopy(model))
        engine = GenerationEngine(served, 0, EngineSettings(slots=4, context=128, **settings))
        engine.start()
        running.append(engine)
        return engine

    yield start
    for engine in running:
        engine.stop(0.0)


@pytest.mark.parametrize("prefix_cache", [False, True], ids=["", "prefix cache"])
def test_every_token_of_a_batch_has_its_experts(engine_of, prefix_cache):
    model = tiny_moe(VOCABULARY)
    engine = engine_of(model, prefix_cache=prefix_cache)
    prompts = [list(range(3, 3 + length)) for length in (1, 5, 9, 30, 31)]
    for seed in range(2):
        asked = [engine.submit(prompt, Sampling(max_tokens=12, seed=seed), routed=True) for prompt in prompts]
        answers = [each.result(PATIENCE) for each in asked]
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.experts.dtype == np.uint8
            assert np.array_equal(answer.experts, chosen(model, prompt + answer.ids))
    assert any(answer.cached for answer in answers) is prefix_cache
    assert engine.submit([3], Sampling(max_tokens=2)).result(PATIENCE).experts is None


def test_more_than_256_experts_and_dense_layers(engine_of):
    many = tiny_moe(VOCABULARY, num_experts=300)
    answer = engine_of(many).submit([5, 6, 7], Sampling(max_tokens=40), routed=True).result(PATIENCE)
    assert answer.experts.dtype == np.uint16
    assert answer.experts.max() > 255
    assert np.array_equal(answer.experts, chosen(many, [5, 6, 7, *answer.ids]))
    mixed = tiny_moe(VOCABULARY, mlp_only_layers=[0])
    answer = engine_of(mixed).submit([5, 6, 7], Sampling(max_tokens=9), routed=True).result(PATIENCE)
    assert not answer.experts[:, 0].any()
    assert np.array_equal(answer.experts[:, 1:], chosen(mixed, [5, 6, 7, *answer.ids]))


def test_new_weights_do_not_change_the_experts_of_what_was_read(engine_of):
    """A token's probability belongs to the experts of the pass that sampled it."""
    model, other = tiny_moe(VOCABULARY), tiny_moe(VOCABULARY, seed=1)
    engine = engine_of(model)
    exchanged = []

    def exchange(ids):
        if len(ids) == 6:
            exchanged.append(engine.reload(ServedModel(copy.deepcopy(other)), 1))
        return False

    answer = engine.submit([5, 6, 7], Sampling(max_tokens=12), exchange, routed=True).result(PATIENCE)
    assert [(run.start, run.version) for run in answer.versions] == [(0, 0), (6, 1)]
    whole = [5, 6, 7, *answer.ids]
    before, after = chosen(model, whole), chosen(other, whole)
    assert len(answer.experts) == len(whole) - 1
    assert np.array_equal(answer.experts[: 3 + 5], before[: 3 + 5])
    assert np.array_equal(answer.experts[3 + 5 :], after[3 + 5 :])
    assert not np.array_equal(before, after)


async def test_the_wire_is_vllms_and_a_dense_model_has_none(serve, tmp_path):
    train_tokenizer(TEXTS, 340, tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    model = tiny_moe(len(tokenizer))
    save_model(model, tmp_path, tokenizer=tokenizer)
    server = await serve(tmp_path)
    asked = {"model": "policy", "max_tokens": 8, "return_routed_experts": True, "return_token_ids": True}
    said = [{"role": "user", "content": "Fix add.py"}]
    _, chat, _ = await post(server, "/v1/chat/completions", asked | {"messages": said})
    _, text, _ = await post(server, "/v1/completions", asked | {"prompt": [[5, 6], [7, 8, 9]]})
    read = [(chat["prompt_token_ids"], chat["choices"][0])]
    read += [(choice["prompt_token_ids"], choice) for choice in text["choices"]]
    for prompt, choice in read:
        experts = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])), allow_pickle=False)
        assert np.array_equal(experts, chosen(model, prompt + choice["token_ids"]))
    _, plain, _ = await post(server, "/v1/completions", {"model": "policy", "max_tokens": 2, "prompt": [5]})
    assert "routed_experts" not in plain["choices"][0]
    status, refused, _ = await post(await serve(), "/v1/completions", asked | {"prompt": [5]})
    assert status == 400
    assert "no experts to report" in refused["error"]["message"]
