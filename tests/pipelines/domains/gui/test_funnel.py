"""The funnel: each stage against a brute-force reference, vectors from an endpoint, and breaks."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orchard.pipelines.domains.gui.funnel import encoders
from orchard.pipelines.domains.gui.funnel.encoders import EndpointEncoder, HashingEncoder, hashed
from orchard.pipelines.domains.gui.funnel.nearest import Floats, Greedy, unit
from orchard.pipelines.domains.gui.funnel.run import Funnel
from orchard.pipelines.domains.gui.funnel.stages import (
    Intent,
    Rules,
    Stage,
    normal,
    read_sites,
    screened,
    site_of,
)
from orchard.pipelines.tasks.errors import TaskError
from orchard.workers.llm.settings import EndpointSettings

TEXTS = ("Find a bed", "find a BED!", "Buy tea", "Book a flight", "Compare two beds")
SITES = ("a.com", "shop.a.com", "b.org", "long.tail", "")

intents = st.lists(
    st.builds(
        lambda text, site, split, parent: Intent(id="", text=text, site=site, split=split, parent=parent),
        st.sampled_from(TEXTS),
        st.sampled_from(SITES),
        st.sampled_from(["pae", "insta", "online-mind2web"]),
        st.sampled_from(["", "", "p1"]),
    ),
    max_size=25,
).map(lambda found: [msgspec.structs.replace(one, id=f"t{n}") for n, one in enumerate(found)])


def reference(pool: Sequence[Intent], rules: Rules) -> dict[str, Stage]:
    """Stage after stage, each over the whole of what the one before has left."""
    gone: dict[str, Stage] = {}

    def sieve(left: list[Intent], stage: Stage, passes: Any) -> list[Intent]:
        gone.update({one.id: stage for one in left if not passes(one)})
        return [one for one in left if passes(one)]

    left = sieve(
        list(pool),
        Stage.EVALUATION,
        lambda one: one.split in rules.splits and normal(one.text) not in rules.evaluation,
    )
    left = sieve(left, Stage.PARENTS, lambda one: not one.parent)
    left = sieve(left, Stage.WEBVOYAGER, lambda one: normal(one.text) not in rules.webvoyager)
    popular = rules.sites or frozenset()
    left = sieve(
        left,
        Stage.SITES,
        lambda one: any(one.site == site or one.site.endswith(f".{site}") for site in popular),
    )
    sites = [one.site for one in left]
    sieve(left, Stage.SITES, lambda one: sites.count(one.site) >= 2)
    return gone


@given(intents)
def test_four_stages_are_those_of_the_reference(pool: list[Intent]) -> None:
    rules = Rules(
        splits=frozenset({"pae", "insta"}),
        evaluation=frozenset({normal("Book a flight")}),
        webvoyager=frozenset({normal("Buy tea")}),
        sites=frozenset({"a.com", "b.org"}),
    )
    found = list(screened(pool, rules))
    assert [intent.id for intent, _ in found] == [one.id for one in pool]
    assert {intent.id: cause.stage for intent, cause in found if cause} == reference(pool, rules)
    assert all(cause.reason and cause.id == intent.id for intent, cause in found if cause)


def brute_force(vectors: Floats, threshold: float) -> tuple[list[int], list[float]]:
    """One vector after the other, against each that was kept."""
    like, similarity = [], []
    kept: list[int] = []
    exact = vectors.astype(np.float64)
    for row in range(len(exact)):
        cosines = [float(exact[row] @ exact[other]) for other in kept]
        near = [place for place, cosine in enumerate(cosines) if cosine > threshold]
        like.append(kept[near[0]] if near else -1)
        similarity.append(cosines[near[0]] if near else 0.0)
        if not near:
            kept.append(row)
    return like, similarity


@pytest.mark.long
@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 120),
    dimensions=st.sampled_from([2, 5, 63, 64, 65, 200]),
    noise=st.sampled_from([0.0, 0.02, 0.1, 0.3]),
    threshold=st.sampled_from([0.99, 0.95, 0.5]),
    cut=st.integers(1, 50),
)
def test_greedy_removal_is_that_of_the_reference(
    seed: int, rows: int, dimensions: int, noise: float, threshold: float, cut: int
) -> None:
    dice = np.random.default_rng(seed)
    centres = dice.standard_normal((max(1, rows // 4), dimensions))
    vectors = unit(
        centres[dice.integers(len(centres), size=rows)] + noise * dice.standard_normal((rows, dimensions))
    )
    exact = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    assume(np.abs(exact - threshold).min() > 1e-12)  # else the order of a sum decides
    like, similarity = brute_force(vectors, threshold)
    blocks = [vectors[begin : begin + cut] for begin in range(0, rows, cut)]
    greedy = Greedy(threshold, dimensions)
    for number, block in enumerate(blocks):
        if number == len(blocks) // 2:  # as after a break
            before, greedy = greedy, Greedy(threshold, dimensions)
            greedy.restore(before.like, before.similarity, iter(blocks[:number]))
        greedy.step(block)
    assert greedy.like == like
    assert greedy.similarity == pytest.approx(similarity)


def test_a_kept_vector_hides_nothing_across_pieces_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchard.pipelines.domains.gui.funnel.nearest._ACROSS", 7)
    dice = np.random.default_rng(1)
    vectors = unit(
        np.repeat(dice.standard_normal((60, 80)), 3, axis=0) + 0.01 * dice.standard_normal((180, 80))
    )
    greedy = Greedy(0.95, 80)
    for begin in range(0, 180, 50):
        greedy.step(vectors[begin : begin + 50])
    assert (greedy.like, greedy.similarity) == (lambda found: (found[0], pytest.approx(found[1])))(
        brute_force(vectors, 0.95)
    )
    assert greedy.like.count(-1) == 60


def test_hashing_sees_form_and_not_words_alone() -> None:
    first, same, near, other = hashed(
        [
            "Find a dog bed that is washable and has a length of at least 30 inches",
            "  find a DOG bed, that is washable and has a length of at least 30 inches!",
            "Find a dog bed that is washable and has a length of at least 35 inches",
            "Book the cheapest flight from Oslo to Lima in May",
        ]
    )
    assert first @ same == pytest.approx(1.0)
    assert 0.8 < first @ near < 0.99 and first @ other < 0.4
    assert (hashed(["Find a dog bed", ""])[1] == 0).all()
    assert (hashed(["a b", "c"])[0] == hashed(["a b"])[0]).all()


@pytest.fixture
async def endpoint() -> AsyncIterator[Any]:
    """An `/embeddings` endpoint that is down whenever `down` says so, and answers in another order."""
    found = SimpleNamespace(asked=[], url="", down=lambda _: False)

    async def embeddings(request: web.Request) -> web.Response:
        asked = await request.json()
        found.asked.append(asked["input"])
        if found.down(len(found.asked)):
            return web.json_response({"error": "busy"}, status=503)
        rows = [
            {"index": place, "embedding": [float(len(text)), float(text.count("a")), 1.0]}
            for place, text in enumerate(asked["input"])
        ]
        return web.json_response({"data": rows[::-1], "model": asked["model"]})

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/embeddings", embeddings)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield found
    await runner.cleanup()


POOL = [
    Intent(id=f"t{number}", text=f"{'a' * (number % 7)} intent {number % 11}", site="a.com")
    for number in range(60)
]


async def test_a_broken_run_goes_on_and_ends_as_if_it_had_not_been(
    endpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.pipelines.domains.gui.funnel.run.BLOCK", 10)
    monkeypatch.setattr("orchard.pipelines.domains.gui.funnel.run._CHECKPOINT_BLOCKS", 2)
    monkeypatch.setattr(encoders, "_PAUSE_SECONDS", 0.0)
    encoder = EndpointEncoder("embed", EndpointSettings(base_url=endpoint.url))
    whole = await Funnel(Rules(), encoder, tmp_path / "whole").run(POOL)
    assert [one.purpose for one in whole] == ["sft", "rl"]
    sft, rl = whole
    assert 0 < len(rl.kept) <= len(sft.kept) < len(POOL)
    for passed in whole:
        assert sorted([*passed.kept, *(one.id for one in passed.dropped)]) == sorted(one.id for one in POOL)
        assert all(one.like in passed.kept and one.similarity for one in passed.dropped)
        assert [step.after for step in passed.steps][-1] == len(passed.kept)

    endpoint.asked.clear()
    endpoint.down = lambda number: number in (1, 2) or number > 5  # at first busy, then gone
    with pytest.raises(TaskError, match="it answered 503"):
        await Funnel(Rules(), encoder, tmp_path / "broken").run(POOL)
    endpoint.down = lambda _: False
    asked = len(endpoint.asked)

    def stop(what: str, done: int, _total: int) -> None:
        if what == "deduplicating for sft" and done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await Funnel(Rules(), encoder, tmp_path / "broken", told=stop).run(POOL)
    assert len(endpoint.asked) - asked == 3  # of six blocks three had their vectors
    assert await Funnel(Rules(), encoder, tmp_path / "broken").run(POOL) == whole
    assert len(endpoint.asked) - asked == 3


async def test_an_endpoint_that_does_not_know_the_model_is_asked_once(endpoint: Any, tmp_path: Path) -> None:
    gone = EndpointEncoder("embed", EndpointSettings(base_url=endpoint.url.replace("v1", "v2")))
    with pytest.raises(TaskError, match="no embeddings from embed: it answered 404"):
        await Funnel(Rules(), gone, tmp_path).run(POOL)


async def test_without_a_task_nothing_is_left(tmp_path: Path) -> None:
    for passed in await Funnel(Rules(sites=frozenset({"b.org"})), HashingEncoder(), tmp_path).run(POOL):
        assert passed.kept == () and {one.stage for one in passed.dropped} == {Stage.SITES}


def test_sites_are_hosts(tmp_path: Path) -> None:
    given = (
        "https://www.Amazon.com/dp/1?x=2",
        "amazon.com",
        "http://amazon.com.:80/",
        "www.amazon.com",
        "http://[x",
    )
    assert [site_of(each) for each in given] == ["amazon.com"] * 4 + [""]
    listed = tmp_path / "top.csv"
    listed.write_text('Rank,Root Domain\n1,"youtube.com",99\n2,www.apple.com\n# no.such\n', encoding="utf-8")
    assert read_sites([listed]) == {"youtube.com", "apple.com"}
    listed.write_text("Rank\n1\n", encoding="utf-8")
    with pytest.raises(TaskError, match="names no host"):
        read_sites([listed])
