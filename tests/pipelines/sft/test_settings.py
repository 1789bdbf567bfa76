"""Configurations: the paper's presets, and what is refused."""

import pytest

from orchard.pipelines.domain import domains
from orchard.pipelines.sft.settings import TrainingError, settings_from, settings_hash

NEEDED = {"dataset": "d", "out": "o", "model": "m"}


@pytest.mark.parametrize(
    ("preset", "epochs", "batch", "floor", "warmup"),
    [("swe", 5, 128, 1e-6, 0.0), ("gui", 3, 128, 0.0, 0.1), ("claw", 1, 16, 1e-6, 0.0)],
)
def test_presets_are_the_papers(preset, epochs, batch, floor, warmup):
    settings = settings_from({"preset": preset, **NEEDED})
    assert (settings.epochs, settings.global_batch, settings.lr) == (epochs, batch, 1e-5)
    assert (settings.min_lr, settings.warmup, settings.context) == (floor, warmup, 65_536)


def test_keys_win_over_their_preset():
    assert settings_from({"preset": "swe", "epochs": 1, **NEEDED}).epochs == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"preset": "huge"}, "choose one of " + ", ".join(domains())),
        ({"epoch": 1}, "epoch: there is no such key"),
        ({"shape": "tiny-1m"}, "either `model`"),
        ({"model": None}, "either `model`"),
        ({"model": None, "shape": "tiny-1m"}, "needs `tokenizer`"),
        ({"min_lr": 1.0}, "lower it"),
        ({"global_batch": 0}, "global_batch"),
    ],
)
def test_what_cannot_run_is_said_in_a_sentence(change, says):
    with pytest.raises(TrainingError, match=says):
        settings_from(NEEDED | change)


def test_the_hash_is_of_what_makes_the_weights():
    settings = settings_from(NEEDED)
    assert settings_hash(settings) == settings_hash(settings_from(NEEDED | {"out": "p", "threads": 2}))
    assert settings_hash(settings) != settings_hash(settings_from(NEEDED | {"seed": 1}))
