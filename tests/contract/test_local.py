"""The contract on the local backend: two orchestrators in front of one agent."""

from collections.abc import Iterator

import pytest

from tests.contract.local import LocalDeployment, local_deployment
from tests.contract.points import *  # noqa: F403


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDeployment]:
    with local_deployment(tmp_path_factory.mktemp("contract")) as deployment:
        yield deployment
