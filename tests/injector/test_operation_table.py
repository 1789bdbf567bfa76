"""One table of operations: an operation is written in it, in the agent that does it and in the client."""

import ast
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from orchard.injector import operations
from orchard.injector.agent.server import AgentServer
from orchard.injector.operations import OPERATIONS, ApiOperation
from orchard.injector.orchestrator.app import Orchestrator

ROOM = Path(operations.__file__).parent
PASSED_ON = [one for one in OPERATIONS if not hasattr(Orchestrator, f"_{one.name}")]
AGENTS = ("heartbeat", "exec", "exec/pty", "apply_patch", "files/list", "archive", "fork", "snapshot")
"""Last parts of the paths of what an agent does with its own sandbox."""


def test_every_operation_is_in_the_table_once() -> None:
    assert len({(one.method, one.path) for one in OPERATIONS}) == len(OPERATIONS)
    assert len({one.name for one in OPERATIONS}) == len(OPERATIONS)


@pytest.mark.parametrize("operation", PASSED_ON, ids=lambda one: one.name)
def test_an_agent_does_what_the_orchestrator_has_no_handler_for(operation: ApiOperation) -> None:
    served = AgentServer(Mock(), Mock()).application().router.routes()
    assert (operation.method, operation.path) in {
        (route.method, route.resource.canonical) for route in served if route.resource
    }


@pytest.mark.parametrize("part", AGENTS)
def test_a_path_is_written_in_the_table_and_in_the_agent(part: str) -> None:
    path = re.compile(rf"(/sandboxes/\{{id\}})?/{part}")
    writers = {
        str(file.relative_to(ROOM))
        for file in ROOM.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and path.fullmatch(node.value)
    }
    assert writers == {"operations.py", "agent/server.py"}


def test_backends_make_and_end_sandboxes_and_name_their_agent() -> None:
    from orchard.injector.backend import Backend

    methods = {name for name in vars(Backend) if not name.startswith("_")}
    lifecycle = {"open", "close", "health", "resources", "create", "get", "wait", "list", "delete"}
    assert methods == lifecycle | {"agent", "images"}
