"""The order of the labels of rewards, and what a missing label counts as."""

from itertools import pairwise

from orchard.schemas.protection import Protected, is_at_least


def test_labels_are_declared_strongest_first() -> None:
    assert [*Protected] == ["value", "echo", "bit", "inside", "forgeable"]
    for stronger, weaker in pairwise(Protected):
        assert is_at_least(stronger, weaker) and is_at_least(weaker, weaker)
        assert not is_at_least(weaker, stronger)


def test_a_missing_label_counts_as_inside() -> None:
    assert [label for label in Protected if is_at_least(None, label)] == ["inside", "forgeable"]
