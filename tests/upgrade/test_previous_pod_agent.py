"""A Pod keeps the agent that it was made with: this orchestrator's line to agents of the previous version."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.injector.conftest import busybox, payload  # noqa: F401
from tests.injector.test_pod_agent import *  # noqa: F403

del TestGrace  # noqa: F821 - the previous agent has no grace

pytestmark = [pytest.mark.slow, pytest.mark.needs_root("makes containers of its own")]


@pytest.fixture(scope="session")
def archive(previous: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The previous agent's payload."""
    made = tmp_path_factory.mktemp("previous") / "payload.tar"
    line = [sys.executable, "-m", "orchard.injector.payload", "build", str(made)]
    subprocess.run(line, check=True, env=os.environ | previous)
    return made
