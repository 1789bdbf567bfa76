"""One table of operations: an operation is written in it, in the agent that does it and in the client."""

from unittest.mock import Mock

import pytest

from orchard.injector.agent.server import AgentServer
from orchard.injector.operations import OPERATIONS, ApiOperation
from orchard.injector.orchestrator.app import Orchestrator

PASSED_ON = [one for one in OPERATIONS if not hasattr(Orchestrator, f"_{one.name}")]


def test_every_operation_is_in_the_table_once() -> None:
    assert len({(one.method, one.path) for one in OPERATIONS}) == len(OPERATIONS)
    assert len({one.name for one in OPERATIONS}) == len(OPERATIONS)


@pytest.mark.parametrize("operation", PASSED_ON, ids=lambda one: one.name)
def test_an_agent_does_what_the_orchestrator_has_no_handler_for(operation: ApiOperation) -> None:
    served = AgentServer(Mock(), Mock()).application().router.routes()
    assert (operation.method, operation.path) in {
        (route.method, route.resource.canonical) for route in served if route.resource
    }
