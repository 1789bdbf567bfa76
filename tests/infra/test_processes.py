"""What the manifests start is what the code understands: commands, configuration, queues, limits."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer.main
from jsonschema import Draft202012Validator

from orchard.cli.app import app
from orchard.configuration.config import Config, load
from orchard.injector.local.backend import LocalBackend
from orchard.injector.orchestrator.metrics import ServiceMetrics
from orchard.pipelines.datasets import queueing as shards
from orchard.pipelines.domain import request_kinds
from orchard.pipelines.values import requests
from orchard.processes.metrics import FAMILIES
from orchard.processes.probe import HELP
from orchard.schemas.campaigns import Timeouts
from orchard.schemas.identity import check_name
from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.server import MAX_PAYLOAD
from tests.infra.conftest import INFRA, Manifest, Manifests, containers
from tests.infra.scaling import Trigger

ROOT = INFRA.parent


def closed(schema: Any) -> Any:
    """The schema with unknown fields forbidden, where the API server would drop them without a word."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema:
        found["properties"] = {name: closed(value) for name, value in schema["properties"].items()}
        found.setdefault("additionalProperties", False)
    return found


def keda_schema(name: str) -> dict[str, Any]:
    """Of a kind of KEDA's."""
    schema = json.loads((INFRA / "schemas" / f"keda-{name}.json").read_text())
    schema["properties"]["metadata"] = {"type": "object"}
    found: dict[str, Any] = closed(schema)
    return found


@pytest.fixture(scope="module")
def scaled_job_schema() -> dict[str, Any]:
    return keda_schema("scaledjob")


def errors(schema: dict[str, Any], instance: Manifest) -> list[str]:
    """What is wrong, each as `path: message`."""
    return [
        f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(instance)
    ]


def test_scaled_jobs_are_what_keda_declares(manifests: Manifests, scaled_job_schema: dict[str, Any]) -> None:
    jobs = manifests.of("ScaledJob")
    assert len(jobs) == 7
    for job in jobs:
        assert errors(scaled_job_schema, job) == []


def test_what_scales_the_orchestrators_is_what_keda_declares(built: dict[str, Manifests]) -> None:
    schema = keda_schema("scaledobject")
    for overlay in ("cloud", "spot"):
        (item,) = built[overlay].of("ScaledObject")
        assert errors(schema, item) == []
        wrong = {**item, "spec": {**item["spec"], "minReplicas": 2}}
        assert len(errors(schema, wrong)) == 1


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("spec", "rollout", "strategy"), "fast"),
        (("spec", "triggers", 0, "metadata", "lagThreshold"), 1),
        (("spec", "jobTargetRef", "template", "spec", "containers", 0, "imagePolicy"), "Never"),
    ],
)
def test_the_schema_finds_mistakes(
    built: dict[str, Manifests], scaled_job_schema: dict[str, Any], path: tuple[Any, ...], wrong: object
) -> None:
    job = json.loads(json.dumps(built["cloud"].one("ScaledJob", "rollout-swe-normal")))
    node = job
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = wrong

    assert len(errors(scaled_job_schema, job)) == 1


def test_pods_are_what_kubernetes_declares(manifests: Manifests, scaled_job_schema: dict[str, Any]) -> None:
    """KEDA's schema holds the whole Pod template, so it serves for the other workloads' too."""
    template = scaled_job_schema["properties"]["spec"]["properties"]["jobTargetRef"]["properties"]["template"]
    for name, pod in manifests.pods():
        part = {key: value for key, value in pod.items() if key in ("metadata", "spec")}
        assert errors(template, part) == [], name


class TestWorkers:
    def test_each_waits_on_the_consumer_that_its_workers_claim_from(self, manifests: Manifests) -> None:
        for job in manifests.of("ScaledJob"):
            config = configured(manifests, worker_of(job))
            queue = Queue(kind="rollout", domain=config.worker.domain, priority=config.worker.priority)
            words = worker_of(job)["args"]
            if words[0] == "values":
                queue = requests.QUEUE
            if words[0] == "dataset":
                queue = shards.QUEUE
            if "--kinds" in words:
                queue = request_kinds()[words[words.index("--kinds") + 1]].queue
            (entry,) = job["spec"]["triggers"]
            trigger = Trigger.of_metadata(entry["metadata"])
            assert entry["type"] == "nats-jetstream"
            assert trigger.consumer == queue.consumer == job["metadata"]["name"]
            assert trigger.stream == names.WORK
            assert trigger.lag_threshold == slots_of(worker_of(job))
            assert trigger.activation_lag_threshold == 0
            check_name(queue.priority, "queue priority")

    def test_no_slot_of_a_whole_fleet_is_turned_away(self, manifests: Manifests) -> None:
        """Nor those that are lent: an idle slot waits on its own queue or on one that it serves beside it."""
        waiting: Counter[str] = Counter()
        for job in manifests.of("ScaledJob"):
            config = configured(manifests, worker_of(job))
            slots = job["spec"]["maxReplicaCount"] * slots_of(worker_of(job))
            waiting[job["metadata"]["name"]] += slots
            for priority in config.worker.lent_to:
                waiting[Queue(domain=config.worker.domain, priority=priority).consumer] += slots
            assert max(waiting.values()) <= min(config.nats.max_waiting, config.nats.max_ack_pending)

    def test_the_default_queue_has_workers(self, manifests: Manifests) -> None:
        assert manifests.one("ScaledJob", Queue().consumer)

    def test_the_lag_is_asked_of_the_servers_that_are_ready(self, manifests: Manifests) -> None:
        everyone, ready = (manifests.one("Service", name) for name in ("nats", "nats-monitoring"))
        assert everyone["spec"]["clusterIP"] == "None" and everyone["spec"]["publishNotReadyAddresses"]
        assert manifests.one("StatefulSet", "nats")["spec"]["serviceName"] == "nats"
        assert (
            ready["spec"].keys() == {"selector", "ports"}
            and ready["spec"]["selector"] == everyone["spec"]["selector"]
        )
        (port,) = ready["spec"]["ports"]
        host = f"nats-monitoring.{ready['metadata']['namespace']}.svc.cluster.local"
        for job in manifests.of("ScaledJob"):
            trigger = Trigger.of_metadata(job["spec"]["triggers"][0]["metadata"])
            assert trigger.endpoint == f"{host}:{port['port']}"

    def test_running_jobs_are_taken_from_the_lag_and_no_change_ends_them(self, manifests: Manifests) -> None:
        for job in manifests.of("ScaledJob"):
            assert "scalingStrategy" not in job["spec"], "KEDA 2.20.0 and 2.20.1 refuse the default's name"
            assert job["spec"]["rollout"] == {"strategy": "gradual"}
            assert job["spec"]["minReplicaCount"] == 0

    def test_retries_are_jetstreams_and_eviction_is_asked_not_to_happen(self, manifests: Manifests) -> None:
        for job in manifests.of("ScaledJob"):
            target = job["spec"]["jobTargetRef"]
            assert target["backoffLimit"] == 0
            assert target["ttlSecondsAfterFinished"] > 0
            assert target["template"]["spec"]["restartPolicy"] == "Never"
            annotations = target["template"]["metadata"]["annotations"]
            assert annotations["karpenter.sh/do-not-disrupt"] == "true"
            assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"

    def test_a_worker_ends_when_idle_and_drains_before_it_is_killed(self, manifests: Manifests) -> None:
        for job in manifests.of("ScaledJob"):
            target = job["spec"]["jobTargetRef"]
            config = configured(manifests, worker_of(job))
            arguments = worker_of(job)["args"]
            assert float(arguments[arguments.index("--idle-exit") + 1]) > 0
            grace = target["template"]["spec"]["terminationGracePeriodSeconds"]
            assert config.up.shutdown_seconds + 15 <= grace
            age = float(arguments[arguments.index("--max-age") + 1])
            assert target["activeDeadlineSeconds"] >= age + Timeouts().rollout
            spot = "nodeSelector" in target["template"]["spec"]
            assert spot or config.up.shutdown_seconds >= Timeouts().rollout

    def test_a_node_that_is_taken_back_has_30_seconds(self, built: dict[str, Manifests]) -> None:
        for job in built["spot"].of("ScaledJob"):
            spec = job["spec"]["jobTargetRef"]["template"]["spec"]
            assert spec["terminationGracePeriodSeconds"] < 30
            assert spec["nodeSelector"] == {"capacity": "spot"}
            assert spec["tolerations"] == [
                {"key": "capacity", "operator": "Equal", "value": "spot", "effect": "NoSchedule"}
            ]


def worker_of(job: Manifest) -> Manifest:
    """The worker's container."""
    (found,) = job["spec"]["jobTargetRef"]["template"]["spec"]["containers"]
    return dict(found)


def slots_of(worker: Manifest) -> int:
    """Requests that it works on at once; shards of datasets are made one at a time."""
    words = worker["args"]
    return 1 if words[0] == "dataset" else int(words[words.index("--slots") + 1])


def environment(manifests: Manifests, container: Manifest) -> dict[str, str]:
    """What the container finds in its environment; Secrets are stood in for by their names."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        if "configMapRef" in source:
            found |= manifests.one("ConfigMap", source["configMapRef"]["name"])["data"]
    for variable in container.get("env", []):
        found[variable["name"]] = variable.get("value", "from a Secret")
        if reference := variable.get("valueFrom", {}).get("configMapKeyRef"):
            found[variable["name"]] = manifests.one("ConfigMap", reference["name"])["data"][reference["key"]]
    return found


def configured(manifests: Manifests, container: Manifest) -> Config:
    """The configuration as the process in the container reads it."""
    variables = environment(manifests, container)
    variables.pop("ORCHARD_CONFIG", None)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("ORCHARD_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        return load()


def orchard_containers(manifests: Manifests) -> list[tuple[str, Manifest, Manifest]]:
    """(name, Pod, container) of everything that runs `orchard` or a shell for it."""
    return [
        (name, pod, container)
        for name, pod in manifests.pods()
        for container in containers(pod)
        if "orchard/" in container["image"] and container["name"] not in ("orchestrator", "janitor")
    ]


class TestConfiguration:
    def test_every_process_reads_a_configuration_without_unknown_keys(self, manifests: Manifests) -> None:
        for name, _, container in orchard_containers(manifests):
            config = configured(manifests, container)
            assert config.store, name

    def test_every_client_of_nats_proves_who_it_is_over_tls(self, manifests: Manifests) -> None:
        accounts = manifests.one("ConfigMap", "nats")["data"]["accounts.conf"]
        for name, pod, container in orchard_containers(manifests):
            config = configured(manifests, container)
            if config.nats.user is None:
                continue  # the oracle and the metrics read the store only
            assert config.nats.url == "tls://nats.orchard.svc.cluster.local:4222"
            assert config.nats.password_env in environment(manifests, container)
            assert f"user: {config.nats.user}," in accounts
            mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert str(Path(str(config.nats.tls_ca)).parent) in mounted, name
            assert config.nats.replicas == manifests.one("StatefulSet", "nats")["spec"]["replicas"]
            assert {"name": "nats-ca", "secret": {"secretName": "nats-ca"}} in pod["spec"]["volumes"]

    def test_everybody_has_the_same_store(self, manifests: Manifests) -> None:
        stores = {
            configured(manifests, container).store: [
                mount["mountPath"] for mount in container["volumeMounts"]
            ]
            for _, _, container in orchard_containers(manifests)
        }
        ((store, mounts),) = stores.items()
        assert store.startswith("s3://") or store in mounts

    def test_the_sandbox_services_address_is_its_service(self, manifests: Manifests) -> None:
        service = manifests.one("Service", "orchestrator")
        (port,) = [port for port in service["spec"]["ports"] if port["name"] == "http"]
        (orchestrator,) = containers(manifests.one("Deployment", "orchestrator")["spec"]["template"])
        config = configured(manifests, worker_of(manifests.of("ScaledJob")[0]))
        host = f"orchestrator.{service['metadata']['namespace']}.svc.cluster.local"
        assert config.sandbox.url == f"http://{host}:{port['port']}"
        assert config.sandbox.api_key_env in environment(manifests, worker_of(manifests.of("ScaledJob")[0]))
        assert orchestrator["args"][orchestrator["args"].index("--port") + 1] == str(port["port"])

    def test_the_models_file_is_a_configuration(self, manifests: Manifests, tmp_path: Path) -> None:
        text = manifests.one("ConfigMap", "models")["data"]["orchard.toml"]
        path = tmp_path / "orchard.toml"
        path.write_text(text)

        assert (
            load(file=path).endpoints["default"].base_url
            == tomllib.loads(text)["endpoints"]["default"]["base_url"]
        )


def understood(words: list[str], where: str) -> None:
    """What `orchard` is told is a command of it, with options that this has."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "list_commands"):
        name, *words = words
        known = command.get_command(typer.Context(command), name)
        assert known is not None, f"{where}: {name}"
        command = known
    command.make_context(name, list(words))


class TestCommands:
    def test_orchard_understands_its_arguments(self, manifests: Manifests) -> None:
        for name, _, container in orchard_containers(manifests):
            if "command" in container:
                continue  # another program, or a shell to exec into
            understood(container["args"], name)

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("deployment", "module"),
        [
            ("orchestrator", "orchard.injector.orchestrator"),
            ("metrics", "orchard.processes.metrics"),
            ("janitor", "orchard.processes.stuck_jobs"),
        ],
    )
    def test_other_programs_understand_their_arguments(
        self, built: dict[str, Manifests], deployment: str, module: str
    ) -> None:
        pods = {name.partition("/")[2]: pod for name, pod in built["cloud"].pods()}
        (container,) = containers(pods[deployment])
        assert container["command"] == ["python", "-m", module]
        shown = subprocess.run(
            [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True
        ).stdout
        for flag in [argument for argument in container["args"] if argument.startswith("--")]:
            assert f"{flag} " in shown


class TestContainerfile:
    text = (INFRA / "Containerfile").read_text()

    def test_it_has_a_target_for_each_image_of_ours(self, built: dict[str, Manifests]) -> None:
        images = {
            container["image"].split("/")[-1].partition(":")[0]
            for _, pod in built["kind"].pods()
            for container in containers(pod)
            if container["image"].startswith("orchard/")
        }
        targets = {line.split()[-1] for line in self.text.splitlines() if line.startswith("FROM ")}
        settings = built["kind"].one("ConfigMap", "sandboxes")["data"]["kubernetes.toml"]
        images.add(tomllib.loads(settings)["agent_image"].split("/")[-1].partition(":")[0])
        assert images == {"orchestrator", "worker", "writer", "agent"}
        assert images < targets

    def test_it_copies_every_package_and_nothing_that_is_not_there(self) -> None:
        copied = [
            word
            for line in self.text.splitlines()
            if line.startswith("COPY ") and "--from" not in line
            for word in line.split()[1:-1]
        ]
        packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"][
            "find"
        ]
        assert {name.rstrip("*") for name in packages["include"]} <= set(copied)
        assert [word for word in copied if not (ROOT / word).exists()] == []

    def test_its_version_is_the_projects(self, built: dict[str, Manifests]) -> None:
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        for name, _, container in orchard_containers(built["kind"]):
            assert container["image"].endswith(f":{version}"), name


def test_the_server_takes_messages_as_large_as_the_embedded_one_and_syncs_them(manifests: Manifests) -> None:
    config = manifests.one("ConfigMap", "nats")["data"]["nats.conf"]

    assert f"max_payload: {MAX_PAYLOAD} " in config
    assert "sync_interval: always" in config


BOARD = json.loads((INFRA / "chart" / "files" / "dashboard.json").read_text())
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


class TestDashboard:
    def test_it_is_given_to_grafana(self, built: dict[str, Manifests]) -> None:
        given = built["cloud"].one("ConfigMap", "orchard-dashboard")
        assert given["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(given["data"]["dashboard.json"]) == BOARD

    def test_it_shows_what_matters(self) -> None:
        titles = " ".join(panel["title"].lower() for panel in BOARD["panels"])
        for topic in (
            "queue depth",
            "claims",
            "sandbox",
            "outcomes by cause",
            "tokens",
            "cost",
            "dead letters",
        ):
            assert topic in titles

    async def test_our_metrics_are_those_that_are_exported(self, tmp_path: Path) -> None:
        named = {name for text in EXPRESSIONS for name in re.findall(r"\borchard_[a-z_]+", text)}
        nobody = LocalBackend(tmp_path, start_agent=False)
        service = (await ServiceMetrics({}).exposition(nobody)).decode()
        families = set(re.findall(r"^# TYPE (orchard_[a-z_]+) (?!histogram)", service, re.MULTILINE))
        histograms = set(re.findall(r"^# TYPE (orchard_[a-z_]+) histogram", service, re.MULTILINE))
        parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")}
        assert {re.sub("_(bucket|count|sum)$", "", name) for name in named & parts} == histograms
        known = {*FAMILIES, *HELP, *families}
        assert named - parts <= known
        assert {*FAMILIES, *families} <= named

    def test_its_streams_are_ours(self) -> None:
        patterns = {each for text in EXPRESSIONS for each in re.findall(r'stream_name=~?"([^"]+)"', text)}
        streams = [names.WORK, names.DEAD, names.LATER, names.stream_name(0), names.stream_name(15)]
        assert {s for s in streams for each in patterns if re.fullmatch(each, s)} == {*streams}
        assert [each for each in patterns if not any(re.fullmatch(each, s) for s in streams)] == []
