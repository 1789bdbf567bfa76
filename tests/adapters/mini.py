"""The real mini-swe-agent, with a model that is a script, in a sandbox."""

import os

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output

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
