"""The contract of the sandbox service while it is upgraded: parts of it are of the previous version.

Two of its points are other ones here, for what the previous orchestrator says otherwise, or not yet.
"""

from collections.abc import Iterator, Mapping

import aiohttp
import msgspec
import pytest

from tests.contract.deployment import Deployment
from tests.contract.local import LocalDeployment, local_deployment
from tests.contract.points import *  # noqa: F403
from tests.contract.replicas import Pair, cancelled_at_the_other

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


async def test_replicas_a_job_of_one_is_waited_for_and_cancelled_at_the_other(
    pair: Pair, service: Deployment
) -> None:
    """The previous orchestrator does not pass on `ending`."""
    first, second = await cancelled_at_the_other(pair, service)
    assert first.ending in (None, second.ending)
    assert msgspec.structs.replace(first, ending=second.ending) == second
    assert (first.status, first.error) == ("failed", "cancelled")


async def test_states_gpus_and_volumes_are_given_as_the_administrator_allows(
    http: aiohttp.ClientSession, service: Deployment
) -> None:
    """The previous orchestrator refuses them with 501."""
    for wanted in ({"gpus": 1}, {"volumes": {"datasets": "/data"}}):
        reply = await http.post("/sandboxes", json={"image": service.image, **wanted})
        assert reply.status in (422, 501)
