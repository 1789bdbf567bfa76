"""Batches, packs, shares and learning rates: pure functions, so properties over many inputs."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.pipelines.sft.schedule import BatchSchedule, learning_rate, packs, process_packs, shares


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(50, 120))
def test_packs_hold_every_example_once_and_never_too_much(lengths, capacity):
    packed = packs(lengths, capacity)
    assert sorted(index for pack in packed for index in pack) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in pack) <= capacity for pack in packed)
    assert len(packed) <= 11 / 9 * math.ceil(sum(lengths) / capacity) * 1.5 + 1


@given(st.lists(st.integers(1, 50), max_size=60))
def test_no_two_packs_could_be_one(lengths):
    filled = sorted(sum(lengths[index] for index in pack) for pack in packs(lengths, 50))
    assert len(filled) < 2 or filled[0] + filled[1] > 50


@given(st.lists(st.integers(1, 50), max_size=60), st.sampled_from([None, 50]), st.integers(1, 5))
def test_processes_have_equally_many_packs_and_every_row_once(lengths, capacity, processes):
    rows = list(range(len(lengths)))
    given_out = [process_packs(rows, lengths, capacity, processes, rank) for rank in range(processes)]
    assert len({len(packed) for packed in given_out}) == 1
    assert sorted(row for packed in given_out for pack in packed for row in pack) == rows


def test_an_example_longer_than_a_pack_has_one_of_its_own():
    assert packs([3, 11, 4], 10) == [[1], [2, 0]]


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 5))
def test_processes_share_packs_evenly(loads, processes):
    given_out = shares(loads, processes)
    assert sorted(index for share in given_out for index in share) == list(range(len(loads)))
    assert max(map(len, given_out)) == math.ceil(len(loads) / processes)


@given(st.integers(1, 50), st.integers(1, 12), st.integers(1, 3), st.integers(0, 5))
def test_every_epoch_takes_every_example_once(examples, global_batch, epochs, seed):
    plan = BatchSchedule(examples=examples, global_batch=global_batch, epochs=epochs, seed=seed)
    for epoch in range(epochs):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        assert sorted(index for step in steps for index in plan.batch(step)) == list(range(examples))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {
        tuple(BatchSchedule(examples=20, global_batch=20, epochs=2, seed=seed).batch(step))
        for seed in (0, 1)
        for step in (0, 1)
    }
    assert len(orders) == 4


def test_the_schedule_warms_up_and_falls_to_its_floor():
    rates = [learning_rate(s, steps=100, peak=1.0, floor=0.1, warmup=0.1) for s in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[-1] == pytest.approx(0.1)
    assert all(earlier >= later for earlier, later in pairwise(rates[10:]))
    assert rates[10 + 89 // 2] == pytest.approx(0.55, abs=0.01)


@pytest.mark.parametrize("steps", [1, 2])
def test_short_runs_have_a_rate(steps):
    assert learning_rate(0, steps=steps, peak=1.0, floor=0.1, warmup=0.0) == 1.0
