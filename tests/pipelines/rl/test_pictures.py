"""Rollouts with pictures: what trains is what was sampled, with the very pictures that were shown."""

import hashlib

import msgspec
import pytest
import torch

from orchard.pipelines.models.directories import load_model, load_processor
from orchard.pipelines.policy.engine import EngineSettings
from orchard.pipelines.policy.server import PolicyServer
from orchard.pipelines.rl import learner as learner_module
from orchard.pipelines.rl.feed import Feed
from orchard.pipelines.rl.learner import Learner, Trained, sees
from orchard.pipelines.rl.loss_settings import told_loss
from orchard.pipelines.rl.losses import policy_loss
from orchard.pipelines.rl.sequences import NotSampled, sequences
from orchard.pipelines.rl.settings import settings_from
from orchard.pipelines.sft.picture_packs import eyes_of
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.llm_calls import LLMCall, ModelKind, Usage
from orchard.storage.blobs import BlobStore
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings
from tests.pipelines.policy.test_pictures import user, write_seeing
from tests.pipelines.rl.test_feed import stored
from tests.pipelines.rl.test_learner import ALONE, settings
from tests.pipelines.rl.test_sequences import said
from tests.pipelines.rl.written_log import about, assembled, message, plan_of, run_settings
from tests.pipelines.sft.pictured_runs import SEEING, picture

TOLERANCE = 1e-4
"""Of log-probabilities, between trainer and server in float32."""


@pytest.mark.long
@pytest.mark.parametrize("shape", SEEING)
async def test_the_trainer_has_the_probabilities_at_which_the_server_sampled(shape, tmp_path, monkeypatch):
    """Two turns each, with a window of one picture in every other rollout."""
    directory = write_seeing(tmp_path / "model", shape)
    blobs = BlobStore(tmp_path / "store")
    server = PolicyServer(directory, settings=EngineSettings(slots=4, context=512, prefix_cache=True))
    spec = ModelSpec(name="policy", max_tokens=12, temperature=0.8, logprobs=True)
    found, merged = [], 0
    async with server:
        endpoint = EndpointSettings(base_url=server.url, extra_body={"return_token_ids": True})
        async with ModelClient({"default": endpoint}) as client:
            for number in range(4):
                first, second = (picture(2 * number + place, 40, 40) for place in (0, 1))
                window = [first, second] if number % 2 else [second]
                asked = [user("Fix ", first)]
                one = await client.complete(spec, asked, [], seed=number, timeout=60)
                answer = {"role": "assistant", "content": one.text or "[empty message]"}
                before = asked if number % 2 else [user("Fix ")]
                two = await client.complete(
                    spec, [*before, answer, user("go on ", second)], [], seed=number, timeout=60
                )
                shown = [[blobs.put(data).sha256 for data in seen] for seen in ([first], window)]
                records = [one.tokens, two.tokens]
                rows = sequences(records, shown)
                whole = one.tokens.prompt_ids + one.tokens.ids
                assert len(window) == 2 or two.tokens.prompt_ids[: len(whole)] != whole
                goes_on = two.tokens.prompt_ids[: len(whole)] == whole  # not after an empty answer
                merged += goes_on
                assert [row.images for row in rows] == ([shown[1]] if goes_on else shown)
                trained = [t for row in rows for t, m in zip(row.ids, row.mask, strict=True) if m]
                assert trained == [token for record in records for token in record.ids]
                found.append(Trained(f"r{number}", "g", float(number % 3), False, rows))
    assert merged
    seen = []

    def spy(tokens, given):
        seen.append(tokens)
        return policy_loss(tokens, given)

    monkeypatch.setattr(learner_module, "get_loss", lambda _: spy)
    model = load_model(directory)
    eyes = eyes_of(model, load_processor(directory), blobs.read)
    trainer = Learner(settings(context=512, temperature=0.8), model, ALONE, eyes=eyes)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    figures = trainer.step(0, found)
    assert sum(len(tokens.old) for tokens in seen) == sum(rollout.tokens for rollout in found)
    for tokens in seen:
        torch.testing.assert_close(tokens.old, tokens.sampled, rtol=0, atol=TOLERANCE)
    assert figures.importance == pytest.approx(1.0, abs=TOLERANCE)
    moved = [name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])]
    assert any("visual" in name for name in moved)  # the pictures are part of what learns


def test_equal_tokens_with_other_pictures_are_another_sequence():
    records = [said([1, 7, 7, 2], [3]), said([1, 7, 7, 2, 3, 4], [5]), said([1, 7, 7, 2, 3, 4], [6])]
    rows = sequences(records, [["a"], ["a"], ["b"]])
    assert [(row.ids, row.images) for row in rows] == [
        ([1, 7, 7, 2, 3, 4, 5], ["a"]),
        ([1, 7, 7, 2, 3, 4, 6], ["b"]),
    ]
    assert len(sequences(records[:2])) == 1


async def test_the_feed_gives_sequences_their_pictures_and_refuses_those_it_cannot_show(tmp_path):
    plan, blobs = plan_of(run_settings()), BlobStore(tmp_path)
    directory = write_seeing(tmp_path / "model", SEEING[0])
    model = load_model(directory)
    token = model.config.image_token_id
    eyes = eyes_of(model, load_processor(directory), blobs.read)
    data = picture(1, 40, 40)
    known, unknown = blobs.put(data).sha256, hashlib.sha256(b"lost").hexdigest()
    size = eyes._pictures.reader.tokens(40, 40)
    for shown, tokens, fault in (
        ([known], size, None),
        ([known], size - 1, "picture tokens"),
        ([], size, "picture tokens"),
        ([unknown], size, "not in the store"),
    ):
        feed = Feed(plan, blobs, sees(eyes))
        events = [assembled(plan, 0, (0, 1), (1.0, 0.0))]
        for slot in (0, 1):
            request = plan.request(0, slot)
            record = said([1, *[token] * tokens, 20], [21, 22])
            call = about(request, called("n1", shown), "call.1")
            events = [message(request, 1, record), call, *events]
        feed.take(stored(events))
        (group,) = feed.waiting
        rows = await feed.sampled(group)
        if fault is None:
            assert [row.images for (row,) in rows] == [[known], [known]]
            with pytest.raises(NotSampled, match="text alone"):
                sees(None)(rows[0][0])
            await feed.check(rows)
        else:
            with pytest.raises(NotSampled, match=fault):
                await feed.check(rows)


def called(node, shown):
    return LLMCall(
        parent="p",
        node=node,
        turn=1,
        endpoint="e",
        model="m",
        served_model="m",
        model_kind=ModelKind.MODEL,
        finish_reason="stop",
        usage=Usage(),
        cost_usd=None,
        seconds=0.1,
        images_shown=tuple(shown) or None,
    )


def test_the_recipe_of_browser_agents():
    """Dynamic sampling, no mean over a rollout's tokens, clips of 0.2 and 0.28, no divergence; 15 then 30."""
    made = settings_from({"preset": "gui", "run": "r", "model": "m", "out": "o"})
    loss = msgspec.to_builtins(made.loss)
    assert made.bar.interval is None and not made.keep_degenerate
    assert made.loss.clips == (0.2, 0.28) and loss["reduction"] == "constant_sum" and made.loss.kl == 0
    assert (made.budget.steps, made.curriculum.steps) == (15, 30)
    assert told_loss(made.loss)
