"""What is trained on is what was sampled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.pipelines.rl.sequences import NotSampled, sequences
from orchard.schemas.messages import TokenRecord, VersionRun


def said(prompt: list[int], ids: list[int], version: int = 0) -> TokenRecord:
    return TokenRecord(
        ids=tuple(ids),
        prompt_ids=tuple(prompt),
        logprobs=tuple(-0.1 * token for token in ids),
        versions=(VersionRun(start=0, version=version),),
    )


def test_a_conversation_is_one_sequence() -> None:
    (row,) = sequences([said([1, 2], [3, 4]), said([1, 2, 3, 4, 5], [6], version=1)])
    assert row.ids == [1, 2, 3, 4, 5, 6]
    assert row.mask == [0, 0, 1, 1, 0, 1]
    assert row.logprobs == pytest.approx([0, 0, -0.3, -0.4, 0, -0.6])
    assert row.versions == [-1, -1, 0, 0, -1, 1]


def test_rewritten_history_begins_a_new_sequence_and_earlier_tokens_train_once() -> None:
    first, second = sequences([said([1, 2], [3, 4]), said([1, 9], [5]), said([1, 9, 5, 6], [7])])
    assert (first.ids, first.mask) == ([1, 2, 3, 4], [0, 0, 1, 1])
    assert (second.ids, second.mask) == ([1, 9, 5, 6, 7], [0, 0, 1, 0, 1])


def test_text_that_was_tokenized_again_is_context_and_not_what_was_sampled() -> None:
    first, second = sequences([said([1], [2, 3]), said([1, 23, 4], [5])])
    assert first.mask == [0, 1, 1]
    assert (second.ids, second.mask) == ([1, 23, 4, 5], [0, 0, 0, 1])


def test_a_version_that_changes_within_a_message_is_kept_for_each_token() -> None:
    record = TokenRecord(
        ids=(1, 2, 3),
        prompt_ids=(9,),
        logprobs=(-1.0, -1.0, -1.0),
        versions=(VersionRun(start=0, version=4), VersionRun(start=2, version=5)),
    )
    (row,) = sequences([record])
    assert row.versions == [-1, 4, 4, 5]


@pytest.mark.parametrize(
    "record",
    [
        TokenRecord(ids=(), prompt_ids=(1,)),
        TokenRecord(ids=(1,), prompt_ids=(1,)),
        TokenRecord(ids=(1,), logprobs=(-1.0,)),
    ],
)
def test_a_message_without_its_tokens_is_refused(record: TokenRecord) -> None:
    with pytest.raises(NotSampled, match="return_token_ids"):
        sequences([record])


@given(
    st.lists(
        st.tuples(
            st.booleans(), st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 3), min_size=1)
        ),
        max_size=6,
    )
)
def test_every_sampled_token_is_trained_on_once_after_the_prompt_it_was_sampled_from(
    turns: list[tuple[bool, list[int], list[int]]],
) -> None:
    history: list[int] = [0]
    records = []
    for rewritten, tail, ids in turns:
        history = [1, *tail] if rewritten else [*history, *tail]
        records.append(said(history, ids))
        history = [*history, *ids]
    rows = sequences(records)
    assert sum(sum(row.mask) for row in rows) == sum(len(record.ids) for record in records)
    places = {
        (tuple(row.ids[:at]), row.ids[at]) for row in rows for at, trains in enumerate(row.mask) if trains
    }
    for record in records:
        for at, token in enumerate(record.ids):
            assert (record.prompt_ids + record.ids[:at], token) in places
