"""A model of the tests' own, on one thread."""

import pytest
import torch

from orchard.pipelines.models.tiny import new_model
from tests.pipelines.sft.small_runs import SHAPE, VOCABULARY


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model():
    return new_model(SHAPE, vocabulary=VOCABULARY, seed=3)
