"""Tasks in Claw-Eval's layout, from the checkout to the reward: its services and graders as they are."""

import json
from contextlib import asynccontextmanager, nullcontext

import msgspec
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.claw.claw_eval import CheckoutOptions, read_checkout
from orchard.pipelines.tasks.errors import TaskError
from orchard.schemas.claw import ServiceCalled
from orchard.schemas.judging import JudgeRuled
from orchard.schemas.messages import ToolCall
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.claw.claw_eval.workspace import TOOLS
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.episode.settings import JudgeSettings
from orchard.workers.episode.worlds import WorldContext, open_world
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import grade
from orchard.workers.judges.ruling import Judges
from tests.claw_eval_checkout import make_checkout
from tests.injector.conftest import Service


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    service = Service(tmp_path_factory.mktemp("claw-eval") / "state")
    yield service
    service.stop()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return make_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return BlobStore(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def tasks(checkout, store):
    read = read_checkout(checkout, store.put, CheckoutOptions())
    assert [(each.name, each.why) for each in read.left_out] == [
        ("T04_talk", "its user is played by a model, which no harness here does"),
        ("T08_pictured", "its user shows a.jpg, which no harness here does"),
        ("T09_missing", "it names the file film.mp4, which does not exist"),
    ]
    return {task.task_id: task for task in read.tasks}


class Episode:
    """What happens in one attempt, without a model: calls by hand, then the grade."""

    def __init__(self, service, store, models, judge="wise"):
        self.service, self.store, self.models, self.judge = service, store, models, judge
        self.events = []
        self.shown = []
        self.pictures = []

    async def publish(self, event):
        self.events.append(event)

    async def play(self, task, *calls, answer="Answered."):
        async with AsyncSandboxClient(self.service.url) as client:

            @asynccontextmanager
            async def sandbox(image, _purpose=""):
                async with await client.create_sandbox(image, memory="1Gi", cpu="1") as made:
                    yield SandboxMachine(made)

            async with sandbox(task.image) as machine:
                opening = WorldContext(
                    task=task,
                    machine=machine,
                    seed=1,
                    name="r.1",
                    publish=self.publish,
                    blobs=self.store,
                    sandbox=sandbox,
                    command_seconds=30.0,
                )
                messages = [{"role": "user", "content": task.statement}]
                async with open_world(opening) as world:
                    self.tools = [tool["function"]["name"] for tool in world.tools]
                    for number, (name, arguments) in enumerate(calls, 1):
                        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
                        made = ToolCall(id=f"c{number}", name=name, arguments=text)
                        outcome, shown = await world.call(made)
                        self.shown.append((outcome.returncode, shown))
                        self.pictures.append(outcome.pictures)
                        function = {"name": name, "arguments": text}
                        said = {"id": made.id, "type": "function", "function": function}
                        messages.append({"role": "assistant", "content": "", "tool_calls": [said]})
                        messages.append({"role": "tool", "tool_call_id": made.id, "content": shown})
                    messages.append({"role": "assistant", "content": answer})
                    submission = await world.hand_in(ExitStatus.FINISHED, messages)
            async with sandbox(task.image) as grading:
                return await grade(
                    task,
                    submission,
                    grading,
                    timeout=60.0,
                    blobs=self.store,
                    pristine=lambda: nullcontext(grading),
                    judges=Judges(self.models, JudgeSettings(model=self.judge), self.publish),
                )


@pytest.fixture
def episode(service, store, models):
    return Episode(service, store, models)


LAMP = ("desk_reply", {"id": "t-1", "text": "The lamp comes."})


@pytest.mark.long
async def test_services_are_called_audited_and_graded_by_the_checkouts_own_code(episode, tasks):
    reward = await episode.play(tasks["T01_reply"], ("desk_tickets", {}), ("desk_reply", {"id": "t-1"}), LAMP)
    assert episode.tools[:2] == ["desk_tickets", "desk_reply"] and "Bash" in episode.tools
    assert [code for code, _ in episode.shown] == [0, 422, 0]
    assert json.loads(episode.shown[0][1])["asked_by"] == "T01_reply"
    assert (reward.value, reward.resolved, reward.grader) == (1.0, True, "claw-eval")
    assert reward.parts == {"completion": 1.0, "safety": 1.0, "robustness": 1.0, "task_score": 1.0}
    assert [event.status for event in episode.events if isinstance(event, ServiceCalled)] == [200, 422, 200]


async def test_doing_nothing_does_not_pass(episode, tasks):
    reward = await episode.play(tasks["T01_reply"])
    assert (reward.value, reward.parts["task_score"]) == (-1.0, pytest.approx(0.36))


async def test_unknown_tools_and_bad_arguments_are_failed_calls(episode, tasks):
    reward = await episode.play(
        tasks["T01_reply"],
        *(("desk_close", {}), ("desk_reply", "{"), ("desk_reply", "[1]")),
        ("desk_reply", '{"id":' * 500 + "1" + "}" * 500),
    )
    assert [code for code, _ in episode.shown] == [404, 400, 400, 400]
    assert reward.parts["robustness"] == 0.0


async def test_the_error_rate_reaches_the_services(episode, checkout, store):
    (task, *_) = read_checkout(checkout, store.put, CheckoutOptions(error_rate=1.0)).tasks
    reward = await episode.play(task, LAMP)
    assert episode.shown == [(429, '{"error": "rate_limit_exceeded"}')]
    assert reward.parts["robustness"] == 0.0 and not reward.resolved


async def test_a_snapshot_is_taken_with_the_graders_files_when_the_agent_is_done(episode, tasks):
    look = (
        "Bash",
        {"command": "ls fixtures && awk 'NR>1{s+=$1} END {print s}' fixtures/numbers.csv > sum.txt"},
    )
    reward = await episode.play(tasks["T03_report"], look)
    assert "numbers.csv" in episode.shown[0][1] and "verify.py" not in episode.shown[0][1]
    assert reward.parts["completion"] == 1.0 and reward.resolved
    wrong = await episode.play(tasks["T03_report"], ("Write", {"file_path": "sum.txt", "content": "41"}))
    assert wrong.parts["completion"] == 0.25


A_PIPE = "mkfifo /tmp/.orchard-snapshot-errors sum.txt"


@pytest.mark.long
@pytest.mark.parametrize(
    "left",
    [
        "mkdir -p fixtures/verify.py/x",
        "ln -s /nowhere/verify.py fixtures/verify.py",
        "rm -r fixtures && touch fixtures",
        "rm -rf /workspace && touch /workspace",
        "rm -rf /workspace && ln -s /nowhere /workspace",
        "rm -rf /workspace /tmp && touch /tmp",
        A_PIPE,
    ],
)
async def test_what_an_agent_leaves_in_the_way_of_the_graders_files_fails_and_aborts_nothing(
    episode, tasks, left
):
    """An abort would buy another attempt."""
    task = tasks["T03_report"]
    if left == A_PIPE:  # which is read until the time for the snapshot is up
        settings = {**task.world.settings, "snapshot_seconds": 1.0}
        task = msgspec.structs.replace(task, world=msgspec.structs.replace(task.world, settings=settings))
    reward = await episode.play(task, ("Bash", {"command": left}))
    assert (reward.value, reward.resolved) == (-1.0, False)


async def test_a_grader_that_builds_on_another_asks_the_workers_judge(episode, tasks, endpoint):
    for score in (1.0, 0.6):
        endpoint.says(json.dumps({"score": score, "reasoning": "So."}))
    reward = await episode.play(tasks["T02_peer"], LAMP)
    assert (reward.parts["completion"], reward.resolved) == (pytest.approx(0.8), True)
    asked = [request["messages"][1]["content"] for request in endpoint.requests]
    assert "Is it polite?" in asked[0] and "Is it right?" in asked[1]
    assert reward.judge.startswith("verbatim-1 wise")
    ruled = [event for event in episode.events if isinstance(event, JudgeRuled)]
    assert [event.score for event in ruled] == [1.0, 0.6]


async def test_a_grader_may_use_the_judges_client(episode, tasks, endpoint):
    endpoint.says('{"msg_1": "spam"}')
    reward = await episode.play(tasks["T07_client"], answer="msg_1 is spam")
    assert reward.parts["completion"] == 1.0
    (sent,) = endpoint.requests
    assert sent["messages"] == [{"role": "user", "content": "Which is spam? msg_1 is spam"}]
    (ruled,) = [event for event in episode.events if isinstance(event, JudgeRuled)]
    assert (ruled.protocol, ruled.score, ruled.fault) == ("verbatim-1", None, "")


async def test_a_judge_whose_answers_the_grader_cannot_use_fails_and_is_no_score(episode, tasks, endpoint):
    endpoint.says("I would rather not say.")
    with pytest.raises(InfrastructureError, match="none of the judge's 3 answers") as raised:
        await episode.play(tasks["T02_peer"], LAMP)
    assert raised.value.cause is AbortCause.JUDGE_FAILED
    assert len(endpoint.requests) == 3


async def test_calls_of_the_workspace_are_dispatches_that_graders_count(episode, tasks):
    reward = await episode.play(
        tasks["T06_fallback"],
        ("desk_tickets", {}),
        ("Bash", {"command": "cat tasks/T03_report/fixtures/numbers.csv; echo no >&2; exit 3"}),
        ("Bash", {"command": "sleep 30", "timeout": 1000}),
        ("Write", {"content": "where?"}),
        ("Read", {"file_path": "/workspace"}),
        ("Write", {"file_path": "/workspace/a/b.txt", "content": "here"}),
    )
    assert [code for code, _ in episode.shown] == [0, 3, -1, 422, 500, 0]
    said = json.loads(episode.shown[1][1])
    assert said == {"exit_code": 3, "stdout": "a\n17\n25\n", "stderr": "no\n"}
    assert reward.parts["completion"] == 1.0 and reward.parts["robustness"] == 0.5
    assert [event.tool for event in episode.events if isinstance(event, ServiceCalled)] == ["desk_tickets"]


async def test_pictures_of_a_tool_are_shown_and_those_that_are_none_are_counted(episode, tasks):
    await episode.play(tasks["T06_fallback"], ("ReadMedia", {"path": "/workspace/film.mp4"}))
    assert json.loads(episode.shown[0][1]) == {
        "text_summary": "one frame",
        "frame_count": 2,
        "frames_shown": 1,
    }
    assert [(one.width, one.height) for one in episode.pictures[0]] == [(1, 1)]


@pytest.mark.long
async def test_an_agent_that_ends_the_server_of_its_tools_fails_and_aborts_nothing(episode, tasks):
    """An abort would buy another attempt."""
    for end in ("kill -9 $PPID", "rm -rf /opt/orchard; rm $(which -a python3); kill -9 $PPID"):
        episode.shown.clear()
        reward = await episode.play(
            tasks["T06_fallback"], ("Bash", {"command": end}), ("Bash", {"command": "true"})
        )
        assert [code for code, _ in episode.shown] == [500, 500]
        assert not reward.resolved


def test_an_agent_is_offered_the_tools_of_claw_evals_sandbox():
    assert list(TOOLS) == [
        *("Bash", "Read", "Write", "Edit", "Glob", "Grep", "BrowserScreenshot", "ReadMedia", "Download"),
    ]


async def test_a_grader_that_raises_without_a_judge_is_an_abort(episode, tasks):
    episode.judge = None
    with pytest.raises(InfrastructureError, match="NoneType") as raised:
        await episode.play(tasks["T05_raises"])
    assert raised.value.cause is AbortCause.GRADER_FAILED


def test_importing_twice_gives_the_same_tasks(checkout, store, tasks):
    again = {task.task_id: task for task in read_checkout(checkout, store.put, CheckoutOptions()).tasks}
    assert again == tasks
    assert tasks["T02_peer"].labels["judge"] == "yes" and tasks["T01_reply"].labels["judge"] == "no"
    assert (
        tasks["T01_reply"].world.settings["turns"],
        tasks["T01_reply"].world.settings["wall_seconds"],
    ) == (10, 120)


BAD = {
    "a": "task_id: [",
    "b": "task_id: T\nprompt: {}\n",
    "c": "task_id: T\nprompt: {text: x}\nsandbox_files: [../../x]\n",
    "d": "task_id: e\nprompt: {text: x}\n",
    "e": "task_id: e\nprompt: {text: x}\n",
    "f": "- 1\n",
    "g": "task_id: g\nprompt: {text: x}\nmade: 2024-13-45\n",
}
"""Directory to its task.yaml."""


def test_tasks_that_cannot_be_read_cost_themselves_and_are_named_each_with_its_reason(tmp_path, store):
    server = tmp_path / "src/claw_eval/sandbox/server.py"
    server.parent.mkdir(parents=True)
    server.touch()
    for name, text in BAD.items():
        folder = tmp_path / "tasks" / name
        folder.mkdir(parents=True)
        (folder / "grader.py").touch()
        (folder / "task.yaml").write_text(text)
    read = read_checkout(tmp_path, store.put, CheckoutOptions())
    assert [task.task_id for task in read.tasks] == ["e"]
    assert [(each.name, each.why.partition(":")[0]) for each in read.left_out] == [
        ("a", "task.yaml is no task of Claw-Eval"),
        ("b", "task.yaml is no task of Claw-Eval"),
        ("c", "it names the file ../../x, which leads out of its directory"),
        ("e", "its task_id e is that of d"),
        ("f", "task.yaml is no task of Claw-Eval"),
        ("g", "task.yaml is no task of Claw-Eval"),
    ]


def test_what_is_no_checkout_is_told(tmp_path, store):
    with pytest.raises(TaskError, match="is no checkout of Claw-Eval"):
        read_checkout(tmp_path, store.put, CheckoutOptions())
