"""The contract of the sandbox service while it is upgraded: parts of it are of the previous version."""

from collections.abc import Iterator, Mapping

import pytest

from tests.contract.local import LocalDeployment, local_deployment
from tests.contract.points import *  # noqa: F403

pytestmark = pytest.mark.slow

NEW: dict[str, str] = {}


@pytest.fixture(scope="module", params=["agent", "agent and orchestrator", "orchestrator"])
def service(
    request: pytest.FixtureRequest, previous: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalDeployment]:
    """By what is of the previous version. The client is of this one, and goes to both orchestrators."""
    agent: Mapping[str, str] = previous if "agent" in request.param else NEW
    other: Mapping[str, str] = previous if "orchestrator" in request.param else NEW
    with local_deployment(tmp_path_factory.mktemp("mixed"), agent, [other, NEW]) as deployment:
        yield deployment
