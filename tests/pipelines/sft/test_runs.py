"""Whole runs in processes of their own: killed and resumed, alone and sharded over two."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from orchard.cli.app import app
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.models.directories import load_model, load_tokenizer
from orchard.pipelines.sft.metrics import read_steps
from orchard.pipelines.sft.preparation import make_optimizers
from orchard.pipelines.sft.processes import Processes
from orchard.pipelines.sft.settings import Optimizer, TrainingError
from orchard.pipelines.sft.trainer import METRICS, MODEL, PLOT, RunInterrupted, SftTrainer, train
from tests.pipelines.sft.small_runs import to_toml, token_rows, write_dataset

RUN = "import sys; from pathlib import Path; from orchard.pipelines.sft.settings import read_settings; "
RUN += "from orchard.pipelines.sft.trainer import train; train(read_settings(Path(sys.argv[1])))"


def start(settings, tmp_path: Path, **environment: str) -> subprocess.Popen:
    """A run in its own process."""
    file = tmp_path / f"{Path(settings.out).name}.toml"
    file.write_text(to_toml(settings))
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(file)], env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
    )


def weights(settings) -> bytes:
    return (Path(settings.out) / MODEL / "model.safetensors").read_bytes()


def facts(settings):
    """All that a run said about its steps but the time they took."""
    return [
        msgspec.structs.replace(step, seconds=0.0, run="")
        for step in read_steps(Path(settings.out) / METRICS)
    ]


@pytest.mark.long
def test_a_run_learns_and_leaves_a_model_that_transformers_loads(run_settings):
    settings = run_settings(epochs=12, lr=1e-2)
    result = train(settings)
    steps = facts(settings)
    assert [step.step for step in steps] == list(range(1, 37))
    assert steps[-1].loss < steps[0].loss - 1.0
    assert sum(step.trained_tokens for step in steps) == 12 * sum(
        int(row.loss_mask[1:].sum()) for row in token_rows(24)
    )
    assert load_model(result).config.vocab_size == len(load_tokenizer(result))
    assert (Path(settings.out) / PLOT).read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_the_same_run_gives_the_same_bits(run_settings):
    first, second = run_settings("first"), run_settings("second")
    train(first)
    train(second)
    assert weights(first) == weights(second)
    assert facts(first) == facts(second)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW, Optimizer.MUON])
def test_a_killed_run_resumes_bit_for_bit(run_settings, tmp_path, optimizer):
    whole, broken = (run_settings(name, epochs=40, optimizer=optimizer) for name in ("whole", "broken"))
    train(whole)
    metrics = Path(broken.out) / METRICS
    process = start(broken, tmp_path)
    try:
        deadline = time.monotonic() + 120
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < 5:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert len(read_steps(metrics)) < 120, "the run ended before it was killed"
    train(broken)
    assert weights(broken) == weights(whole)
    assert facts(broken) == facts(whole)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_told_to_stop_keeps_its_steps(run_settings, monkeypatch, number):
    whole, stopped = (run_settings(name, checkpoint_every=0) for name in ("whole", "stopped"))
    train(whole)
    step = SftTrainer.step

    def told(self, at):
        if at == 1:
            os.kill(os.getpid(), number)
        return step(self, at)

    monkeypatch.setattr(SftTrainer, "step", told)
    before = signal.getsignal(number)
    with pytest.raises(RunInterrupted, match="after step 2 of") as ended:
        train(stopped)
    assert ended.value.exit_code == 128 + number and signal.getsignal(number) == before
    monkeypatch.setattr(SftTrainer, "step", step)
    train(stopped)
    assert weights(stopped) == weights(whole) and facts(stopped) == facts(whole)


@pytest.mark.slow
def test_two_sharded_processes_train_as_one(run_settings, tmp_path):
    one, two = run_settings("one"), run_settings("two")
    train(one)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [start(two, tmp_path, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in range(2)]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for alone, sharded in zip(facts(one), facts(two), strict=True):
        assert sharded.loss == pytest.approx(alone.loss, abs=1e-5)
        assert sharded.grad_norm == pytest.approx(alone.grad_norm, rel=1e-4)
        assert sharded.trained_tokens == alone.trained_tokens
    alone, sharded = (load_model(Path(each.out) / MODEL) for each in (one, two))
    for name, parameter in alone.named_parameters():
        assert (sharded.get_parameter(name) - parameter).abs().max() < 1e-4, name


def test_muon_moves_the_matrices_of_the_layers_and_adamw_the_rest(run_settings, model):
    settings = run_settings(optimizer=Optimizer.MUON)
    muon, adamw = make_optimizers(model, settings, 1)
    assert isinstance(muon, torch.optim.Muon)
    moved = {id(each) for group in muon.param_groups for each in group["params"]}
    rest = {id(each) for group in adamw.param_groups for each in group["params"]}
    for name, parameter in model.named_parameters():
        inner = parameter.ndim == 2 and ".layers." in name
        assert (id(parameter) in moved, id(parameter) in rest) == (inner, not inner), name
    with pytest.raises(TrainingError, match="without torchrun"):
        make_optimizers(model, settings, 2)


def test_a_checkpoint_of_other_settings_is_refused(run_settings):
    train(run_settings())
    with pytest.raises(TrainingError, match=r"is of another configuration .* choose another `out`"):
        train(run_settings(lr=1e-3))


def test_frozen_parameters_stay_as_they_were(run_settings):
    frozen = load_model(train(run_settings("none", max_steps=1, freeze=["model.layers.0.*"])))
    moved = load_model(train(run_settings("all", max_steps=1)))
    start = load_model(train(run_settings("still", max_steps=1, lr=1e-30)))
    for name, parameter in start.named_parameters():
        first_layer = name.startswith("model.layers.0.")
        assert bool((frozen.get_parameter(name) == parameter).all()) == first_layer, name
        assert not bool((moved.get_parameter(name) == parameter).all()), name


def test_a_gradient_that_is_not_finite_stops_the_run_before_it_harms(run_settings, model):
    settings = run_settings()
    rows = token_rows(24)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    trainer = SftTrainer(settings, rows, model, Processes(rank=0, count=1, device=torch.device("cpu")))
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(1e30)
    with pytest.raises(TrainingError, match="step 1 is not finite: lower `lr`"):
        trainer.step(0)
    moved = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])]
    assert moved == ["model.embed_tokens.weight"]


@pytest.mark.usefixtures("installed")
def test_the_command_line_trains_and_says_where(run_settings, tmp_path):
    settings = run_settings(max_steps=2)
    file = tmp_path / "run.toml"
    file.write_text(to_toml(settings))
    result = CliRunner().invoke(app, ["--store", str(tmp_path / "store"), "sft", str(file)])
    assert result.exit_code == 0, result.output
    assert f"trained {settings.out}/model" in result.output.replace("\n", "")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda row: row.loss_mask.fill(0), "has no token that trains"),
        (lambda row: row.input_ids.fill(99), "another tokenizer"),
    ],
)
def test_rows_that_cannot_train_are_named(run_settings, tmp_path, spoil, says):
    rows = token_rows(3)
    spoil(rows[1])
    dataset = write_dataset(tmp_path / "spoilt", rows)
    with pytest.raises(TrainingError, match=rf"example r1\.1\.0 .*{says}"):
        train(run_settings(dataset=str(dataset)))


def test_a_longer_example_than_the_context_is_refused(run_settings):
    with pytest.raises(TrainingError, match="raise `context`"):
        train(run_settings(context=8))


def test_a_directory_without_a_dataset_is_named(run_settings, tmp_path):
    with pytest.raises(DatasetError, match="orchard dataset build"):
        train(run_settings(dataset=str(tmp_path)))
