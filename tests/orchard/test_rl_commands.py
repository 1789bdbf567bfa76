"""What `orchard rl` says to a user who is wrong, and which child is started again."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.settings import read_settings
from orchard.pipelines.rl.stepping import RunStopped
from orchard.processes import rl_run
from orchard.workers.llm.settings import EndpointSettings
from tests.orchard.test_teacher_refused import registered
from tests.pipelines.rl.written_log import run_settings

__all__ = ["registered"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("rl", "nowhere.toml"), "nowhere.toml does not exist"),
        (("rl", "run", "nowhere.toml"), "nowhere.toml does not exist"),
    ],
    ids=str,
)
def test_mistakes_are_one_sentence(command_line, tmp_path, words, says):
    done = command_line(*words, store=tmp_path / "store")
    assert done.returncode == 1
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_model_that_no_server_runs_is_refused_before_anything_is_queued(command_line, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    (tmp_path / "run.toml").write_text(f'run = "r"\nmodel = "{tmp_path}"\nout = "{tmp_path}/out"\n')
    done = command_line("rl", str(tmp_path / "run.toml"), store=tmp_path / "store")
    assert done.returncode == 1
    assert "runs models of Gemma 3 (text), Llama, " in (said := " ".join(done.stderr.split()))
    assert "and this is mamba: serve it with vLLM" in said
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "key", ["lora = { experts = true }", "router_replay = true\nupdates = 2", 'router_replay = "rollout"']
)
def test_experts_of_a_dense_model_are_refused_before_anything_is_queued(command_line, tmp_path, key):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    file = tmp_path / "run.toml"
    file.write_text(f'run = "r"\nmodel = "{tmp_path}"\nout = "{tmp_path}/out"\n{key}\n')
    done = command_line("rl", str(file), store=tmp_path / "store")
    assert done.returncode == 1
    assert "has no experts: leave `" in " ".join(done.stderr.split())
    assert not (tmp_path / "store").exists()
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_moe", "num_experts": 4}')
    rl_run._check_experts(read_settings(file))


class Notes:
    """A reporter that keeps what it is told."""

    def __init__(self):
        self.said = []

    def note(self, text, *_):
        self.said.append(text)

    def progress(self, *_, **__):
        pass


@pytest.mark.long
async def test_a_preset_that_chooses_by_pass_rate_says_that_no_campaign_measured_it(registered, tmp_path):
    (tmp_path / "run.toml").write_text(
        f'run = "r"\npreset = "swe"\nharness = "orchard-bash"\nmodel = "m"\nout = "{tmp_path}/out"\n'
        "tasks = { unproven = true }\n"
    )
    settings, notes = read_settings(tmp_path / "run.toml"), Notes()
    await rl_run.enter(registered, settings, notes)
    assert "no task is left out by its pass rate" in " ".join(notes.said)


@pytest.mark.parametrize(
    ("code", "starts", "error"), [(RunStopped.exit_code, 1, RunStopped), (1, rl_run.TRIES, RunError)]
)
async def test_a_trainer_that_ended_its_run_is_not_started_again(tmp_path, monkeypatch, code, starts, error):
    monkeypatch.setattr(rl_run, "RESTART_SECONDS", 0.0)
    session = SimpleNamespace(config=SimpleNamespace(store="s"), directory=Path("d"))
    processes = rl_run.RunProcesses(session, run_settings(out=str(tmp_path)), Path("f"), "http://elsewhere:1")
    (tmp_path / "trainer.log").write_text("error: run 'run' stops at step 2\n")
    started = []

    async def child(name):
        started.append(name)
        return code

    monkeypatch.setattr(processes, "_child", child)
    with pytest.raises(error, match="run 'run' stops at step 2") as ended:
        await processes._keep("trainer")
    assert ended.type is error
    assert len(started) == starts


def test_each_server_of_the_endpoint_gets_the_policies(monkeypatch):
    monkeypatch.setenv("THE_KEY", "k")
    replicas = ("http://b:8000/v1/", "http://a:8000/v1", "http://c:8000")
    endpoint = EndpointSettings(base_url="http://a:8000/v1", replicas=replicas, api_key_env="THE_KEY")
    session = SimpleNamespace(config=SimpleNamespace(endpoints={"policy": endpoint}))
    engines = rl_run.serving_engines(session, run_settings())
    assert [engine.address for engine in engines] == [f"http://{host}:8000" for host in "abc"]
    assert {engine._headers["Authorization"] for engine in engines} == {"Bearer k"}
    assert rl_run.server_address(session, run_settings()) == "http://a:8000"
