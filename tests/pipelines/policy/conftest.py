"""Model directories and running servers."""

import pytest
import torch

from orchard.pipelines.policy.engine import EngineSettings
from orchard.pipelines.policy.server import PolicyServer
from tests.pipelines.policy.small_models import write_model


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "first")


@pytest.fixture(scope="session")
def other_directory(tmp_path_factory, model_directory):
    """Other weights, the same tokenizer."""
    return write_model(tmp_path_factory.mktemp("models") / "other", seed=1, tokenizer=model_directory)


@pytest.fixture
async def serve(model_directory):
    """Start a server with these settings; it ends with the test."""
    running = []

    async def start(directory=None, *, slots=8, context=512, waiting=64, **options):
        prefix_cache = options.pop("prefix_cache", False)
        settings = EngineSettings(slots=slots, context=context, waiting=waiting, prefix_cache=prefix_cache)
        server = PolicyServer(directory or model_directory, settings=settings, **options)
        await server.start()
        running.append(server)
        return server

    yield start
    for server in running:
        await server.stop()
