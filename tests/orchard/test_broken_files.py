"""Each broken configuration file is refused with its name, the key, the value, and what may be meant."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from orchard.cli.app import app
from orchard.configuration.config import load
from orchard.injector.kubernetes.settings import load as kubernetes
from orchard.injector.orchestrator.limits import load as limits
from orchard.pipelines.campaigns.costs import PAPER_RATES
from orchard.pipelines.datasets.settings import read_settings as dataset
from orchard.pipelines.evaluation.suite import read_suite
from orchard.pipelines.rl.settings import read_settings as rl
from orchard.pipelines.sft.settings import read_settings as sft


def config(file: Path) -> Any:
    return load(file=file)


def rates(file: Path) -> Any:
    done = CliRunner().invoke(app, ["sandbox", "cost", "--rates", str(file)])
    assert done.exception is not None
    raise done.exception


class Broken(NamedTuple):
    read: Callable[[Path], Any]
    text: str
    says: tuple[str, ...]


DATASET = 'name = "d"\ntokenizer = "t"\n'
RUN = 'run = "first"\nmodel = "m"\nout = "o"\n'
SUITE = 'name = "s"\nharnesses = ["h"]\n'
MODELS = 'models = [{ name = "m" }]\n'
SETS = 'task_sets = [{ source = "x" }]\n'
BROKEN = [
    Broken(config, "[worker", ("is not valid TOML", "line 1")),
    Broken(config, "[worker]\nslotz = 8", ("worker.slotz: there is no such key", "mean worker.slots?")),
    Broken(config, "[worker]\nslots = 0", ("worker.slots: Expected `int` >= 1 (it is 0)",)),
    Broken(config, "[worker]\nslots = 1.5", ("worker.slots: Expected `int`, got `float` (it is 1.5)",)),
    Broken(config, '[worker]\nslots = "many"', ("worker.slots", "(it is 'many')")),
    Broken(config, '[worker]\nslots = "8"', ("worker.slots", "did you mean 8?")),
    Broken(config, "worker = 3", ("worker: Expected `table`, got `int` (it is 3)",)),
    Broken(config, "[up]\npage = 1", ("up.page: Expected `bool`, got `int` (it is 1)",)),
    Broken(config, "[wroker]\nslots = 8", ("wroker", "did you mean worker?")),
    Broken(config, "[qqq]", ("qqq: there is no such key: there is store, state, nats",)),
    Broken(config, '[tracking]\nto = "wandbb"', ("tracking", "wandbb", "tensorboard, mlflow, wandb")),
    Broken(config, "[endpoints.a]\nconcurrency = 4", ("endpoints.a", "base_url")),
    Broken(
        config,
        '[endpoints.a]\nbase_url = "https://h/v1"\n[endpoints.a.prices.m]\nprompt = "x"',
        ("endpoints.a.prices.m.prompt", "(it is 'x')"),
    ),
    Broken(dataset, 'name = "d"', ("missing required field `tokenizer`", "docs/datasets.md")),
    Broken(dataset, DATASET + "[filters]\nmax_token = 5", ("filters.max_token", "filters.max_tokens?")),
    Broken(dataset, DATASET + "[selection]\nper_task = 0", ("selection.per_task", "(it is 0)")),
    Broken(dataset, DATASET + '[selection]\nstrategy = "shortst"', ("selection.strategy", "'shortest'?")),
    Broken(dataset, DATASET + "[held_out]\nsimilarity = 2.0", ("held_out.similarity", "(it is 2.0)")),
    Broken(dataset, DATASET + 'preset = "none"', ("no preset is named 'none'",)),
    Broken(dataset, 'name = "a b"\ntokenizer = "t"', ("a b",)),
    Broken(sft, "[lora\n", ("is not valid TOML",)),
    Broken(sft, 'model = "m"\ndataset = "d"\nout = "o"\nepoch = 3', ("epoch: ", "did you mean epochs?")),
    Broken(sft, 'model = "m"\ndataset = "d"\nout = "o"\nepochs = 0', ("epochs", "(it is 0)")),
    Broken(sft, 'model = "m"\ndataset = "d"\nout = "o"\noptimizer = "muonn"', ("optimizer", "'muon'?")),
    Broken(rl, "[tasks]\nper_repos = 3", ("tasks.per_repos", "tasks.per_repo?")),
    Broken(rl, "lr = true", ("lr: Expected `float`, got `bool` (it is true)",)),
    Broken(read_suite, SUITE + SETS + "models = [{ nam = 'm' }]", ("models[0].nam", "models[0].name?")),
    Broken(read_suite, SUITE + MODELS + "task_sets = [{ limit = 0 }]", ("task_sets[0].limit", "(it is 0)")),
    Broken(read_suite, SUITE + MODELS + SETS + "sample = 2", ("sample: ", "did you mean samples?")),
    Broken(rates, PAPER_RATES.replace("hours =", "hour ="), ("workload.hour", "workload.hours?")),
    Broken(rates, PAPER_RATES.replace("baseline =", "baselin ="), ("baselin: ", "did you mean baseline?")),
    Broken(rates, "baseline = ", ("not valid TOML",)),
    Broken(kubernetes, 'namespce = "x"', ("namespce", "did you mean namespace?")),
    Broken(config, "[endpoint.a]", ("endpoint: there is no such key", "did you mean endpoints?")),
    Broken(config, '[endpoints]\nbase_url = "https://h/v1"', ("did you mean endpoints.NAME.base_url?",)),
    Broken(config, '[[endpoints]]\nname = "a"', ("endpoints: Expected `table`, got `array`",)),
    Broken(config, "[endpoints.a]\nbase_url = 8000", ("endpoints.a.base_url", "(it is 8000)")),
    Broken(config, '[endpoints.a]\nbase_url = "h:8"', ("endpoints.a: base_url", "'http://h:8'?")),
    Broken(
        config,
        '[endpoints.a]\nbase_url = "https://h/v1"\napi_key = "sk-1"',
        ("endpoints.a.api_key: there is no such key, did you mean endpoints.a.api_key_env?",),
    ),
    Broken(
        config,
        '[endpoints.a]\nbase_url = "https://h/v1"\nreplicas = ["https://x/v1", 3]',
        ("endpoints.a.replicas[1]", "(it is 3)"),
    ),
    Broken(
        config,
        '[endpoints.a]\nbase_url = "https://h/v1"\nprices = { prompt = 1 }',
        ("did you mean endpoints.a.prices.NAME.prompt?",),
    ),
    Broken(
        config,
        '[endpoints.a]\nbase_url = "https://h/v1"\nprices = { m = { prompt = 1 } }',
        ("endpoints.a.prices.m: missing required field `completion`",),
    ),
    Broken(config, "[worker]\nslots = 1\n[worker]", ("table [worker] is there twice", "line 3")),
    Broken(config, "worker.slots = 8\n[worker]", ("table [worker] is there twice", "line 2")),
    Broken(config, "[worker]\nslots = 1\nslots = 2", ("slots: has a value already", "line 3")),
    Broken(config, "[worker]\nslots = eight", ("slots: Expected a text in quotes", "line 2")),
    Broken(config, "[worker]\nslots = 08", ("slots: Expected newline", "line 2")),
    Broken(config, "[worker]\nslots: 8", ("Expected '='", "line 2")),
    Broken(config, '[sandbox]\nmax_memory = "4GB"', ("sandbox.max_memory: '4GB'", "'4Gi'")),
    Broken(config, "[sandbox]\nmax_memory = 4", ("sandbox.max_memory: Expected `str`", "(it is 4)")),
    Broken(config, '[sandbox]\nttl_seconds = "10m"', ("sandbox.ttl_seconds", "'10m': did you mean 600?")),
    Broken(config, "[sandbox]\nttl_seconds = -5", ("sandbox.ttl_seconds", "(it is -5)")),
    Broken(config, "[sandbox]\nttl = 5", ("sandbox.ttl: ", "did you mean sandbox.ttl_seconds?")),
    Broken(config, '[sandbox]\ntask_network = "some"', ("sandbox.task_network", "never, as_asked")),
    Broken(config, '[nats]\nport = "4222"', ("nats.port", "did you mean 4222?")),
    Broken(config, '[nats]\nurl = "h:4222"', ("nats.url", "did you mean 'nats://h:4222'?")),
    Broken(dataset, DATASET + 'filters = "none"', ("filters: Expected `table`", "(it is 'none')")),
    Broken(dataset, DATASET + '[filters]\nmax_tokens = "8k"', ("filters.max_tokens", "'8k': write it with")),
    Broken(dataset, DATASET + "[[filters]]", ("filters: Expected `table`, got `array`",)),
    Broken(sft, 'model = "m"\ndataset = "d"\nout = ""', ("out: Expected `str` of length >= 1",)),
    Broken(sft, 'model = "m"\ndataset = "d"\nout = "o"\nlora = true', ("lora: Expected `table | null`",)),
    Broken(sft, 'model = "m"\ndataset = "d"\nout = "o"\nlr = "1e-4"', ("lr: ", "did you mean 0.0001?")),
    Broken(rl, RUN + "steps = 1e3", ("steps: ", "(it is 1000.0): did you mean 1000?")),
    Broken(rl, RUN + "[bar]\ninterval = [0.6, 0.4]", ("bar.interval: no group of 8", "[0.6, 0.4]")),
    Broken(rl, RUN + 'tasks = "repair-*"', ("tasks: Expected `table`", "(it is 'repair-*')")),
    Broken(rl, RUN + 'method = "grpo"', ("no method is named 'grpo'", "bar, fixed")),
    Broken(read_suite, SUITE + SETS + 'models = ["m"]', ("models[0]: Expected `table`", "(it is 'm')")),
    Broken(read_suite, SUITE + SETS + MODELS + "[budgets]", ("budgets: ", "did you mean budget?")),
    Broken(
        read_suite,
        SUITE + SETS + MODELS + '[budget]\nwall_seconds = "1h"',
        ("budget.wall_seconds", "'1h': did you mean 3600?"),
    ),
    Broken(rates, PAPER_RATES + "\n[workload]", ("table [workload] is there twice",)),
    Broken(kubernetes, "[layers]\nx = 3", ("layers.x: Expected `str`", "(it is 3)")),
    Broken(limits, 'concurrent_requests = "many"', ("concurrent_requests", "(it is 'many')")),
    Broken(limits, "concurrent_request = 3", ("concurrent_request", "mean concurrent_requests?")),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: f"{one.read.__name__}-{one.says[0][:30]}")
def test_a_broken_file_is_refused_by_file_key_and_value(tmp_path: Path, broken: Broken) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(f"{broken.text}\n")
    with pytest.raises(Exception, match=r"broken\.toml") as refused:
        broken.read(file)
    assert type(refused.value) not in (KeyError, TypeError, AttributeError)
    assert all(words in str(refused.value) for words in broken.says), str(refused.value)


def test_a_text_that_may_be_a_secret_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text('[endpoints.a]\nbase_url = "https://h/v1"\nconcurrency = 3\nreplicas = "hunter2"\n')
    with pytest.raises(ValueError, match=r"endpoints\.a\.replicas") as refused:
        load(file=file)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("read", [dataset, read_suite, sft, rl])
def test_a_directory_in_place_of_a_file_is_told(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    (tmp_path / "dir.toml").mkdir()
    with pytest.raises(Exception, match=r"dir\.toml cannot be read"):
        read(tmp_path / "dir.toml")


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("ORCHARD_STORE__PATH", "/x", "did you mean ORCHARD_STORE?"),
        ("ORCHARD_SANDBOX__TTL_SECONDS", "1h", "ORCHARD_SANDBOX__TTL_SECONDS: Expected a number of seconds"),
        ("ORCHARD_ENDPOINTS__A__CONCURRENCY", "4", "ORCHARD_ENDPOINTS__A__CONCURRENCY: endpoints.a: missing"),
        ("ORCHARD_ENDPOINTS__A__BASE_URL", "", "ORCHARD_ENDPOINTS__A__BASE_URL: endpoints.a.base_url is emp"),
    ],
)
def test_a_variable_that_is_the_reason_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError) as refused:
        load()
    assert says in str(refused.value)
