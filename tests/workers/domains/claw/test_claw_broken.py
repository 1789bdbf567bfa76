"""What a Claw task brings and does not work is the task's: not the sandbox service's, and not tried again."""

import sys
from pathlib import Path
from typing import Any

import pytest

from orchard.schemas.outcomes import AbortCause
from orchard.workers.domains.claw.claw_eval import remote
from orchard.workers.domains.claw.claw_eval.checkout import ask
from orchard.workers.domains.claw.script_runner import ScriptLimits, run_script
from orchard.workers.failures import InfrastructureError
from tests.workers.conftest import SubprocessMachine

REMOTE = str(Path(remote.__file__))
NOBODY = "http://127.0.0.1:9"
"""Where nobody listens."""


def service(code: str, **changes: Any) -> dict[str, Any]:
    """A mock service that runs so; it never becomes healthy."""
    return {
        "name": "desk",
        "command": f'python3 -c "{code}"',
        "port": 9,
        "env": {},
        "health_check": f"{NOBODY}/health",
        "health_check_method": "GET",
        "ready_timeout": 1.0,
        "reset_endpoint": None,
        **changes,
    }


@pytest.mark.parametrize(
    ("given", "cause", "said"),
    [
        (service("open('fixtures.json')"), AbortCause.TASK_BROKEN, "FileNotFoundError"),
        (service("import flask_of_nobody"), AbortCause.TASK_BROKEN, "ModuleNotFoundError"),
        (service("", command="/nowhere/server"), AbortCause.TASK_BROKEN, "cannot be executed"),
        (service("import os; os.kill(os.getpid(), 9)"), AbortCause.SANDBOX_UNAVAILABLE, "ended with -9"),
        pytest.param(
            *(service("import time; time.sleep(600)"), AbortCause.SANDBOX_UNAVAILABLE, "not ready in time"),
            marks=pytest.mark.slow,  # a service has a minute
        ),
    ],
)
async def test_a_service_that_ends_by_itself_is_the_tasks_and_a_slow_one_the_machines(
    machine: SubprocessMachine, tmp_path: Path, given: dict[str, Any], cause: AbortCause, said: str
) -> None:
    start = {"root": str(tmp_path), "services": [given], "variables": {}}
    with pytest.raises(InfrastructureError, match=said) as raised:
        await ask(machine, sys.executable, REMOTE, "start", start)
    assert raised.value.cause is cause
    assert raised.value.retryable is (cause is AbortCause.SANDBOX_UNAVAILABLE)


async def test_an_interpreter_that_the_image_lacks_is_the_tasks(machine: SubprocessMachine) -> None:
    async def nobody(_: Any) -> Any:
        raise AssertionError

    with pytest.raises(InfrastructureError, match="no /nowhere/python") as raised:
        await ask(machine, "/nowhere/python", REMOTE, "start", {})
    assert raised.value.cause is AbortCause.TASK_BROKEN
    with pytest.raises(InfrastructureError, match="no /nowhere/python") as raised:
        await run_script(
            machine, "test", "", b"{}", limits=ScriptLimits(), ask=nobody, python="/nowhere/python"
        )
    assert raised.value.cause is AbortCause.TASK_BROKEN
