"""Configuration: file, then environment, then flags; a key nobody knows is an error that names it."""

import os
from pathlib import Path

import pytest

from orchard.config import Config, ConfigError, load


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


def test_unknown_keys_are_named(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "orchard.toml").write_text("[worker]\nslotz = 2\n")
    with pytest.raises(ConfigError, match="slotz"):
        load()
    (elsewhere / "orchard.toml").write_text("")
    monkeypatch.setenv("ORCHARD_WORKERS", "2")
    with pytest.raises(ConfigError, match="workers"):
        load()


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
