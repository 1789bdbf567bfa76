"""`mini-swe-agent` and `mini-swe-agent-text` beside the real package.

Both play each episode, with the same answers of the model over HTTP and real commands, and must ask the model
the same, word for word.
"""

import asyncio
import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
import yaml

from orchard.schemas.campaigns import Budget, ModelSpec, Timeouts
from orchard.schemas.messages import MessageNode, Role, ToolCall
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.tasks import SWETests, Task
from orchard.storage.blobs import BlobStore
from orchard.workers import plugins
from orchard.workers.domains.swe.harnesses.mini_swe_agent import TextWords, ToolCallPrompts
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.harnesses import UnknownHarness, fingerprint, get_harness, planned_harness
from orchard.workers.harnesses.bash_loop import Action, FormatError
from orchard.workers.harnesses.interface import Episode, text_action
from orchard.workers.harnesses.programs.catalog.python import MINI_SWE_AGENT
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings
from tests.workers.conftest import SubprocessMachine

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
STATEMENT = "Fix {{ this }} — naïve {% raw %} templates\n\n<b>& 'quotes'</b> of /testbed\n"


def message(text: str | None, *calls: Any, finish: str = "", **fields: Any) -> dict[str, Any]:
    """The choice of a completion. A call is a command, or the text of its arguments and a tool's name."""
    written: dict[str, Any] = {"role": "assistant", "content": text, **fields}
    pairs = [one if isinstance(one, tuple) else (json.dumps({"command": one}), "bash") for one in calls]
    if calls:
        written["tool_calls"] = [
            {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (arguments, name) in enumerate(pairs)
        ]
    return {"index": 0, "message": written, "finish_reason": finish or ("tool_calls" if calls else "stop")}


COMMANDS = {
    "plain": "echo one",
    "failing": "echo no; exit 3",
    "silent": "true",
    "nothing": "",
    "long": "seq 1 4000",
    "as long as is shown": "head -c 9999 /dev/zero | tr '\\0' a",
    "one more": "head -c 10000 /dev/zero | tr '\\0' a",
    "two more": "head -c 10001 /dev/zero | tr '\\0' a",
    "Unicode": "printf 'h\\303\\251llo \\342\\202\\254 \\360\\237\\230\\200\\n'",
    "no Unicode": "printf 'a\\377\\376b'",
    "line ends": "printf 'a\\r\\nb\\rc\\r\\r\\n'",
    "both streams": "echo out; echo err >&2",
    "blanks": "printf '\\n\\n  x  \\n\\n'",
    "a template": "echo '{{ task }} {% if %} </output> & <returncode>'",
    "variables": "echo $PAGER $MANPAGER $LESS $PIP_PROGRESS_BAR $TQDM_DISABLE",
    "a directory": "cd / && export X=1; pwd",
    "where it is": "pwd; echo [$X]",
    "several lines": "cat <<'EOF'\nfirst `one`\n\tsecond\nEOF",
    "a submission that fails": f"{SUBMIT}; exit 1",
    "a submission that comes late": f"echo first; {SUBMIT}",
}  # fmt: skip

CALLED = {name: message(f"I try: {name}.", command) for name, command in COMMANDS.items()} | {
    "several calls": message("Three.", "echo one", "exit 2", "echo three"),
    "no text": message(None, "echo quiet"),
    "reasoning": message("So.", "echo thought", reasoning_content="Let me think."),
    "no call": message("I think."),
    "no message": message(None),
    "another tool": message("", ('{"command": "ls"}', "python")),
    "no JSON": message("", ('{"command": "ls', "bash")),
    "no JSON for another tool": message("", ("ls", "shell")),
    "no command": message("", ('{"cmd": "ls"}', "bash")),
    "a list": message("", ("[]", "bash")),
    "a number": message("", ('{"command": 1}', "bash")),
    "null": message("", ('{"command": null}', "bash")),
    "NUL": message("", ('{"command": "echo \\u0000"}', "bash")),
    "half of a character": message("", ('{"command": "echo \\ud800"}', "bash")),
    "too long": message("", f"echo {'x' * 140_000}"),
    "two keys": message("", ('{"command": "echo a", "command": "echo b", "other": 1}', "bash")),
    "the second is bad": message("", "echo never", ("{}", "bash")),
    "cut off": message("so lo", finish="length"),
    "cut off in a call": message("so", finish="tool_calls"),
    "cut off in arguments": message("", ('{"command": "ec', "bash"), finish="length"),
}


def fenced(command: str) -> str:
    return f"```mswea_bash_command\n{command}\n```"


WRITTEN = {name: message(f"THOUGHT: {name}\n\n{fenced(command)}") for name, command in COMMANDS.items()} | {
    "no block": message("I think."),
    "no message": message(None),
    "two blocks": message(f"{fenced('ls')}\nand\n{fenced('ls')}"),
    "another fence": message("```bash\nls\n```"),
    "no end": message("```mswea_bash_command\nls"),
    "an end on the line": message("```mswea_bash_command\nls```"),
    "two beginnings": message(fenced("echo '```mswea_bash_command\nx'\necho inner")),
    "blanks after the fence": message("```mswea_bash_command  \n\n  echo blanks \n```\nmore"),
    "fences inside": message(fenced("cat <<'EOF'\n~~~\n `` ``` x\nEOF")),
    "reasoning": message(fenced("echo thought"), reasoning_content=f"Or {fenced('rm -rf /')}?"),
    "NUL": message(fenced("echo \0")),
    "too long": message(fenced(f"echo {'x' * 140_000}")),
    "cut off": message("```mswea_bash_command\nec", finish="length"),
    "cut off, as a call": message("hm", finish="tool_calls"),
}


class Script(NamedTuple):
    """An episode: the model's choices, the last of which stays, and the limits."""

    choices: list[dict[str, Any]]
    steps: int = 0
    seconds: int = 60


def scripts(turns: dict[str, dict[str, Any]], last: dict[str, Any]) -> dict[str, Script]:
    """Each turn in an episode that is submitted, each with another before it, and those with other ends."""
    names = list(turns)
    alone = {name: Script([turns[name], last]) for name in names}
    pairs = {
        f"{before}, {name}": Script([turns[before], turns[name], turns["plain"], last])
        for before, name in zip(names, names[len(names) // 2 :], strict=False)
    }
    bad = turns["no message"]
    ends = {
        "three bad ones": Script([bad]),
        "two bad ones, then good ones": Script([bad, bad, turns["plain"], bad, bad, last]),
        "a limit of steps": Script([turns["plain"]], steps=3),
        "a limit of steps with bad ones": Script([turns["plain"], bad, last], steps=2),
    }
    return alone | pairs | ends


CALLS = scripts(CALLED, message("Done.", "echo before", f"{SUBMIT} && echo diff")) | {
    "out of time": Script([message("Wait.", "sleep 60")], steps=1, seconds=1)
}
TEXTS = scripts(WRITTEN, message(fenced(f"{SUBMIT} && echo diff"))) | {
    "out of time": Script([message(fenced("sleep 60"))], steps=1, seconds=1)
}


class Endpoint:
    """A chat endpoint, in a thread of its own: the real agent is not asynchronous."""

    def __init__(self) -> None:
        self.choices: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                endpoint.asked.append(body)
                choice = endpoint.choices[min(len(endpoint.asked), len(endpoint.choices)) - 1]
                answer = json.dumps({"model": "m", "choices": [choice]}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def plays(self, script: Script) -> list[dict[str, Any]]:
        """Begin anew; what will be asked."""
        self.choices, self.asked = script.choices, []
        return self.asked


def opened(value: Any) -> Any:
    """What litellm makes of JSON, as far as the package looks at it."""
    if isinstance(value, list):
        return [opened(one) for one in value]
    if not isinstance(value, dict):
        return value
    inside = {name: opened(one) for name, one in value.items()}
    return SimpleNamespace(**{"tool_calls": None, **inside}, model_dump=lambda **_: value)


def litellm_over(url: str) -> ModuleType:
    """A stand-in for litellm, which weighs 170 MB: it passes on what it is given, and what comes back."""

    def completion(*, model: str, messages: list[dict[str, Any]], **fields: Any) -> Any:
        asked = {"model": model, "messages": messages, **fields}
        with urlopen(f"{url}/chat/completions", json.dumps(asked).encode()) as reply:
            return opened(json.load(reply))

    module: Any = ModuleType("litellm")
    module.completion = completion
    failures = "UnsupportedParams NotFound PermissionDenied ContextWindowExceeded Authentication"
    module.exceptions = SimpleNamespace(**{f"{name}Error": OSError for name in failures.split()})
    module.cost_calculator = SimpleNamespace(completion_cost=lambda *_, **__: 0.0)
    found: ModuleType = module
    return found


def of_the_package() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in ("litellm", "minisweagent")]


class World:
    """Both agents, one endpoint, one directory."""

    def __init__(self, directory: Path, endpoint: Endpoint, patch: pytest.MonkeyPatch) -> None:
        self.directory, self.endpoint = directory, endpoint
        self.workdir = directory / "testbed"
        self.workdir.mkdir()
        subprocess.run(["git", "init", "-q", self.workdir], check=True)
        patch.setenv("MSWEA_SILENT_STARTUP", "1")
        patch.setenv("MSWEA_COST_TRACKING", "ignore_errors")
        patch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(directory / "nobody"))
        for name in of_the_package():
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "litellm", litellm_over(endpoint.url))
        from minisweagent.agents.default import DefaultAgent
        from minisweagent.config import builtin_config_dir
        from minisweagent.environments.local import LocalEnvironment
        from minisweagent.models.litellm_model import LitellmModel
        from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

        self._configurations: Path = builtin_config_dir / "benchmarks"
        self._agent, self._environment = DefaultAgent, LocalEnvironment
        self._models = {"swebench.yaml": LitellmModel, "swebench_backticks.yaml": LitellmTextbasedModel}

    def real(self, configuration: str, script: Script) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """What the package's agent asked, its messages and its last word."""
        asked = self.endpoint.plays(script)
        settings = yaml.safe_load((self._configurations / configuration).read_text())
        task = settings["agent"]["instance_template"].replace("/testbed", str(self.workdir))
        settings["agent"] |= {"instance_template": task, "step_limit": script.steps}
        environment = self._environment(
            cwd=str(self.workdir), env=settings["environment"]["env"], timeout=script.seconds
        )
        model = self._models[configuration](**settings["model"])
        agent = self._agent(model, environment, **settings["agent"])
        ended = agent.run(STATEMENT)
        assert agent.messages.pop()["role"] == "exit"
        return asked, agent.messages, ended

    async def ours(
        self, harness: str, script: Script, models: ModelClient
    ) -> tuple[list[Any], list[Any], Any]:
        """The same of ours. What follows the model's last message is left out where it submitted."""
        asked = self.endpoint.plays(script)
        nodes: list[MessageNode] = []

        async def publish(data: Any) -> None:
            nodes.extend([data] if isinstance(data, MessageNode) else [])

        trace = MessageTree(publish, BlobStore(self.directory / "store"))
        result = await get_harness(harness).run(
            Episode(
                task=task_in(str(self.workdir)),
                machine=SubprocessMachine(),
                model=models,
                student=ModelSpec(name="m"),
                trace=trace,
                budget=Budget(steps=script.steps),
                timeouts=Timeouts(command=float(script.seconds)),
                seed=1,
            )
        )
        path = trace.path(result.leaf)
        if result.exit_status is ExitStatus.SUBMITTED:
            while path[-1].role is not Role.ASSISTANT:
                path.pop()
        spoken = [
            {
                "role": node.role.value,
                "content": node.content,
                "reasoning_content": node.reasoning,
                "tool_call_id": node.tool_call_id,
                "tool_calls": [
                    {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
                    for call in node.tool_calls
                ],
            }
            for node in path
        ]
        return asked, spoken, result


def task_in(workdir: str) -> Task:
    """Its shells read no file of this machine's user, as those of the real agent read none."""
    return Task(
        task_id="t",
        source="s",
        repo="r",
        image="host",
        statement=STATEMENT,
        base_commit="HEAD",
        workdir=workdir,
        environment={"BASH_ENV": "/dev/null"},
        grading=SWETests(test_patch="", test_command="true", fail_to_pass=("a",)),
    )


def plain(messages: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Messages without fields that are empty, and without what the package keeps for itself."""
    return [
        (
            one["role"],
            one.get("content") or "",
            one.get("reasoning_content") or "",
            one.get("tool_call_id") or "",
            [
                (call["id"], call["function"]["name"], call["function"]["arguments"])
                for call in one.get("tool_calls") or []
            ],
        )
        for one in messages
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        endpoint = Endpoint()
        yield World(tmp_path_factory.mktemp("episodes"), endpoint, patch)
        endpoint.server.shutdown()
        endpoint.server.server_close()
        # What was first imported here belongs to exceptions that are not those of before.
        for name in of_the_package():
            del sys.modules[name]


ENDS = {
    "Submitted": ExitStatus.SUBMITTED,
    "LimitsExceeded": ExitStatus.STEP_LIMIT,
    "RepeatedFormatError": ExitStatus.FORMAT_FAILURE,
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("harness", "configuration", "episodes"),
    [("mini-swe-agent", "swebench.yaml", CALLS), ("mini-swe-agent-text", "swebench_backticks.yaml", TEXTS)],
)
async def test_message_for_message_it_is_the_real_agent(
    world: World, harness: str, configuration: str, episodes: dict[str, Script]
) -> None:
    assert len(episodes) >= 50
    async with ModelClient({"default": EndpointSettings(base_url=world.endpoint.url)}) as models:
        for name, script in episodes.items():
            asked, messages, ended = await asyncio.to_thread(world.real, configuration, script)
            ours_asked, ours, result = await world.ours(harness, script, models)
            assert [one.get("tools") for one in ours_asked] == [one.get("tools") for one in asked], name
            for theirs, mine in itertools.zip_longest(asked, ours_asked):
                assert plain(mine["messages"]) == plain(theirs["messages"]), name
            assert plain(ours) == plain(messages), name
            assert result.exit_status is ENDS[ended["exit_status"]], name
            if result.exit_status is ExitStatus.SUBMITTED:
                assert result.submission == ended["submission"] == "diff\n", name


@pytest.mark.usefixtures("world")
def test_the_program_asks_once_where_the_gateway_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself it would ask nine times more after a budget ran out, for four minutes."""
    from minisweagent.models.utils.retry import retry

    for name, value in MINI_SWE_AGENT.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=id))
    asked = 0
    with pytest.raises(RuntimeError, match="403"):
        for attempt in retry(logger=logging.getLogger("mini"), abort_exceptions=[]):
            with attempt:
                asked += 1
                raise RuntimeError("403: a budget of the task has run out")
    assert asked == 1


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minisweagent", None)
    plugins._load.cache_clear()
    for name in ("mini-swe-agent", "mini-swe-agent-text"):
        with pytest.raises(UnknownHarness, match=r"pip install .*\[mini-swe-agent\]'"):
            get_harness(name)
    assert planned_harness("mini-swe-agent", None) is get_harness("orchard-bash")


def test_reading_the_package_leaves_this_process_as_it_is() -> None:
    """Neither its greeting, nor its directory, nor litellm."""
    code = (
        "import os, sys; before = dict(os.environ); from orchard.workers.harnesses import get_harness\n"
        "assert get_harness('mini-swe-agent').version == get_harness('mini-swe-agent-text').version\n"
        "print(os.environ == before, [*filter({'litellm', 'openai'}.__contains__, sys.modules)])"
    )
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.environ["PATH"], "HOME": home}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert (done.stdout, [*Path(home).iterdir()]) == ("True []\n", []), done.stderr


def test_a_name_without_a_version_means_what_it_meant() -> None:
    """In requests and plans that are older than the exact harness."""
    exact = get_harness("mini-swe-agent")
    assert exact.digest and exact.version
    assert planned_harness("mini-swe-agent", exact.version) is exact
    assert planned_harness("mini-swe-agent", None).name == "orchard-bash"
    assert planned_harness("mini-swe-agent-text", None).name == "mini-swe-agent-text"
    assert fingerprint(exact) != fingerprint(get_harness("mini-swe-agent-text"))


def test_a_text_that_never_ends_its_fences_is_read_at_once() -> None:
    """Looked for from each of its 100,000 beginnings, an end would be found missing after an hour."""
    call = text_action("```mswea_bash_command\n x" * 100_000)
    with pytest.raises(FormatError, match="0 actions"):
        TextWords().actions([call], "stop")


def test_what_was_printed_before_a_time_out_is_shown() -> None:
    action = Action(ToolCall(id="1", name="bash", arguments=""), "echo a; sleep 9")
    outcome = CommandOutcome(output="a\r\n", returncode=-1, seconds=1.0, timed_out=True)
    shown = ToolCallPrompts().observation(action, outcome, 1.5)
    assert "Command 'echo a; sleep 9' timed out after 1.5 seconds</exception>\n" in shown
    assert shown.endswith("<returncode>-1</returncode>\n<output>\na\n</output>")
