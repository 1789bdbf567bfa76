"""The loop of orchard-bash: a fake endpoint over real HTTP, real commands in a real repository."""

import msgspec
import pytest

from orchard.schemas.campaigns import Budget, ModelSpec, Timeouts
from orchard.schemas.messages import MessageNode, Role
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.episode.patches import state_left_behind
from orchard.workers.failures import InfrastructureError
from orchard.workers.harnesses import UnknownHarness, get_harness, patch_harness
from orchard.workers.harnesses.bash_loop import submitted
from orchard.workers.harnesses.bash_prompts import OBSERVATION_LIMIT, observation
from orchard.workers.harnesses.interface import Episode

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.fixture
def run(task, machine, models, blobs):
    """Run the harness; the result and the messages it published."""

    async def run(*, budget=None, timeouts=None, machine=machine, task=task):
        nodes = []

        async def publish(data):
            if isinstance(data, MessageNode):
                nodes.append(data)

        result = await get_harness("orchard-bash").run(
            Episode(
                task=task,
                machine=machine,
                model=models,
                student=ModelSpec(name="m"),
                trace=MessageTree(publish, blobs),
                budget=budget or Budget(),
                timeouts=timeouts or Timeouts(),
                seed=1,
            )
        )
        return result, nodes

    return run


def contents(nodes, role):
    return [node.content for node in nodes if node.role is role]


async def test_a_run_from_the_task_to_the_submission(run, endpoint, task):
    endpoint.says("I look.", "ls")
    endpoint.says("I change it.", "sed -i 's/return name/return name.strip()/' shop/sums.py")
    endpoint.says("I write it down.", "git diff -- shop/sums.py > patch.txt")
    endpoint.says("Done.", f"{SUBMIT} && cat patch.txt")
    result, nodes = await run()
    assert result.exit_status is ExitStatus.SUBMITTED
    assert result.submission.startswith("diff --git a/shop/sums.py b/shop/sums.py\n")
    assert result.submission.endswith("+    return name.strip()\n")
    assert result.leaf == nodes[-1].node_id
    assert [node.role for node in nodes[:3]] == [Role.SYSTEM, Role.USER, Role.ASSISTANT]
    assert task.statement in nodes[1].content
    assert nodes[3].content == "<returncode>0</returncode>\n<output>\nshop\ntests\n</output>"


async def test_calls_of_one_message_run_in_order_and_are_answered_each(run, endpoint):
    endpoint.says("", "echo one > /dev/stdout", "echo two")
    endpoint.says("", SUBMIT)
    _, nodes = await run()
    assert [node.tool_call_id for node in nodes if node.role is Role.TOOL][:2] == ["call-0", "call-1"]
    sent = endpoint.requests[1]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool"]


async def test_nothing_persists_between_commands(run, endpoint):
    endpoint.says("", "cd / && export WHERE=there")
    endpoint.says("", 'pwd; echo "[$WHERE] $PAGER $TQDM_DISABLE $LESS"')
    endpoint.says("", SUBMIT)
    _, nodes = await run()
    assert "[] cat 1 -R" in contents(nodes, Role.TOOL)[1]
    assert "<output>\n/\n" not in contents(nodes, Role.TOOL)[1]


async def test_the_tasks_environment_is_there(run, endpoint, task):
    endpoint.says("", "echo $GREETING")
    endpoint.says("", SUBMIT)
    greeting = msgspec.structs.replace(task, environment={"GREETING": "hello"})
    _, nodes = await run(task=greeting)
    assert "hello" in contents(nodes, Role.TOOL)[0]


async def test_a_timeout_is_an_observation_that_keeps_the_output(run, endpoint):
    endpoint.says("", "echo early; sleep 60")
    endpoint.says("", SUBMIT)
    result, nodes = await run(timeouts=Timeouts(command=0.5))
    observed = next(node for node in nodes if node.role is Role.TOOL)
    assert "<exception>TimeoutExpired" in observed.content
    assert "<returncode>-1</returncode>\n<output>\nearly\n</output>" in observed.content
    assert observed.result.timed_out
    assert result.exit_status is ExitStatus.SUBMITTED


BAD_CALLS = {
    "no call": [],
    "unknown tool": [{"id": "1", "function": {"name": "python", "arguments": '{"command": "1"}'}}],
    "not JSON": [{"id": "1", "function": {"name": "bash", "arguments": '{"command": "ls'}}],
    "no command": [{"id": "1", "function": {"name": "bash", "arguments": '{"cmd": "ls"}'}}],
    "not an object": [{"id": "1", "function": {"name": "bash", "arguments": "[]"}}],
    "not a string": [{"id": "1", "function": {"name": "bash", "arguments": '{"command": 1}'}}],
}


@pytest.mark.parametrize("kind", BAD_CALLS)
async def test_a_malformed_message_stays_and_is_answered_by_a_user_message(run, endpoint, kind):
    endpoint.answer(endpoint.completion("Let me see.", BAD_CALLS[kind]))
    endpoint.says("", SUBMIT)
    result, nodes = await run()
    assert result.exit_status is ExitStatus.SUBMITTED
    assert [node.role for node in nodes[2:4]] == [Role.ASSISTANT, Role.USER]
    assert "<error>" in nodes[3].content
    sent = endpoint.requests[1]["messages"]
    assert sent[2]["content"].startswith("Let me see.")
    assert "tool_calls" not in sent[2]


async def test_three_malformed_messages_in_a_row_end_the_run(run, endpoint):
    endpoint.says("I am thinking.")
    result, nodes = await run()
    assert result.exit_status is ExitStatus.FORMAT_FAILURE
    assert len(contents(nodes, Role.ASSISTANT)) == 3


async def test_a_good_message_starts_the_count_again(run, endpoint):
    for _ in range(2):
        endpoint.says("hm")
        endpoint.says("hm")
        endpoint.says("", "true")
    endpoint.says("", SUBMIT)
    result, _ = await run()
    assert result.exit_status is ExitStatus.SUBMITTED


async def test_a_message_that_was_cut_off_is_told_so(run, endpoint):
    reply = endpoint.completion("so long")
    reply["choices"][0]["finish_reason"] = "length"
    endpoint.answer(reply)
    endpoint.says("", SUBMIT)
    _, nodes = await run()
    assert "limit of output tokens" in nodes[3].content


@pytest.mark.parametrize(
    ("budget", "status", "calls"),
    [
        (Budget(steps=2), ExitStatus.STEP_LIMIT, 2),
        (Budget(tokens=30), ExitStatus.TOKEN_LIMIT, 3),
        (Budget(wall_seconds=60.0), ExitStatus.TIME_LIMIT, 2),
    ],
)
async def test_a_budget_that_runs_out_submits_the_state_left_behind(
    run, endpoint, machine, budget, status, calls
):
    machine.takes = 40.0
    endpoint.says("", "echo '# edited' >> shop/sums.py; echo new > notes.txt")
    result, nodes = await run(budget=budget)
    assert result.exit_status is status
    assert len(contents(nodes, Role.ASSISTANT)) == calls
    assert "+# edited" in result.submission and "b/notes.txt" in result.submission


async def test_a_conversation_too_long_for_the_model_is_the_token_limit(run, endpoint):
    endpoint.says("", "echo '# edited' >> shop/sums.py")
    endpoint.answer({"error": {"message": "m", "code": "context_length_exceeded"}}, status=400)
    result, _ = await run()
    assert result.exit_status is ExitStatus.TOKEN_LIMIT
    assert "+# edited" in result.submission


async def test_commits_of_the_agent_are_part_of_the_state_left_behind(run, endpoint):
    endpoint.says("", "echo x >> shop/sums.py; git -c user.name=a -c user.email=a@b commit -qam mine")
    result, _ = await run(budget=Budget(steps=1))
    assert "+x" in result.submission


async def test_an_agent_that_removes_its_workplace_leaves_nothing_behind(run, endpoint, task):
    endpoint.says("", f"rm -rf {task.workdir}")
    endpoint.says("", "ls")
    result, nodes = await run(budget=Budget(steps=2))
    assert (result.exit_status, result.submission) == (ExitStatus.STEP_LIMIT, "")
    assert "<returncode>126</returncode>" in contents(nodes, Role.TOOL)[1]


async def test_a_failure_of_ours_is_no_observation(run, endpoint):
    class DeadMachine:
        async def run(self, *_, **__):
            raise InfrastructureError(AbortCause.SANDBOX_DIED, "gone")

    endpoint.says("", "ls")
    with pytest.raises(InfrastructureError, match="gone"):
        await run(machine=DeadMachine())


async def test_the_state_left_behind_ignores_the_users_git_configuration(machine, task, shop):
    shop.git("config", "diff.noprefix", "true")
    shop.git("config", "color.ui", "always")
    (shop.directory / "data.bin").write_bytes(bytes(range(256)))
    (shop.directory / "shop/sums.py").write_text("x = 1\r\n")
    diff = await state_left_behind(machine, task, timeout=30.0)
    assert "--- a/shop/sums.py" in diff and "GIT binary patch" in diff


async def test_a_git_that_was_killed_costs_no_patch(machine, task, shop):
    (shop.directory / "shop/sums.py").write_text("x = 1\n")
    (shop.directory / ".git/index.lock").touch()
    assert "+x = 1" in await state_left_behind(machine, task, timeout=30.0)
    assert (shop.directory / ".git/index.lock").exists(), "the repository's own index is left alone"


@pytest.mark.parametrize(
    "changes", [{"timed_out": True, "returncode": -1}, {"out_of_memory": True, "returncode": 137}]
)
async def test_a_git_without_time_or_memory_is_tried_once_more(machine, task, shop, changes):
    """And then it is the agent's doing: an abort would buy another try for whoever makes git hang."""
    (shop.directory / "shop/sums.py").write_text("x = 1\n")

    class BusyMachine:
        def __init__(self, failures):
            self.failures, self.times = failures, []

        async def run(self, command, *, timeout, env, **given):
            self.times.append(timeout)
            if len(self.times) <= self.failures:
                killed = command.replace("git add -A", 'touch "$GIT_INDEX_FILE.lock" && false')
                assert killed != command
                await machine.run(killed, timeout=timeout, env=env, **given)
                return CommandOutcome(**({"output": "", "seconds": timeout} | changes))
            return await machine.run(command, timeout=timeout, env=env, **given)

        async def read(self, *given, **named):
            return await machine.read(*given, **named)

    once, always = BusyMachine(1), BusyMachine(9)
    assert "+x = 1" in await state_left_behind(once, task, timeout=30.0)
    assert await state_left_behind(always, task, timeout=30.0) == ""
    assert once.times == always.times == [30.0, 90.0]


def test_a_long_output_keeps_both_ends():
    outcome = CommandOutcome(output="a" * 5000 + "b" * 777 + "c" * 5000, returncode=0, seconds=0.1)
    text = observation(outcome, 60.0)
    assert "<warning>" in text and "777 characters left out" in text
    assert "b" not in text.split("<output_head>")[1].split("</output_head>")[0]


def test_an_output_under_the_limit_is_whole():
    outcome = CommandOutcome(output="a" * (OBSERVATION_LIMIT - 1), returncode=1, seconds=0.1)
    assert observation(outcome, 60.0).count("a" * (OBSERVATION_LIMIT - 1)) == 1


@pytest.mark.parametrize(
    ("output", "returncode", "submission"),
    [
        ("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\ndiff\n", 0, "diff\n"),
        ("\n COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT \n", 0, ""),
        ("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\ndiff\n", 1, None),
        ("first\nCOMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", 0, None),
        ("", 0, None),
    ],
)
def test_the_submission_protocol(output, returncode, submission):
    assert submitted(CommandOutcome(output=output, returncode=returncode, seconds=0.0)) == submission


def test_an_unknown_harness_is_named_with_the_known_ones():
    with pytest.raises(UnknownHarness, match=patch_harness()):
        get_harness("nobody")
