"""Packs hold every example once, none is cut, boundaries are where examples begin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.pipelines.datasets.packing import balance, pack, pack_in_order

LENGTHS = st.lists(st.integers(1, 100), max_size=60)


@given(LENGTHS, st.sampled_from([pack, pack_in_order]))
def test_every_example_is_in_one_pack_within_the_capacity(lengths: list[int], method) -> None:
    packs = method(lengths, 100)
    assert sorted(index for one in packs for index in one.examples) == list(range(len(lengths)))
    for one in packs:
        assert one.tokens == sum(lengths[index] for index in one.examples) <= 100
        sizes = [lengths[index] for index in one.examples]
        assert list(one.boundaries) == [sum(sizes[:n]) for n in range(len(sizes) + 1)]
        assert list(one.examples) == sorted(one.examples)


@given(LENGTHS)
def test_first_fit_is_first_fit(lengths: list[int]) -> None:
    """Against the definition: each, longest first, into the first sequence with room."""
    bins: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = next((b for b in bins if sum(lengths[i] for i in b) + lengths[index] <= 100), None)
        if place is None:
            bins.append([index])
        else:
            place.append(index)
    assert [one.examples for one in pack(lengths, 100)] == [tuple(sorted(b)) for b in sorted(bins, key=min)]


@given(LENGTHS)
def test_no_two_sequences_could_be_one(lengths: list[int]) -> None:
    tokens = sorted(one.tokens for one in pack(lengths, 100))
    assert len(tokens) < 2 or tokens[0] + tokens[1] > 100


def test_an_example_over_the_capacity_is_refused() -> None:
    for method in (pack, pack_in_order):
        with pytest.raises(ValueError, match="example 1 has 11 tokens"):
            method([3, 11], 10)


@given(LENGTHS, st.integers(1, 4))
def test_shares_of_processes_are_complete_and_about_equal(lengths: list[int], ranks: int) -> None:
    packs = pack(lengths, 100)
    shares = balance(packs, ranks)
    assert sorted(index for share in shares for index in share) == list(range(len(packs)))
    loads = [sum(packs[index].tokens for index in share) for share in shares]
    assert max(loads, default=0) - min(loads, default=0) <= 100
