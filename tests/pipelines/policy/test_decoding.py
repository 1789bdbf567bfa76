"""Steps that a GPU replays, without a GPU: they have the bits of other steps, and nothing in them waits."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.models.tiny_vision import new_vision_model
from orchard.pipelines.policy.cache import Cache
from orchard.pipelines.policy.decoding import Decoder, StepInput, recorder
from orchard.pipelines.policy.engine import EngineSettings, GenerationEngine
from orchard.pipelines.policy.sampling import Sampling
from orchard.pipelines.policy.weights import ServedModel
from tests.pipelines.policy.recording import OnDevice, Recorder, Uncapturable
from tests.pipelines.policy.small_models import SHAPE, sharp
from tests.pipelines.policy.test_families import CASES, config_of, prompts
from tests.pipelines.sft.pictured_runs import SEEING, seeing_tokenizer

PATIENCE = 60
SAMPLINGS = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"top_p": 0.8},
    {"temperature": 1.3, "top_k": 5, "top_p": 0.9},
    {},
]
MIXED = ("mixtral", "qwen3_moe")
DENSE = {name: case for name, case in CASES.items() if case[0] not in MIXED}


def of_family(case) -> ServedModel:
    torch.manual_seed(3)
    return ServedModel(sharp(AutoModelForCausalLM.from_config(config_of(*case)).eval()))


def small(seed: int = 0) -> ServedModel:
    return ServedModel(sharp(new_model(SHAPE, vocabulary=300, seed=seed)))


def answered(engine: GenerationEngine, asked: list[list[int]], tokens: int):
    """Tokens and log-probabilities, of answers of unequal lengths that are sampled in every way."""
    futures = [
        engine.submit(prompt, Sampling(max_tokens=tokens + 3 * n, seed=n, **SAMPLINGS[n % len(SAMPLINGS)]))
        for n, prompt in enumerate(asked)
    ]
    return [(answer.ids, answer.logprobs) for answer in (future.result(PATIENCE) for future in futures)]


@pytest.fixture
def engine():
    """Start engines that end with the test."""
    running = []

    def start(model, record=None, *, slots=32, context=512, graphs=None):
        settings = EngineSettings(slots=slots, context=context, graphs=graphs)
        running.append(GenerationEngine(model, 1, settings, record))
        running[-1].start()
        return running[-1]

    yield start
    for one in running:
        one.stop(0)


def test_steps_of_few_shapes_have_the_bits_of_steps_of_any_shape(engine):
    """Above 256 tokens too, where attention sums in blocks."""
    asked = [*prompts(), *prompts(), [7] * 240, *prompts()]
    free = answered(engine(small(), graphs=False), asked, 12)
    padded = engine(small(), graphs=True)
    assert answered(padded, asked, 12) == free
    record = Recorder()
    replayed = engine(small(), record)
    assert answered(replayed, asked, 12) == free
    assert record.shapes + record.replays == replayed.figures.steps == padded.figures.steps
    assert record.shapes <= 2 * 2 * 2  # of 32 and 8 or 16 rows, 256 and 512 places, with and without a cut


@pytest.mark.long
@pytest.mark.parametrize("case", DENSE.values(), ids=DENSE)
def test_every_family_is_replayed_with_the_same_bits(engine, case):
    """Its operations alone, on the same tensors, are all that a step is."""
    free = answered(engine(of_family(case), slots=8, context=128), prompts(), 8)
    record = Recorder()
    assert answered(engine(of_family(case), record, slots=8, context=128), prompts(), 8) == free
    assert record.replays > record.shapes


def test_new_weights_need_no_new_recordings(engine):
    """They come to where the old ones were: a replay computes with what is there."""
    asked, record = prompts(), Recorder()
    running = engine(small(), record)
    answered(running, asked, 6)
    shapes, old = record.shapes, answered(running, asked, 6)
    assert running.reload(small(seed=1), 2).result(PATIENCE) == 2
    new = answered(running, asked, 6)
    assert new == answered(engine(small(seed=1)), asked, 6) != old
    assert record.shapes == shapes


class _Captured(Exception):
    """Ends a step before its numbers are read: there are none."""


def _capture(work):
    with OnDevice():
        work()
    raise _Captured


def check_capturable(model) -> None:
    served = ServedModel(model.to("meta"))
    decoder = Decoder(served, Cache(served, slots=8, context=128), _capture)
    for row in (StepInput(token=5, place=3, position=3), StepInput(5, 3, 3, 0.7, 0.9, 5, 0.5)):
        with pytest.raises(_Captured):
            decoder.step({1: row})


@pytest.mark.parametrize("case", DENSE.values(), ids=DENSE)
def test_the_step_of_every_family_can_be_captured(case):
    check_capturable(AutoModelForCausalLM.from_config(config_of(*case)))


@pytest.mark.parametrize("shape", SEEING)
def test_the_step_of_a_model_that_sees_can_be_captured(shape, tmp_path):
    tokenizer = seeing_tokenizer(tmp_path)
    check_capturable(new_vision_model(shape, tokenizer=tokenizer, seed=0)[0])


@pytest.mark.parametrize(
    "work",
    [
        lambda numbers: numbers.sum().item(),
        lambda numbers: numbers.tolist(),
        lambda numbers: numbers.cpu(),
        lambda numbers: numbers[numbers > 0],
        lambda numbers: numbers.index_put_((numbers > 0,), numbers.new_ones(())),
        lambda numbers: numbers.nonzero(),
        lambda numbers: numbers + torch.tensor([1.0, 2.0, 3.0], device="cpu").to("meta"),
        lambda numbers: 1 if numbers.any() else 0,
    ],
)
def test_what_the_host_waits_for_cannot_be_captured(work):
    with pytest.raises((Uncapturable, NotImplementedError)), OnDevice():
        work(torch.zeros(3, device="meta"))


@pytest.mark.parametrize("kind", MIXED)
def test_steps_of_experts_are_not_recorded(kind):
    case = next(case for case in CASES.values() if case[0] == kind)
    assert recorder(of_family(case), True) is None
