"""The units and files of infra/hosts fit the code and each other."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from orchard.configuration.config import load
from orchard.injector.front.upstreams import load as load_upstreams
from orchard.streams.server import find_binary
from tests.infra.conftest import INFRA
from tests.infra.hosts.network import UNITS, Host, Unit
from tests.infra.test_alarms import ALARMS, PROMTOOL
from tests.infra.test_processes import understood

LOG, WORKERS = "log.example", ("10.1.2.3", "worker-2.example")
ON_LOG = ("nats", "writer", "steward", "archiver", "metrics", "nats-exporter", "front")
ON_WORKERS = ("agent", "orchestrator", "worker@")


def make(secrets: Path, *hosts: str) -> None:
    subprocess.run(["sh", str(UNITS / "make-files.sh"), str(secrets), *hosts], check=True)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hosts")
    (place / "store.env").write_text("ORCHARD_STORE=s3://bucket/orchard\nAWS_REGION=somewhere\n")
    (place / "orchard.toml").write_text('[endpoints.default]\nbase_url = "http://models.example/v1"\n')
    (place / "models.env").write_text("OPENAI_API_KEY=key-of-a-model\n")
    (place / "agent.env").write_text("HTTPS_PROXY=http://proxy.example:3128\n")
    (place / "fronts").write_text(f"{LOG}\n")
    make(place, LOG, *WORKERS)
    return place


@pytest.fixture
def units(secrets: Path, tmp_path: Path) -> dict[str, Unit]:
    """Every service, as the host reads it that runs it."""
    found = {}
    for address, names in ((LOG, ON_LOG), (WORKERS[0], ON_WORKERS)):
        host = Host(address, address, "none", tmp_path / address)
        host.install(secrets / "hosts" / address)
        found |= {name: Unit.read(f"orchard-{name}.service", "1", host) for name in names}
    return found


def test_there_is_no_other_unit() -> None:
    there = {path.stem.removeprefix("orchard-") for path in UNITS.glob("*.service")}
    assert there == {*ON_LOG, *ON_WORKERS}


def test_the_guide_names_every_unit_and_file() -> None:
    guide = (INFRA.parent / "docs" / "several-hosts.md").read_text()
    for path in [*UNITS.glob("*.service"), *UNITS.glob("*.timer"), UNITS / "make-files.sh"]:
        name = path.name if path.suffix != ".service" else path.stem
        assert name in guide


def test_nothing_but_the_agent_can_do_more_than_it_needs(tmp_path: Path) -> None:
    place = tmp_path / "etc" / "systemd" / "system"
    shutil.copytree(UNITS, place)
    exposed = {}
    for path in UNITS.glob("*.service"):
        name = path.name.replace("@", "@1")
        command = [
            "systemd-analyze",
            "security",
            "--offline=true",
            "--json=off",
            "--root",
            str(tmp_path),
            name,
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said.stdout)
        assert found, said.stderr
        exposed[path.stem] = float(found[1])
    assert {name for name, level in exposed.items() if level >= 2.0} == {"orchard-agent"}


def test_prometheus_reads_its_configuration_and_the_rules(secrets: Path, tmp_path: Path) -> None:
    for name in ("prometheus.yml", "rules.yaml", "ca.crt"):
        text = (secrets / "hosts" / LOG / name).read_text().replace("/etc/orchard", str(tmp_path))
        (tmp_path / name).write_text(text)
    command = [str(PROMTOOL), "check", "config", str(tmp_path / "prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(ALARMS)} rules found" in checked.stdout
    jobs = yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]
    (entry,) = jobs[-1]["static_configs"]
    assert entry["targets"] == [f"{host}:8443" for host in WORKERS]
    rules = yaml.safe_load((tmp_path / "rules.yaml").read_text())["groups"][0]["rules"]
    (missing,) = [rule["expr"] for rule in rules if rule["alert"] == "OrchardNatsServerMissing"]
    assert "== 1) < 1 or absent" in missing


@pytest.mark.long
def test_programs_understand_what_they_are_told(units: dict[str, Unit]) -> None:
    for name, unit in units.items():
        program, *words = unit.command
        if program.endswith("/orchard"):
            understood(words, name)
        elif words[0] == "-m":
            shown = subprocess.run(
                [program, *words[:2], "--help"], capture_output=True, text=True, check=True
            )
            for flag in [word for word in words if word.startswith("--")]:
                assert f"{flag} " in shown.stdout
        assert Path(program).is_file() or name == "nats-exporter", "which is not part of Orchard"


def test_processes_read_a_configuration_of_their_role(
    units: dict[str, Unit], monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = (INFRA / "chart" / "files" / "accounts.conf").read_text()
    for name in ("writer", "steward", "archiver", "worker@"):
        with monkeypatch.context() as patch:
            for variable in [each for each in os.environ if each.startswith("ORCHARD_")]:
                patch.delenv(variable)
            for variable, value in units[name].environment().items():
                patch.setenv(variable, value)
            config = load()
        assert config.store == "s3://bucket/orchard"
        assert config.nats.url == f"tls://{LOG}:4222"
        assert config.nats.user == name.rstrip("@") and f"user: {config.nats.user}," in accounts
        assert Path(str(config.nats.tls_ca)).is_file() and Path(str(config.sandbox.tls_ca)).is_file()
        assert config.endpoints["default"].base_url == "http://models.example/v1"


def test_a_worker_has_the_time_to_drain_that_it_is_told(units: dict[str, Unit]) -> None:
    worker = units["worker@"]
    assert worker.stop_seconds >= float(worker.environment()["ORCHARD_UP__SHUTDOWN_SECONDS"]) + 30


def test_no_host_has_the_secrets_of_another_role(secrets: Path) -> None:
    users = {path.name: path.read_text() for path in (secrets / "orchard" / "nats-users").iterdir()}
    for host, allowed in ((WORKERS[0], {"worker"}), (LOG, set(users)), ("operator", {"operator"})):
        texts = "".join(path.read_text() for path in (secrets / "hosts" / host).iterdir())
        assert {user for user, password in users.items() if password in texts} == allowed
    keys = {(secrets / "hosts" / host / "sandbox.env").read_text() for host in WORKERS}
    assert len(keys) == len(WORKERS)
    assert not [path for path in secrets.rglob("ca.key") if path.parent.name != "ca"]


def test_the_front_and_all_services_have_one_key_and_each_its_own_is_an_administrators(
    units: dict[str, Unit], secrets: Path
) -> None:
    shared = units["front"].environment()["SANDBOX_API_KEY"]
    own = [
        line.partition("=")[2]
        for host in WORKERS
        for line in (secrets / "hosts" / host / "sandbox.env").read_text().splitlines()
        if line.startswith("SANDBOX_API_KEY=")
    ]
    service, worker = units["orchestrator"].environment(), units["worker@"].environment()
    assert (service["SANDBOX_API_KEY"], service["SANDBOX_ADMIN_KEYS"]) == (shared, own[0])
    assert worker["SANDBOX_API_KEY"] == own[0] and len({shared, *own}) == len(WORKERS) + 1
    found = load_upstreams(secrets / "hosts" / LOG / "front.toml").upstreams
    assert [each.url for each in found.values()] == [f"https://{host}:8443" for host in WORKERS]


def test_who_may_read_them(secrets: Path) -> None:
    """Root alone, but for what holds no secret, and the key that NATS reads with its group."""
    opened = {
        path.name: oct(path.stat().st_mode & 0o777)
        for path in (secrets / "hosts" / LOG).iterdir()
        if path.stat().st_mode & 0o077
    }
    public = (
        "accounts.conf",
        "ca.crt",
        "nats.conf",
        "orchard.toml",
        "prometheus.yml",
        "rules.yaml",
        "front.toml",
    )
    assert opened == {**dict.fromkeys(public, "0o644"), "tls.key": "0o640"}


def test_one_host_more_changes_nothing_of_the_others(secrets: Path) -> None:
    before = {path: path.read_bytes() for path in (secrets / "hosts").rglob("*") if path.is_file()}
    make(secrets, LOG, *WORKERS, "worker-3.example")
    after = {path: path.read_bytes() for path in (secrets / "hosts").rglob("*") if path.is_file()}
    listed = {
        secrets / "hosts" / LOG / name: added for name, added in (("prometheus.yml", 1), ("front.toml", 3))
    }
    for path, added in listed.items():
        assert before.pop(path).splitlines() == after[path].splitlines()[:-added]
    assert before.items() <= after.items()
    assert {path.parent.name for path in after.keys() - before.keys() - listed.keys()} == {
        "worker-3.example",
        "operator",
    }


def test_the_servers_configuration_is_valid(units: dict[str, Unit]) -> None:
    unit = units["nats"]
    command = [str(find_binary()), *unit.command[1:], "-t"]
    checked = subprocess.run(command, env=unit.environment(), capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("missing", ["store.env", "orchard.toml"])
def test_what_must_be_written_by_hand_is_named(secrets: Path, tmp_path: Path, missing: str) -> None:
    for name in {"store.env", "orchard.toml"} - {missing}:
        (tmp_path / name).write_bytes((secrets / name).read_bytes())
    command = ["sh", str(UNITS / "make-files.sh"), str(tmp_path), LOG, *WORKERS]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert re.search(f"{missing} is missing: write", run.stderr)
