"""Fixtures that several rooms' tests share."""

import gc
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from orchard.streams.errors import ServerFailed
from orchard.streams.server import EmbeddedServer, find_binary

# Collection makes millions of objects that stay, and no garbage.
gc.disable()

# A shell's background job ignores these, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# On a busy machine an example may take long: that is no failure. The examples follow from the test's text, so
# that a run says something of the change it runs for; `HYPOTHESIS=random` looks for others.
settings.register_profile(
    "orchard",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("HYPOTHESIS") != "random",
)
settings.load_profile("orchard")

LEARNING = Path(__file__).with_name("learning")
collect_ignore = ["kubernetes"]
"""These need a cluster: `make test-kubernetes` names them."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The learning demonstrations, which import all that trains, are not read where no slow test runs."""
    wanted = config.option.markexpr.split(" and ")
    return True if collection_path == LEARNING and "not slow" in wanted else None


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The learning demonstrations are slow. What takes minutes comes first, then files of few tests, as their
    tests are longer: so no process works alone at the end. Without root, what needs it is left out, and the
    summary names it."""
    tests = Counter(item.path for item in items)
    for item in items:
        if item.path.parent == LEARNING:
            item.add_marker(pytest.mark.slow)
        mark = item.get_closest_marker("needs_root")
        if mark is not None and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(f"needs root, as CI has it: {mark.args[0]}"))
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None, tests[item.path], item.path))


def _environment_comes_back() -> Iterator[None]:
    """What a test, or a module's fixture, sets in this process's environment is no other test's setting."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


of_each_module = pytest.fixture(autouse=True, scope="module")(_environment_comes_back)
of_each_test = pytest.fixture(autouse=True)(_environment_comes_back)


@pytest.fixture
def installed() -> None:
    """For tests of the command line, which tells its version: a GPU node has the files alone."""
    try:
        metadata.distribution("orchard-pipeline")
    except metadata.PackageNotFoundError:
        pytest.fail("orchard-pipeline is not installed: run `pip install -e .`", pytrace=False)


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A real NATS server of this test's own. A GPU node has none."""
    try:
        find_binary()
    except ServerFailed as error:
        pytest.fail(str(error), pytrace=False)
    async with EmbeddedServer(tmp_path / "nats") as server:
        yield server
