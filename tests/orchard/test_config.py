"""Configuration: file, then environment, then flags; a key nobody knows is an error that names it."""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from orchard.cli.app import options
from orchard.configuration.config import Config, ConfigError, checked, load, secrets
from orchard.configuration.config_toml import as_toml
from orchard.configuration.flags import replaced
from orchard.processes.up import Supervisor
from orchard.schemas.outcomes import AbortCause
from orchard.storage.location import Location
from orchard.storage.lock import writer_lock
from orchard.streams.server import embedded
from orchard.streams.settings import NatsSettings
from orchard.workers.failures import InfrastructureError


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an environment without our variables."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("ORCHARD_"):
            monkeypatch.delenv(name)
    return tmp_path


@pytest.mark.usefixtures("elsewhere")
def test_defaults_need_no_file() -> None:
    assert load() == Config()


def test_each_layer_wins_over_the_one_below(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "orchard.toml").write_text("store = 'a'\n[worker]\nslots = 2\n[nats]\nmax_deliver = 7\n")
    assert load().worker.slots == 2
    monkeypatch.setenv("ORCHARD_WORKER__SLOTS", "3")
    monkeypatch.setenv("ORCHARD_STORE", "b")
    config = load({"worker.slots": 4, "store": None})
    assert (config.store, config.worker.slots, config.nats.max_deliver) == ("b", 4, 7)


def test_an_endpoint_can_come_from_the_environment_alone(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert elsewhere.is_dir()
    monkeypatch.setenv("ORCHARD_ENDPOINTS__DEFAULT__BASE_URL", "http://x/v1")
    assert load().endpoints["default"].base_url == "http://x/v1"


def test_unknown_keys_are_named(elsewhere: Path) -> None:
    (elsewhere / "orchard.toml").write_text("[worker]\nslotz = 2\n")
    with pytest.raises(ConfigError, match="slotz"):
        load()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "variable",
    [
        "ORCHARD_PORT=tcp://10.0.0.7:80",
        "ORCHARD_SERVICE_HOST=10.0.0.7",
        "ORCHARD_SERVICE_PORT_HTTP=80",
        "ORCHARD_PORT_80_TCP_ADDR=10.0.0.7",
        "ORCHARD_NATS_PORT=tcp://10.0.0.8:4222",
        "ORCHARD_SANDBOX_SERVICE_PORT=8080",
        "ORCHARD_HOME=/opt/orchard",
        "ORCHARD_SANDBOX_DISK=5Gi",
        "ORCHARD_SANDBOX_FILES=1Mi",
    ],
)
def test_variables_of_others_are_passed_over(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(*variable.split("=", 1))
    assert load() == Config()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("ORCHARD_WORKER__SLOTZ", "ORCHARD_WORKER__SLOTS"),
        ("ORCHARD_WORKR__SLOTS", "ORCHARD_WORKER__SLOTS"),
        ("ORCHARD_SOMETHING__ELSE", "`orchard config` shows every key"),
    ],
)
def test_a_misspelt_setting_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, meant: str) -> None:
    monkeypatch.setenv(variable, "4")
    with pytest.raises(ConfigError, match=rf"{variable} is no setting: .*{meant}"):
        load()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("ORCHARD_STAGE", "ORCHARD_STATE"),
        ("ORCHARD_STOER", "ORCHARD_STORE"),
        ("ORCHARD_WORKERS", "ORCHARD_UP__WORKERS"),
        ("ORCHARD_WORKER_SLOTS", "ORCHARD_WORKER__SLOTS"),
        ("ORCHARD_NATS_URL", "ORCHARD_NATS__URL"),
        ("ORCHARD_ENDPOINTS_DEFAULT_BASE_URL", "ORCHARD_ENDPOINTS__NAME__BASE_URL"),
    ],
)
def test_what_may_be_another_programs_is_accepted_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, meant: str
) -> None:
    monkeypatch.setenv(variable, "4")
    assert load() == Config()
    (warning,) = caplog.messages
    assert f"{variable} is no setting: did you mean {meant}?" in warning


def test_values_of_the_wrong_kind_are_named(elsewhere: Path) -> None:
    (elsewhere / "orchard.toml").write_text("[worker]\nslots = 'many'\n")
    with pytest.raises(ConfigError, match="slots"):
        load()
    (elsewhere / "orchard.toml").write_text("worker = 3\n")
    with pytest.raises(ConfigError, match="worker"):
        load({"worker.slots": 1})


def test_settings_that_contradict_each_other_are_refused(elsewhere: Path) -> None:
    (elsewhere / "orchard.toml").write_text("[nats]\nack_wait = 10.0\nheartbeat = 9.0\n")
    with pytest.raises(ConfigError, match="heartbeat"):
        load()


def test_the_oracle_does_only_what_it_can(elsewhere: Path) -> None:
    (elsewhere / "orchard.toml").write_text("[oracle.mix]\nresolves = 0.9\nwrong_edit = 0.1\n")
    assert load().oracle.mix == {"resolves": 0.9, "wrong_edit": 0.1}
    (elsewhere / "orchard.toml").write_text("[oracle.mix]\ndances = 1.0\n")
    with pytest.raises(ConfigError, match="'dances' is not a valid Behaviour of the oracle: use resolves, "):
        load()


def test_a_file_that_is_named_must_be_there_and_be_toml(elsewhere: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load(file=elsewhere / "none.toml")
    (elsewhere / "bad.toml").write_text("= =")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(file=elsewhere / "bad.toml")


def test_a_key_that_is_gone_says_why_and_what_to_do_instead(elsewhere: Path) -> None:
    (elsewhere / "orchard.toml").write_text("[nats]\nevent_max_age = 3600\n")
    with pytest.raises(ConfigError, match=r"old events are the fences .* use `orchard log archive`"):
        load()


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("worker", "slots = 0"),
        ("worker", "idle_exit_seconds = nan"),
        ("worker", 'lends = "high, no.dots"'),
        ("nats", 'queues = "rollout.swe"'),
        ("nats", "ack_wait = -5"),
        ("nats", "ack_wait = inf"),
        ("nats", "heartbeat = 0"),
        ("nats", "port = 70000"),
        ("nats", "event_max_bytes = 0"),
        ("nats", "url = 'nats://[::'"),
        ("nats", "url = 'nats://user:secret@127.0.0.1:99999'"),
        ("nats", "work_max_messages = -1"),
        ("sandbox", "max_memory = 'lots'"),
        ("sandbox", "max_memory = '0'"),
        ("sandbox", "output_limit = -1"),
        ("writer", "commit_bytes = 0"),
        ("up", "workers = -1"),
        ("up", "shutdown_seconds = nan"),
        ("oracle.mix", "resolves = nan"),
        ("endpoints.x", "base_url = 'http://x'\nconcurrency = 0"),
        ("endpoints.x.prices.m", "prompt = -1.0\ncompletion = 0.0"),
    ],
)
def test_what_cannot_be_is_refused(elsewhere: Path, section: str, line: str) -> None:
    base = "[endpoints.x]\nbase_url = 'http://x'\n" if section.startswith("endpoints.x.") else ""
    (elsewhere / "orchard.toml").write_text(f"{base}[{section}]\n{line}\n")
    with pytest.raises(ConfigError, match=section.partition(".")[0]):
        load()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("WORKER__SLOTS", "0"), ("NATS__PATIENCE", "nan"), ("UP__RESTART_SECONDS", "-inf")],
)
def test_the_environment_is_held_to_the_same(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    assert elsewhere.is_dir()
    monkeypatch.setenv(f"ORCHARD_{variable}", value)
    with pytest.raises(ConfigError, match=f"ORCHARD_{variable}: Expected"):
        load()


def test_flags_of_a_command_are_held_to_the_same() -> None:
    assert replaced(Config(), "worker", slots=3, idle_exit_seconds=None).worker.slots == 3
    with pytest.raises(ConfigError, match="idle_exit_seconds"):
        replaced(Config(), "worker", idle_exit_seconds=float("nan"))


@pytest.mark.parametrize("line", ['store = ""', r'store = "a\u0000b"', 'state = ""'])
def test_a_path_that_names_nothing_is_refused(elsewhere: Path, line: str) -> None:
    (elsewhere / "orchard.toml").write_text(line)
    with pytest.raises(ConfigError, match="name a directory"):
        load()


def test_a_url_that_is_none_is_not_repeated_with_its_password() -> None:
    with pytest.raises(ConfigError) as refused:
        replaced(Config(), "nats", url="nats://user:sec/ret@host")
    assert "sec" not in str(refused.value)


def test_every_number_of_the_configuration_has_bounds() -> None:
    """One that has none would let NaN and infinity in."""
    unbounded = [path for path, kind in numbers(msgspec.inspect.type_info(Config), "") if not bounded(kind)]
    assert unbounded == []


def bounded(kind: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> bool:
    return (kind.ge, kind.gt) != (None, None) and (kind.le, kind.lt) != (None, None)


def numbers(kind: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every number that a type holds, with its path."""
    match kind:
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            yield path, kind
        case msgspec.inspect.StructType(fields=fields):
            for each in fields:
                yield from numbers(each.type, f"{path}.{each.name}")
        case msgspec.inspect.UnionType(types=types):
            for each in types:
                yield from numbers(each, path)
        case msgspec.inspect.DictType(value_type=value):
            yield from numbers(value, f"{path}.*")


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {
            "store": 'a "b"\\c',
            "oracle": {"mix": {"resolves": 1.0}},
            "plugins": {"harnesses": {"a-b": "m:c"}},
            "endpoints": {
                "x y.z": {"base_url": "http://x", "extra_body": {"a": {"b": [1, True, "c"]}}},
                "b": {"base_url": "http://b", "prices": {"m/1": {"prompt": 1.5, "completion": 2}}},
            },
        },
    ],
)
def test_what_config_prints_is_a_file_that_sets_what_holds(tree: dict[str, Any]) -> None:
    config = checked(tree)
    assert checked(tomllib.loads(as_toml(config))) == config


def test_every_key_that_config_prints_has_a_comment() -> None:
    lines = as_toml(Config()).splitlines()
    keys = [at for at, line in enumerate(lines) if re.match(r"(# )?\w+ = ", line)]
    assert len(keys) > 60
    assert [lines[at] for at in keys if not lines[at - 1].startswith("# ") or " = " in lines[at - 1]] == []


ENDPOINT = '[endpoints.a]\nbase_url = "https://h/v1"'
KEY = "sk-" + "ant-api03-" + "Ab3" * 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[worker]\nslots = "8"', ["worker.slots", "'8'", "did you mean 8?"]),
        ('[up]\noracle = "no"', ["up.oracle"]),
        ('[up]\noracle = "true"', ["up.oracle", "did you mean true?"]),
        ("[worker]\nslotz = 8", ["worker.slotz", "did you mean worker.slots?"]),
        ("[workers]\nslots = 8", ["workers", "did you mean worker?"]),
        ('[nats]\nurl = "127.0.0.1:4222"', ["nats", "did you mean 'nats://127.0.0.1:4222'?"]),
        ('[nats]\nurl = "http://h:4222"', ["nats", "did you mean 'nats://h:4222'?"]),
        ('[nats]\nurl = "nats://"', ["nats.url names no host"]),
        ('[sandbox]\nurl = "10.0.0.3:8080"', ["sandbox.url", "did you mean 'http://10.0.0.3:8080'?"]),
        ('[endpoints.a]\nbase_url = "localhost:8000/v1"', ["endpoints.a", "'http://localhost:8000/v1'?"]),
        ('[endpoints.a]\nbase_url = "api.x.com/v1"', ["endpoints.a", "did you mean 'https://api.x.com/v1'?"]),
        ('[endpoints.a]\nbase_url = "https://h/v1/chat/completions"', ["did you mean 'https://h/v1'?"]),
        ('[endpoints.a]\nbase_url = "https://h/v1"\nreplicas = ["h2/v1"]', ["replicas", "'http://h2/v1'?"]),
        ('[endpoints.a]\nbase_url = ""', ["endpoints.a.base_url is empty"]),
        ('[endpoints.a]\napi_key_env = "K"', ["endpoints.a", "base_url"]),
        (
            '[endpoints.a]\nbase_url = "https://h/v1"\nconcurrency = "9"',
            ["endpoints.a.concurrency", "mean 9?"],
        ),
        (
            '[endpoints.a]\nbase_url = "https://h/v1"\napi_key = "x"',
            ["a.api_key:", "mean endpoints.a.api_key_env?"],
        ),
        ('[endpoints.a.prices.m]\nprompt = "1.5"', ["endpoints.a.prices.m.prompt", "did you mean 1.5?"]),
    ],
)
def test_a_fault_is_told_with_file_key_and_what_may_be_meant(
    elsewhere: Path, text: str, said: list[str]
) -> None:
    base = 'base_url = "https://h/v1"\n' if ".prices" in text else ""
    (elsewhere / "orchard.toml").write_text(f"[endpoints.a]\n{base}{text}\n" if base else f"{text}\n")
    with pytest.raises(ConfigError) as refused:
        load()
    assert all(one in str(refused.value) for one in ["orchard.toml: ", *said]), str(refused.value)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *(
            (place, value)
            for place in (
                ENDPOINT + '\napi_key_env = "{}"',
                '[nats]\ntoken_env = "{}"',
                '[nats]\nuser = "u"\npassword_env = "{}"',
                '[sandbox]\napi_key_env = "{}"',
            )
            for value in (
                KEY,
                "hf_" + "aBcD" * 8,
                "0f" * 16,
                "AKIA" + "Q2" * 8,
                "two words",
                "$NAME",
                "a.b-c",
            )
        ),
        ('[endpoints.a]\nbase_url = "https://user:{}@h/v1"', KEY),
        ('[endpoints.a]\nbase_url = "user:{}@h/v1"', KEY),
        ('[endpoints.a]\nbase_url = "{}"', KEY),
        ('[nats]\nurl = "user:{}@h:4222"', KEY),
    ],
)
def test_a_secret_in_the_wrong_place_is_refused_and_not_repeated(
    elsewhere: Path, place: str, value: str
) -> None:
    (elsewhere / "orchard.toml").write_text(place.format(value))
    with pytest.raises(ConfigError) as refused:
        load()
    told = f"{refused.value} {refused.value.__cause__}"
    assert value not in told and ("api_key_env" in told or "nats." in told or "base_url" in told)


@pytest.mark.parametrize(
    "name",
    ["OPENAI_API_KEY", "openai_key", "_K9", "MY_VERY_LONG_PROVIDERS_API_KEY_2", "my_provider_api_key_env"],
)
def test_names_of_variables_are_accepted(elsewhere: Path, name: str) -> None:
    (elsewhere / "orchard.toml").write_text(
        f'[endpoints.a]\nbase_url = "https://h/v1"\napi_key_env = "{name}"'
    )
    assert load().endpoints["a"].api_key_env == name


@pytest.mark.usefixtures("elsewhere")
def test_the_environment_gives_texts_that_are_taken_as_what_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "WORKER__SLOTS": "8",
        "UP__ORACLE": "false",
        "NATS__ACK_WAIT": "90",
        "ARCHIVE__AFTER_DAYS": "1.5",
        "ENDPOINTS__A__BASE_URL": "http://h/v1",
        "ENDPOINTS__A__STREAM": "1",
        "ENDPOINTS__A__PRICES__M__PROMPT": "2",
        "ENDPOINTS__A__PRICES__M__COMPLETION": "3.5",
        "ORACLE__MIX__RESOLVES": "1",
    }.items():
        monkeypatch.setenv(f"ORCHARD_{name}", value)
    config = load()
    endpoint = config.endpoints["a"]
    assert (config.worker.slots, config.up.oracle, config.nats.ack_wait) == (8, False, 90.0)
    assert (config.archive.after_days, endpoint.stream, endpoint.prices["m"].completion) == (1.5, True, 3.5)


def test_the_file_that_a_command_names_is_its_childrens_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child reads the variable, and so the file, from whichever folder it works in."""
    (tmp_path / "mine.toml").write_text("[worker]\nslots = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHARD_CONFIG", raising=False)
    seen: list[int] = []
    app = typer.Typer()
    app.callback()(options)

    @app.command()
    def show() -> None:
        monkeypatch.chdir("/")
        seen.append(load().worker.slots)

    assert CliRunner().invoke(app, ["--config", "mine.toml", "show"]).exit_code == 0
    assert seen == [7] and "ORCHARD_CONFIG" not in os.environ


def test_the_embedded_server_listens_on_the_port_of_the_configuration(tmp_path: Path) -> None:
    assert embedded(tmp_path, NatsSettings(port=4444), port=5555).port == 4444
    assert embedded(tmp_path, NatsSettings(), port=5555).port == 5555


def test_the_operators_secrets_are_what_the_configuration_names() -> None:
    config = checked(
        {
            "nats": {"url": "nats://u:hunter2!@h:4222,tls://h2", "user": "u", "password_env": "NATS_PW"},
            "endpoints": {"a": {"base_url": "http://h/v1", "api_key_env": "A_KEY"}},
        }
    )
    environment = {
        "A_KEY": "a",
        "NATS_PW": "b",
        "SANDBOX_API_KEY": "c",
        "OTHER": "d",
        "AWS_SESSION_TOKEN": "e",
    }
    assert secrets(config, environment) == {
        "A_KEY": "a",
        "NATS_PW": "b",
        "SANDBOX_API_KEY": "c",
        "AWS_SESSION_TOKEN": "e",
        "nats.url 0": "hunter2!",
    }


def test_a_detail_of_a_failure_does_not_repeat_a_key() -> None:
    error = InfrastructureError(
        AbortCause.LLM_UNAVAILABLE, f"401: Incorrect API key provided: {KEY}AA{'x' * 40}"
    )
    assert KEY not in error.detail and "[masked anthropic-key" in error.detail and KEY not in str(error)


def test_a_second_up_with_a_state_of_its_own_names_who_works_on_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    supervisor = Supervisor(Config(store=str(store), state=str(tmp_path / "other")), announce=print)
    supervisor._check_stream_is_here()
    with writer_lock(Location.parse(store)):
        with pytest.raises(ConfigError, match=rf"\(process {os.getpid()}\) works on the store .*its --state"):
            supervisor._check_stream_is_here()
        (tmp_path / "other" / "nats").mkdir(parents=True)
        supervisor._check_stream_is_here()
