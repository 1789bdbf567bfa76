"""Every family that the server runs, beside `transformers`: tiny random models of the real classes."""

import copy

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.policy.cache import Cache
from orchard.pipelines.policy.engine import EngineSettings, GenerationEngine
from orchard.pipelines.policy.families import FAMILIES, ROPES, check_family
from orchard.pipelines.policy.sampling import Sampling
from orchard.pipelines.policy.weights import ServedModel
from tests.pipelines.policy.small_models import sharp

TOLERANCE = 1e-4
WINDOW = 16
PROMPTS = [3, 70, 1, 33]
"""Tokens of the prompts of a batch: shorter and longer than the sliding window."""
NEW = 12
PATIENCE = 60
SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LONG = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 128,
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [2.0, 3.0, 4.0, 8.0],
    "factor": 2.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def rope(**parameters):
    return {"rope_parameters": {"rope_theta": 10_000.0, **parameters}}


CASES = {
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama untied, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama linear": ("llama", rope(rope_type="linear", factor=4.0)),
    "llama dynamic": ("llama", rope(rope_type="dynamic", factor=4.0)),
    "llama yarn": ("llama", rope(**YARN)),
    "llama llama3": (
        "llama",
        rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "llama longrope": ("llama", rope(**LONG)),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral window": ("mistral", {"sliding_window": WINDOW, "tie_word_embeddings": True}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "sliding_window": WINDOW}),
    "phi3 longrope": ("phi3", {"sliding_window": WINDOW, **rope(**LONG)}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 window of some layers, yarn": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1, **rope(**YARN)},
    ),
    "qwen3 one key head": ("qwen3", {"head_dim": 16, "num_key_value_heads": 1}),
    "qwen3 tied, window": (
        "qwen3",
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 0,
        },
    ),
    "qwen3_moe": ("qwen3_moe", {"head_dim": 16, **EXPERTS, "norm_topk_prob": True}),
    "qwen3_moe, a dense layer, window": (
        "qwen3_moe",
        {**EXPERTS, "mlp_only_layers": [0], "use_sliding_window": True, "sliding_window": WINDOW},
    ),
    "gemma3 text": (
        "gemma3_text",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
}


def config_of(kind, changes):
    return CONFIG_MAPPING[kind](**{**SIZES, **changes})


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def model(request):
    torch.manual_seed(3)
    return sharp(AutoModelForCausalLM.from_config(config_of(*request.param)).eval())


def prompts():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 300, (length,), generator=generator).tolist() for length in PROMPTS]


def expected_logits(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def routed(model):
    """Lists to which each router of the model appends the experts that it chooses [tokens, experts]."""
    found = []
    for name, module in model.named_modules():
        if name.endswith("mlp.gate") and hasattr(module, "top_k"):
            chosen = []
            found.append(chosen)
            module.register_forward_hook(lambda _, __, out, chosen=chosen: chosen.append(out[-1]))
    return found


def test_logits_and_routing_are_those_of_transformers(model):
    """A batch of unequal prompts that is read in two pieces, and a token more of each."""
    served, asked = ServedModel(copy.deepcopy(model)), prompts()
    reference = copy.deepcopy(model)
    cache = Cache(served, slots=8, context=128)
    here = routed(served._decoder)
    there = routed(reference)
    found = {slot: [] for slot in range(len(asked))}
    for begin, end in ((0, 0.6), (0.6, 1)):
        pieces = []
        for slot, prompt in enumerate(asked):
            first, last = int(begin * (len(prompt) - 1)), int(end * (len(prompt) - 1))
            if last > first:
                pieces.append((slot, first, last - first))
        ids = [token for slot, first, count in pieces for token in asked[slot][first : first + count]]
        places = [place for _, first, count in pieces for place in range(first, first + count)]
        padding = -len(ids) % 8
        hidden = served.hidden(
            torch.tensor(ids + [0] * padding),
            torch.tensor(places + [0] * padding),
            cache.filling(pieces, padding),
        )
        rows = served.logits(hidden)[: len(ids)].split([count for _, _, count in pieces])
        for (slot, _, _), part in zip(pieces, rows, strict=True):
            found[slot].append(part)
    idle = 8 - len(asked)
    places = torch.tensor([len(prompt) - 1 for prompt in asked] + [-1] * idle)
    hidden = served.hidden(
        torch.tensor([prompt[-1] for prompt in asked] + [0] * idle), places, cache.decoding(places, 128)
    )
    for slot, row in enumerate(served.logits(hidden)[: len(asked)]):
        logits = torch.cat([*found[slot], row[None]])
        expected = expected_logits(reference, asked[slot])
        assert expected.std() > 0.05
        assert (logits - expected).abs().max() < TOLERANCE
    for ours, theirs in zip(here, there, strict=True):
        last = [chosen[-1] for chosen in theirs]  # of each prompt's last token
        assert torch.equal(ours[-1][: len(asked)], torch.stack(last))


def test_the_most_probable_tokens_are_those_of_transformers(model):
    """Decoding in company, with a cache on both sides."""
    engine = GenerationEngine(
        ServedModel(copy.deepcopy(model)), 1, EngineSettings(slots=8, context=128, prefix_cache=True)
    )
    engine.start()
    sampling = Sampling(max_tokens=NEW, temperature=0.0)
    try:
        futures = [(prompt, engine.submit(prompt, sampling)) for prompt in prompts()]
        answers = [(prompt, future.result(PATIENCE)) for prompt, future in futures]
    finally:
        engine.stop(0)
    for prompt, answer in answers:
        whole = model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        assert answer.ids == whole[0, len(prompt) :].tolist()
        logprobs = expected_logits(model, prompt + answer.ids).log_softmax(-1)[len(prompt) - 1 : -1]
        expected = [row[token].item() for row, token in zip(logprobs, answer.ids, strict=True)]
        assert answer.logprobs == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        ("gemma2", {"head_dim": 16}, "this is gemma2"),
        ("mamba", {}, "this is mamba"),
        ("llama", rope(rope_type="proportional"), "llama model has proportional"),
        ("gemma3_text", {"head_dim": 16, "final_logit_softcapping": 30.0}, "has final_logit_softcapping"),
        ("qwen3", {"layer_types": ["linear_attention", "full_attention"]}, "has linear_attention"),
    ],
)
def test_what_is_not_proven_is_refused_with_the_list(kind, changes, says):
    with pytest.raises(ModelError, match=says) as refused:
        check_family(config_of(kind, changes).to_dict())
    assert all(family in str(refused.value) for family in FAMILIES.values())


def test_every_family_and_rope_is_compared_here_or_with_pictures():
    seeing = {"qwen2_5_vl", "qwen3_vl"}  # test_pictures.py
    assert {kind for kind, _ in CASES.values()} | seeing == set(FAMILIES)
    written = {
        changes.get("rope_parameters", {}).get("rope_type", "default") for _, changes in CASES.values()
    }
    assert written | {"mrope"} == set(ROPES)


@pytest.mark.parametrize("case", ["llama dynamic", "llama longrope"])
def test_a_sequence_stays_below_the_length_that_turns_its_tokens_otherwise(case):
    """What is in the cache was turned as in a short sequence."""
    model = ServedModel(AutoModelForCausalLM.from_config(config_of(*CASES[case])))
    switch = 128 if case == "llama longrope" else 256
    assert GenerationEngine(model, 1, EngineSettings(slots=1, context=1000)).settings.context == switch
