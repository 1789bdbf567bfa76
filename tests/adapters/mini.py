"""The real mini-swe-agent, with a model that is a script, in a sandbox."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output

from orchard.injector.blocking import SandboxClient
from orchard.injector.errors import SandboxFailed

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer"


def test_an_agent_solves_a_task_in_a_sandbox() -> None:
    environment = get_environment(
        {
            "environment_class": "orchard.adapters.mini_swe_agent.OrchardEnvironment",
            "image": "host",
            "env": {"ANSWER": "forty-two"},
        }
    )
    commands = ["echo $ANSWER > answer; ls", "exit 3", SUBMIT]
    model = DeterministicModel(
        outputs=[make_output("thought", [{"command": command}]) for command in commands]
    )
    agent = DefaultAgent(model, environment, system_template="s", instance_template="{{task}} {{system}}")
    result = agent.run("task")
    assert result["submission"] == "forty-two\n", result
    assert "forty-two" not in str(environment.serialize())
    assert os.path.exists("answer") is False  # noqa: PTH110
    environment.cleanup()


def test_a_sandbox_that_ends_under_a_command_is_an_error_and_no_failed_command() -> None:
    environment = get_environment(
        {"environment_class": "orchard.adapters.mini_swe_agent.OrchardEnvironment", "image": "host"}
    )
    with ThreadPoolExecutor(1) as beside, SandboxClient(auto_cleanup=False) as client:
        running = beside.submit(environment.execute, {"command": "touch begun; sleep 600"}, timeout=600)
        sandbox = client.get_sandbox(environment._sandbox.sandbox_id)
        sandbox.exec("until [ -e begun ]; do :; done")
        sandbox.delete()
        with pytest.raises(SandboxFailed, match="ended under a command"):
            running.result()
    environment.cleanup()
