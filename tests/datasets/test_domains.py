"""Examples of browsing and of tool use, from records made by hand."""

import pytest

from orchard.pipelines.datasets.domains import Browsed, browsing_examples, choose_browsed, tool_use_example


def rollout(task, turns, *, success=True, website="a.com", name=""):
    return Browsed(
        rollout_id=name or f"{task}-{turns}", task_id=task, website=website, success=success, turns=turns
    )


def test_the_shortest_success_of_each_task_is_taken():
    found = [
        rollout("t1", 9),
        rollout("t1", 4, name="x"),
        rollout("t1", 4, name="w"),
        rollout("t1", 2, success=False),
        rollout("t2", 7, success=False),
        rollout("t0", 30, website="b.org"),
    ]
    assert [each.rollout_id for each in choose_browsed(found)] == ["t0-30", "w"]
    assert choose_browsed(found[::-1]) == choose_browsed(found)


def test_a_website_has_at_most_so_many_tasks():
    found = [rollout(f"t{number:02}", 5) for number in range(25)] + [rollout("u", 5, website="b.org")]
    chosen = choose_browsed(found)
    assert [each.task_id for each in chosen] == [*(f"t{number:02}" for number in range(20)), "u"]
    assert len(choose_browsed(found, per_website=2)) == 3


def image(name):
    return {"type": "image_url", "image_url": {"url": f"data:{name}"}}


def text(words):
    return {"type": "text", "text": words}


def seen(message):
    content = message["content"]
    parts = [text(content)] if isinstance(content, str) else content
    return [part.get("text") or part["image_url"]["url"] for part in parts]


CHAT = [
    {"role": "system", "content": "browse"},
    {"role": "user", "content": [text("find it"), image(0)]},
    {"role": "assistant", "content": "click"},
    {"role": "user", "content": [text("clicked"), image(1), image(2)]},
    {"role": "assistant", "content": "scroll"},
    {"role": "user", "content": "no picture"},
    {"role": "assistant", "content": "done"},
]


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (
            1,
            [
                ["browse", "find it", "data:0", "click"],
                ["browse", "find it", "click", "clicked", "data:2", "scroll"],
                ["browse", "find it", "click", "clicked", "data:2", "scroll", "no picture", "done"],
            ],
        ),
        (
            2,
            [
                ["browse", "find it", "data:0", "click"],
                ["browse", "find it", "click", "clicked", "data:1", "data:2", "scroll"],
                ["browse", "find it", "click", "clicked", "data:1", "data:2", "scroll", "no picture", "done"],
            ],
        ),
    ],
)
def test_every_turn_is_an_example_with_the_last_screenshots(keep, expected):
    examples = list(browsing_examples(CHAT, keep))
    assert [[part for message in example for part in seen(message)] for example in examples] == expected
    assert [example[-1]["role"] for example in examples] == ["assistant"] * 3
    assert seen(CHAT[1]) == ["find it", "data:0"], "the trajectory itself is left as it was"


@pytest.mark.parametrize(
    ("prompt", "output", "ids", "mask"),
    [
        ([1, 2, 3], [7, 8], [1, 2, 3, 7, 8], [0, 0, 0, 1, 1]),
        ([1, 2, 3, 4], [7, 8], [2, 3, 4, 7, 8], [0, 0, 0, 1, 1]),
        ([1, 2, 3], [5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [1, 1, 1, 1, 1]),
        ([], [7], [7], [1]),
    ],
)
def test_a_recorded_pair_is_cut_at_the_left(prompt, output, ids, mask):
    found = tool_use_example(prompt, output, limit=5)
    assert found is not None
    assert (found[0].tolist(), found[1].tolist()) == (ids, mask)


@pytest.mark.parametrize("output", [[], [1] * 6])
def test_a_pair_that_cannot_train_whole_gives_no_example(output):
    assert tool_use_example([1, 2], output, limit=5) is None
