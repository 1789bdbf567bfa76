"""A model and a run of the tests' own, on one thread."""

import pytest
import torch

from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.sft.settings import SftSettings, settings_from
from tests.pipelines.sft.small_runs import SHAPE, VOCABULARY, token_rows, write_dataset, write_tokenizer


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def model():
    return new_model(SHAPE, vocabulary=VOCABULARY, seed=3)


@pytest.fixture
def run_settings(tmp_path):
    """Settings of a run over 24 rows: 6 steps in all."""
    dataset = write_dataset(tmp_path / "dataset", token_rows(24))
    tokenizer = write_tokenizer(tmp_path / "tokenizer")

    def make(out: str = "out", **changes) -> SftSettings:
        return settings_from(
            {
                "dataset": str(dataset),
                "out": str(tmp_path / out),
                "shape": "tiny-test",
                "tokenizer": str(tokenizer),
                "epochs": 2,
                "global_batch": 8,
                "context": 96,
                "lr": 3e-3,
                "checkpoint_every": 2,
                "threads": 1,
                **changes,
            }
        )

    return make
