"""ATIF between Orchard and the real Harbor: what we export are trajectories for its models and its validator,
and a trajectory that its own agent made, in a trial that it graded, becomes a rollout of the log."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest
from harbor.models.trajectories import Trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator

from tests.adapters.harbor_trial import PLACE, TASK
from tests.pipelines.interchange.generated import changed, trajectory

DIFFERENCES = Path(__file__).with_name("harbor_atif_differences.toml")
SOLUTION = "printf $WORD > /workspace/answer\n"


class Model(BaseHTTPRequestHandler):
    """Types the solution into Terminus' terminal, then says that it is done, and again when asked if so."""

    def do_POST(self) -> None:
        """One chat completion."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        done = any(message["role"] == "assistant" for message in body["messages"])
        commands = [] if done else [{"keystrokes": SOLUTION, "duration": 0.1}]
        said = {"analysis": "See.", "plan": "Write it.", "commands": commands, "task_complete": done}
        message = {"role": "assistant", "content": json.dumps(said)}
        reply = {
            "id": "x",
            "object": "chat.completion",
            "model": "script",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }
        raw = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


def orchard(module: str, *words: str | Path) -> str:
    """What a module of Orchard says, run by the Python that has it."""
    line = [os.environ["ORCHARD_PYTHON"], "-m", module, *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_valid(file: Path) -> Trajectory:
    """By Harbor's models, which lose nothing of it, and by its validator."""
    validator = TrajectoryValidator()
    assert validator.validate(file), validator.errors
    found = Trajectory.model_validate_json(file.read_text())
    assert found.model_dump(mode="json", exclude_none=True) == json.loads(file.read_text())
    return found


def test_what_is_exported_is_a_trajectory_for_harbor(tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    orchard("tests.adapters.atif_log", store, "make")
    orchard("orchard", "--store", store, "trajectories", "export", "demo", "--out", out)
    found = [is_valid(file) for file in out.glob("*.json")]
    (won,) = [each for each in found if each.extra["orchard"]["resolved"]]
    (lost,) = [each for each in found if not each.extra["orchard"]["resolved"]]
    assert [len(each.subagent_trajectories or ()) for each in (won, lost)] == [2, 0]
    assert [step.metrics.completion_token_ids for step in won.steps if step.source == "agent"] == [[5, 6]] * 2
    branch, title = won.subagent_trajectories
    assert branch.steps[-1].tool_calls[0].arguments == {}, "they were no JSON, and are beside it as text"
    assert title.steps[-1].message == "Repairs"


def verdict_of_harbor(document: dict[str, Any]) -> bool:
    """Whether its validator accepts a document; what makes the validator itself fail is not accepted."""
    try:
        return TrajectoryValidator().validate(document)
    except (AttributeError, TypeError):
        return False


def test_what_harbor_accepts_is_read_and_written_again_so_that_harbor_accepts_it(tmp_path: Path) -> None:
    """Generated documents, and ones with changes in them. `harbor_atif_differences.toml` has what is left out
    here though Harbor accepts it, each with its reason."""
    random = Random(3)
    documents = [trajectory(random) for _ in range(500)] + [changed(random) for _ in range(2500)]
    accepted = [verdict_of_harbor(each) for each in documents]
    assert all(accepted[:500]) and 200 < sum(accepted[500:]) < 2300
    file = tmp_path / "all.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in documents))
    verdicts = json.loads(orchard("tests.adapters.atif_log", file, "read"))
    listed = tomllib.loads(DIFFERENCES.read_text())["left_out"]
    unlisted, used = [], set()
    for document, ours, theirs in zip(documents, verdicts, accepted, strict=True):
        if not theirs:
            continue
        if isinstance(ours, str):
            known = [name for name, each in listed.items() if re.search(each["says"], ours)]
            used.update(known)
            if not known:
                unlisted.append((ours, document))
        else:
            validator = TrajectoryValidator()
            assert validator.validate(ours), (validator.errors, document)
    assert not unlisted, unlisted[:3]
    assert used == set(listed)


def test_a_trial_of_terminus_becomes_a_rollout(tmp_path: Path, model: str) -> None:
    assert shutil.which("tmux"), "Harbor's Terminus needs tmux: apt-get install tmux"
    for name, content in TASK.items():
        (tmp_path / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "task" / name).write_text(content)
    command = [Path(sys.executable).with_name("harbor"), "trial", "start", "-p", tmp_path / "task"]
    command += ["-a", "terminus-2", "-m", "openai/script", "--agent-kwarg", f"api_base={model}"]
    command += ["--agent-kwarg", "record_terminal_session=false"]
    command += ["--trials-dir", tmp_path / "trials", "--environment-import-path", PLACE]
    env = {**os.environ, "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env)
    files = list((tmp_path / "trials").glob("*/agent/trajectory.json"))
    assert done.returncode == 0 and files, done.stdout + done.stderr
    theirs = Trajectory.model_validate_json(files[0].read_text())
    store = tmp_path / "store"
    place = ("--store", store, "trajectories")
    said = orchard("orchard", *place, "import", tmp_path / "trials", "--campaign", "harbor")
    assert "imported 1 rollouts" in said
    orchard("tests.adapters.atif_log", store, "commit")
    orchard("orchard", *place, "export", "harbor", "--out", tmp_path / "out")
    (file,) = (tmp_path / "out").glob("*.json")
    ours = is_valid(file)
    assert (ours.agent.name, ours.extra["orchard"]["resolved"]) == ("terminus-2", True)
    assert [(step.source, step.message) for step in ours.steps] == [
        (step.source, step.message) for step in theirs.steps
    ]
