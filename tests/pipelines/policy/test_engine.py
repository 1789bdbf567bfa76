"""The engine: equal to `transformers`, deterministic whatever else is in the batch, weights exchanged."""

import copy
import threading
from functools import partial

import pytest
import torch

from orchard.pipelines.models.directories import load_model
from orchard.pipelines.models.tiny import ModelShape, new_model
from orchard.pipelines.policy.engine import EngineSettings, GenerationEngine, Overloaded, Stopping
from orchard.pipelines.policy.sampling import Sampling, choose
from orchard.pipelines.policy.weights import ServedModel, load_weights
from orchard.schemas.messages import VersionRun
from tests.pipelines.policy.small_models import SHAPE, sharp

CPU = torch.device("cpu")
PATIENCE = 60


def weights_of(model) -> ServedModel:
    return ServedModel(copy.deepcopy(model))


@pytest.fixture
def engine(model_directory):
    """Start engines that end with the test."""
    running = []

    def start(model=None, **settings):
        model = model or load_weights(model_directory, device=CPU, dtype=torch.float32)
        one = GenerationEngine(model, 1, EngineSettings(**({"slots": 8, "context": 512} | settings)))
        one.start()
        running.append(one)
        return one

    yield start
    for one in running:
        one.stop(0)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 90, (count,), generator=generator).tolist()
    return [torch.randint(0, 300, (length,), generator=generator).tolist() for length in lengths]


def expected_logprobs(directory, prompt, ids):
    """What `transformers` says of a whole sequence, read at once."""
    model = load_model(directory)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + ids]), use_cache=False).logits[0]
    logprobs = logits.log_softmax(-1)
    return [logprobs[len(prompt) + place - 1, token].item() for place, token in enumerate(ids)]


SHAPES = {
    "grouped heads": SHAPE,
    "one key head, own head": ModelShape(
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=False,
        rope_theta=1e6,
    ),
    "no groups": ModelShape(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
    ),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_log_probabilities_are_those_of_transformers(engine, shape, tmp_path):
    model = sharp(new_model(shape, vocabulary=300, seed=5))
    model.save_pretrained(tmp_path)
    running = engine(weights_of(model))
    asked = prompts(5)
    futures = [running.submit(prompt, Sampling(max_tokens=40, seed=n)) for n, prompt in enumerate(asked)]
    for prompt, future in zip(asked, futures, strict=True):
        answer = future.result(PATIENCE)
        assert len(answer.ids) == 40
        assert answer.logprobs == pytest.approx(expected_logprobs(tmp_path, prompt, answer.ids), abs=1e-4)


def test_the_most_probable_tokens_are_those_of_transformers(engine, model_directory):
    prompt = prompts(1)[0]
    answer = engine().submit(prompt, Sampling(max_tokens=30, temperature=0.0)).result(PATIENCE)
    model = load_model(model_directory)
    whole = model.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False, eos_token_id=-1)
    assert answer.ids == whole[0, len(prompt) :].tolist()


@pytest.mark.long
def test_a_request_gets_the_same_bits_alone_and_in_any_company(engine):
    """Tokens and log-probabilities to the last bit: above 256 tokens too, where attention sums in blocks."""
    asked = [*prompts(10), prompts(1, seed=4)[0] * 4, [7] * 290]
    samplings = [Sampling(max_tokens=60, temperature=0.8, seed=n) for n in range(len(asked))]

    def answers(running, order):
        futures = {n: running.submit(asked[n], samplings[n]) for n in order}
        return {n: future.result(PATIENCE) for n, future in futures.items()}

    together = answers(engine(slots=32), range(len(asked)))
    few_slots = answers(engine(slots=3), reversed(range(len(asked))))
    for number in range(len(asked)):
        alone = answers(engine(slots=1), [number])[number]
        for other in (together[number], few_slots[number]):
            assert (other.ids, other.logprobs) == (alone.ids, alone.logprobs)


@pytest.mark.parametrize("extreme", [{"top_k": 2**63 - 1}, {"temperature": 1e-40}, {"temperature": 5e-38}])
def test_extreme_numbers_of_one_request_end_no_other(engine, extreme):
    running, prompt = engine(), prompts(1)[0]
    usual = {key: 0.0 if key == "temperature" else 0 for key in extreme}
    futures = [
        running.submit(prompt, Sampling(max_tokens=20, seed=1, **chosen)) for chosen in (extreme, usual, {})
    ]
    odd, plain, other = (future.result(PATIENCE) for future in futures)
    assert odd.ids == plain.ids
    assert len(other.ids) == 20


def test_other_seeds_give_other_answers(engine):
    running, prompt = engine(), prompts(1)[0]
    futures = [running.submit(prompt, Sampling(max_tokens=20, temperature=3.0, seed=n)) for n in (1, 2)]
    first, second = (future.result(PATIENCE).ids for future in futures)
    assert first != second


def test_stop_tokens_end_an_answer_and_belong_to_it(engine):
    running, prompt = engine(), prompts(1)[0]
    free = running.submit(prompt, Sampling(max_tokens=30, seed=3)).result(PATIENCE)
    stop = free.ids[10]
    answer = running.submit(prompt, Sampling(max_tokens=30, seed=3, stop_ids=frozenset([stop]))).result(
        PATIENCE
    )
    assert answer.ids == free.ids[: free.ids.index(stop) + 1]
    assert (free.finish_reason, answer.finish_reason) == ("length", "stop")


def test_requests_join_and_leave_a_batch_under_way(engine):
    """More requests than slots, of all lengths: every one gets exactly its answer."""
    running = engine(slots=2)
    asked = prompts(9)
    futures = [
        running.submit(prompt, Sampling(max_tokens=3 + 7 * n, seed=n)) for n, prompt in enumerate(asked)
    ]
    assert [len(future.result(PATIENCE).ids) for future in futures] == [3 + 7 * n for n in range(9)]


def test_a_prefix_that_a_slot_holds_is_not_read_again(engine, model_directory):
    running = engine(prefix_cache=True)
    prompt = prompts(1, seed=2)[0] + [5] * 30
    first = running.submit(prompt, Sampling(max_tokens=20, seed=1)).result(PATIENCE)
    longer = prompt + first.ids + [9, 8, 7]
    second = running.submit(longer, Sampling(max_tokens=20, seed=2)).result(PATIENCE)
    assert second.cached == len(prompt) + len(first.ids) - 1
    assert second.logprobs == pytest.approx(expected_logprobs(model_directory, longer, second.ids), abs=1e-4)


def test_conversations_change_slots_with_what_they_hold(engine, model_directory):
    """The lowest slots are used: what another one holds of a prompt comes there, what was there goes."""
    running = engine(prefix_cache=True, slots=4)
    asked = prompts(4, seed=3)
    futures = [running.submit(prompt, Sampling(max_tokens=10, seed=n)) for n, prompt in enumerate(asked)]
    said = [prompt + future.result(PATIENCE).ids for prompt, future in zip(asked, futures, strict=True)]
    for n in (3, 1, 3, 0, 2, 1):
        answer = running.submit([*said[n], 9, 8], Sampling(max_tokens=10, seed=n)).result(PATIENCE)
        assert answer.cached == len(said[n]) - 1
        assert answer.logprobs == pytest.approx(
            expected_logprobs(model_directory, [*said[n], 9, 8], answer.ids), abs=1e-4
        )
        said[n] += [9, 8, *answer.ids]


@pytest.mark.long
def test_new_weights_take_over_between_two_tokens(engine, model_directory, other_directory):
    """Requests under way go on; each token's log-probability is that of the version that it names."""
    running = engine(prefix_cache=True)
    new = load_weights(other_directory, device=CPU, dtype=torch.float32)
    started, asked_for = threading.Event(), threading.Event()
    asked, begun = prompts(4), set[int]()

    def ends(number, ids):
        if len(ids) == 5:
            begun.add(number)
            if len(begun) == len(asked):  # a request that came later has its tokens later
                started.set()
                asked_for.wait(PATIENCE)
        return False

    futures = [
        running.submit(prompt, Sampling(max_tokens=300, seed=n), partial(ends, n))
        for n, prompt in enumerate(asked)
    ]
    assert started.wait(PATIENCE)
    exchanged = running.reload(new, 2)
    asked_for.set()
    assert exchanged.result(PATIENCE) == 2
    for prompt, future in zip(asked, futures, strict=True):
        answer = future.result(PATIENCE)
        change = answer.versions[1].start
        assert answer.versions == [VersionRun(start=0, version=1), VersionRun(start=change, version=2)]
        assert 5 <= change < 300
        before, after = (
            expected_logprobs(directory, prompt, answer.ids)
            for directory in (model_directory, other_directory)
        )
        assert answer.logprobs == pytest.approx(before[:change] + after[change:], abs=1e-4)


def test_weights_of_another_shape_are_refused(engine):
    other = weights_of(new_model(SHAPES["no groups"], vocabulary=300, seed=0))
    with pytest.raises(ValueError, match="another architecture"):
        engine().reload(other, 2)


def test_too_many_requests_are_refused_and_not_kept(engine):
    running = engine(slots=1, waiting=2)
    busy = threading.Event()
    hold = threading.Event()

    def ends(_):
        busy.set()
        hold.wait(PATIENCE)
        return False

    sampling = Sampling(max_tokens=2, seed=1)
    first = running.submit([1, 2], sampling, ends)
    assert busy.wait(PATIENCE)
    waiting = [running.submit([3], sampling) for _ in range(2)]
    with pytest.raises(Overloaded):
        running.submit([4], sampling)
    hold.set()
    assert all(len(future.result(PATIENCE).ids) == 2 for future in (first, *waiting))


def test_a_cancelled_request_frees_its_slot(engine):
    running = engine(slots=1, context=16_000)
    begun = threading.Event()

    def ends(_):
        begun.set()
        return False

    endless = running.submit([1], Sampling(max_tokens=10**6, seed=1), ends)
    assert begun.wait(PATIENCE)
    assert endless.cancel()
    assert len(running.submit([2], Sampling(max_tokens=3, seed=1)).result(PATIENCE).ids) == 3


def test_stopping_finishes_what_runs_and_refuses_the_rest(engine):
    running = engine()
    future = running.submit([1], Sampling(max_tokens=50, seed=1))
    running.stop(drain_seconds=PATIENCE)
    assert len(future.result(0).ids) == 50
    with pytest.raises(Stopping):
        running.submit([1], Sampling(max_tokens=1))
    assert running.ended.result(0) is None


def test_a_failure_in_the_thread_reaches_everyone_who_waits(engine):
    running = engine()

    def ends(_):
        raise RuntimeError("broken")

    future = running.submit([1], Sampling(max_tokens=50, seed=1), ends)
    with pytest.raises(RuntimeError, match="broken"):
        future.result(PATIENCE)
    assert isinstance(running.ended.result(PATIENCE), RuntimeError)


@pytest.mark.parametrize(
    ("prompt", "says"), [([], "one or more"), ([300_000], "below"), ([1] * 512, "context length is 512")]
)
def test_impossible_prompts_are_refused(engine, prompt, says):
    with pytest.raises(ValueError, match=says):
        engine().submit(prompt, Sampling(max_tokens=1))


def chosen(logits: torch.Tensor, sampling: Sampling, draws: torch.Tensor):
    temperature, top_p, top_k = (
        torch.full((len(logits),), number)
        for number in (sampling.temperature, sampling.top_p, sampling.top_k)
    )
    return choose(logits, temperature, top_p, top_k, draws, cut=sampling.top_k > 0 or sampling.top_p < 1)


def frequencies(sampling: Sampling, logits: torch.Tensor, count: int = 4000) -> list[float]:
    draws = torch.rand(count, generator=torch.Generator().manual_seed(0))
    tokens, _ = chosen(logits.expand(count, -1).contiguous(), sampling, draws)
    return (torch.bincount(tokens, minlength=logits.shape[-1]) / count).tolist()


PROBABILITIES = [0.5, 0.25, 0.15, 0.1]


@pytest.mark.parametrize(
    ("cuts", "expected"),
    [
        ({}, PROBABILITIES),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.7}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.76}, [5 / 9, 2.5 / 9, 1.5 / 9, 0]),
        ({"top_k": 3, "top_p": 0.5}, [1, 0, 0, 0]),
        ({"temperature": 0.5}, [p * p / 0.345 for p in PROBABILITIES]),
        ({"temperature": 0.0}, [1, 0, 0, 0]),
    ],
    ids=str,
)
def test_tokens_come_as_often_as_they_should(cuts, expected):
    sampling = Sampling(max_tokens=1, **cuts)
    found = frequencies(sampling, torch.tensor([PROBABILITIES]).log())
    assert found == pytest.approx(expected, abs=0.03)
    assert [a == 0 for a in found] == [a == 0 for a in expected]


def test_a_draw_at_the_edge_never_takes_an_impossible_token():
    logits = torch.tensor([[0.0, 0.0, float("-inf")], [float("-inf"), 0.0, float("-inf")]])
    for draw in (0.0, 1 - 2**-24):
        tokens, logprobs = chosen(logits, Sampling(max_tokens=1), torch.full((2,), draw))
        assert all(logprob > float("-inf") for logprob in logprobs)
        assert tokens[1] == 1
