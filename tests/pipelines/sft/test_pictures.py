"""Fine-tuning of vision-language models: tiny random ones of the real classes."""

import msgspec
import numpy as np
import pytest
import torch

from orchard.pipelines.domain import domains
from orchard.pipelines.models.directories import load_model, load_processor
from orchard.pipelines.models.tiny_vision import new_vision_model
from orchard.pipelines.sft.attention import use_packed_attention
from orchard.pipelines.sft.loss import make_pack, summed_loss, trained_logits
from orchard.pipelines.sft.picture_packs import eyes_of
from orchard.pipelines.sft.precision import BFloat16Copies
from orchard.pipelines.sft.preparation import parameters_sha256
from orchard.pipelines.sft.settings import TrainingError, settings_from
from orchard.pipelines.sft.trainer import train
from orchard.pipelines.vision.places import Grid, Misplaced, positions
from orchard.pipelines.vision.reading import BadPicture, PictureReader
from orchard.schemas.training import TrainingFinished, TrainingStarted
from orchard.storage.blobs import BlobStore
from tests.pipelines.sft.pictured_runs import (
    SEEING,
    picture,
    pictured_dataset,
    pictured_rows,
    seeing_tokenizer,
)

CPU = torch.device("cpu")


@pytest.fixture(params=SEEING)
def seeing(request, tmp_path):
    """Model, eyes and rows."""
    tokenizer = seeing_tokenizer(tmp_path / "tokenizer")
    model, processor = new_vision_model(request.param, tokenizer=tokenizer, seed=3)
    blobs = BlobStore(tmp_path / "blobs")
    rows = pictured_rows(8, PictureReader(processor), blobs, model.config.image_token_id)
    return model.eval(), eyes_of(model, processor, blobs.read), rows


def test_the_three_positions_are_those_that_the_models_compute(seeing):
    model, eyes, rows = seeing
    for row in rows:
        if not row.images:
            continue
        pack = make_pack([row], CPU, eyes)
        ids = pack.ids
        kinds = (ids == model.config.image_token_id).int()
        theirs, _ = model.model.get_rope_index(
            input_ids=ids, image_grid_thw=pack.pictures.grids, mm_token_type_ids=kinds
        )
        assert torch.equal(pack.positions, theirs)


def test_a_tower_trains_in_bfloat16_as_in_float32(seeing):
    model, eyes, rows = seeing
    use_packed_attention(model)
    pack = make_pack(rows, CPU, eyes)
    exact = summed_loss(model, pack).item()
    with BFloat16Copies(model, CPU).in_use():
        rounded = summed_loss(model, pack)
        rounded.backward()
    assert rounded.item() == pytest.approx(exact, rel=2e-3)
    assert all(weight.grad.any() for name, weight in model.named_parameters() if "patch_embed" in name)


def test_packed_rows_with_several_pictures_have_the_logits_of_each_by_itself(seeing):
    model, eyes, rows = seeing
    with torch.no_grad():
        alone = [trained_logits(model, make_pack([row], CPU, eyes)) for row in rows]
        plain = [
            model(
                input_ids=(pack := make_pack([row], CPU, eyes)).ids,
                pixel_values=pack.pictures.pixels,
                image_grid_thw=pack.pictures.grids,
                mm_token_type_ids=(pack.ids == model.config.image_token_id).int(),
            ).logits[0, pack.sources]
            for row in rows
            if row.images
        ]
        use_packed_attention(model)
        packed = torch.split(trained_logits(model, make_pack(rows, CPU, eyes)), [4] * len(rows))
    for one, other in zip(alone, packed, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    pictured = [one for one, row in zip(packed, rows, strict=True) if row.images]
    for one, other in zip(pictured, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_a_picture_changes_what_follows_it_in_its_own_row_alone(seeing):
    model, eyes, rows = seeing
    use_packed_attention(model)
    pictured = next(row for row in rows if row.images)
    pair = [pictured, rows[2]]
    with torch.no_grad():
        one = trained_logits(model, make_pack(pair, CPU, eyes))
        eyes._pictures.get(pictured.images[0]).pixels[:] = 0.0
        other = trained_logits(model, make_pack(pair, CPU, eyes))
    assert (one[:4] - other[:4]).abs().max() > 1e-3
    assert torch.equal(one[4:], other[4:])


def test_rows_whose_picture_tokens_are_not_those_of_their_pictures_do_not_train(seeing):
    _, eyes, rows = seeing
    row = next(row for row in rows if len(row.images) == 2)
    for wrong in (
        msgspec.structs.replace(row, images=row.images[:1]),
        msgspec.structs.replace(row, input_ids=np.roll(row.input_ids, len(row.input_ids) // 2)),
        msgspec.structs.replace(row, input_ids=row.input_ids[:-10], loss_mask=row.loss_mask[:-10]),
    ):
        with pytest.raises(Misplaced, match=row.example_id):
            make_pack([wrong], CPU, eyes)


def test_positions_of_two_pictures():
    found = positions(12, [(1, Grid(1, 4, 4)), (6, Grid(1, 2, 6))], merge=2)
    assert found.tolist() == [
        [0, 1, 1, 1, 1, 3, 4, 4, 4, 7, 8, 9],
        [0, 1, 1, 2, 2, 3, 4, 4, 4, 7, 8, 9],
        [0, 1, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no picture"),
        (b"GIF89a", "picture"),
        (picture(1, 30, 30)[:-40], "decoded"),
        (b"x" * (20 * 2**20 + 1), "bytes"),
        (picture(1, 300, 1), "shown"),
    ],
)
def test_bytes_that_are_no_picture_are_refused_in_a_sentence(seeing, data, reason):
    _, eyes, _ = seeing
    with pytest.raises(BadPicture, match=reason) as refused:
        eyes._pictures.reader.read(data)
    assert "\n" not in str(refused.value)


class _Facts:
    def __init__(self):
        self.facts = []

    def put(self, fact):
        self.facts.append(fact)


@pytest.fixture(params=SEEING)
def pictured_run(request, tmp_path):
    """Settings of a run over 12 rows with pictures, by the preset `gui`."""
    tokenizer = seeing_tokenizer(tmp_path / "tokenizer")
    model, processor = new_vision_model(request.param, tokenizer=tokenizer, seed=0)
    token = model.config.image_token_id
    dataset = pictured_dataset(tmp_path / "dataset", PictureReader(processor), token)

    def make(out="out", **changes):
        return settings_from(
            {
                "preset": "gui",
                "dataset": str(dataset),
                "out": str(tmp_path / out),
                "shape": request.param,
                "tokenizer": str(tmp_path / "tokenizer"),
                "global_batch": 6,
                "context": 400,
                "lr": 3e-3,
                "precision": "float32",
                "threads": 1,
                **changes,
            }
        )

    return make


@pytest.mark.long
def test_the_preset_trains_the_language_model_and_leaves_tower_and_projector_as_they_were(pictured_run):
    assert domains()["gui"].sft_preset["freeze"] == ["*visual*", "*vision*"]
    facts = _Facts()
    result = train(pictured_run(), sinks=lambda: [facts])
    start = load_model(train(pictured_run("start", max_steps=1, lr=1e-30, min_lr=0.0)))
    before, after = (dict(model.named_parameters()) for model in (start, load_model(result)))
    tower = [name for name in before if "visual" in name]
    assert any("merger" in name for name in tower)
    first, *steps, last = facts.facts
    assert isinstance(first, TrainingStarted) and isinstance(last, TrainingFinished)
    assert first.frozen_sha256 == last.frozen_sha256 == parameters_sha256(after, tower)
    assert parameters_sha256(before, tower) == parameters_sha256(after, tower)
    assert all(
        not torch.equal(before[name], after[name])
        for name in before
        if name not in tower and before[name].ndim == 2
    )
    assert len(steps) == 6 and steps[-1].loss < steps[0].loss
    assert steps[0].trained_tokens == 6 * 4  # the last turn alone
    assert load_processor(result).merge_size == 2
    again = train(pictured_run("again"))
    assert (again / "model.safetensors").read_bytes() == (result / "model.safetensors").read_bytes()


def test_a_frozen_weight_that_moves_ends_the_run(pictured_run, monkeypatch):
    from orchard.pipelines.sft import trainer

    step = trainer.SftTrainer.step

    def moving(self, number):
        found = step(self, number)
        with torch.no_grad():
            next(p for name, p in self.model.named_parameters() if "visual.merger" in name).add_(1e-3)
        return found

    monkeypatch.setattr(trainer.SftTrainer, "step", moving)
    with pytest.raises(TrainingError, match="freezes"):
        train(pictured_run(max_steps=1))


@pytest.mark.long
def test_packing_changes_no_step_of_a_run_with_pictures(pictured_run):
    losses = []
    for packing in (True, False):
        facts = _Facts()
        train(pictured_run(f"packing-{packing}", packing=packing), sinks=lambda facts=facts: [facts])
        losses.append([fact.loss for fact in facts.facts[1:-1]])
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-5)


def test_a_model_of_text_refuses_rows_with_pictures(pictured_run):
    with pytest.raises(TrainingError, match="pictures"):
        train(pictured_run(shape="tiny-test"))
