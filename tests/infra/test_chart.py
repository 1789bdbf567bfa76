"""The chart and the overlays are the same objects: the overlays are written from it."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from orchard.schemas.queues import Queue
from orchard.streams.settings import queues_in
from tests.infra.conftest import INFRA, Manifest, Manifests, containers

HELM = Path(sys.executable).with_name("helm")
CHART = INFRA / "chart"
VALUES = {"kind": ["kind"], "cloud": ["cloud"], "spot": ["cloud", "spot"]}
"""What `helm install` is told for what each overlay is."""


def helm(*words: str) -> str:
    run = subprocess.run([HELM, *words], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def rendered(*words: str) -> list[Manifest]:
    text = helm("template", "orchard", str(CHART), "--namespace", "orchard", *words)
    return [document for document in yaml.safe_load_all(text) if document]


def by_name(items: list[Manifest]) -> dict[tuple[str, str, str], Manifest]:
    found = {
        (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]): item
        for item in items
    }
    assert len(found) == len(items), "no object twice"
    return found


@pytest.mark.long
@pytest.mark.parametrize("overlay", VALUES)
def test_helm_and_kustomize_give_the_same_objects(built: dict[str, Manifests], overlay: str) -> None:
    files = [word for name in VALUES[overlay] for word in ("--values", str(CHART / f"values-{name}.yaml"))]

    own = {("Namespace", "", "orchard")}  # Helm makes it
    kustomized = by_name(list(built[overlay].items))
    assert own <= kustomized.keys()
    assert by_name(rendered(*files)) == {key: item for key, item in kustomized.items() if key not in own}


def test_the_overlays_are_those_of_the_chart(tmp_path: Path) -> None:
    for place in ("chart", "overlays"):
        subprocess.run(["cp", "-r", str(INFRA / place), str(tmp_path)], check=True)
    script = tmp_path / "make-manifests.sh"
    script.write_text((INFRA / "make-manifests.sh").read_text())
    subprocess.run(["sh", str(script)], env={"HELM": str(HELM), "PATH": "/usr/bin:/bin"}, check=True)

    for path in (tmp_path / "overlays").rglob("*.yaml"):
        now = INFRA / path.relative_to(tmp_path)
        assert path.read_text() == now.read_text(), f"{now.relative_to(INFRA)}: run `make manifests`"


@pytest.mark.parametrize("overlay", VALUES)
def test_helm_finds_nothing_to_complain_of(overlay: str) -> None:
    files = [word for name in VALUES[overlay] for word in ("--values", str(CHART / f"values-{name}.yaml"))]
    helm("lint", "--strict", "--quiet", str(CHART), *files)


def test_a_queue_of_a_list_brings_all_that_it_needs() -> None:
    items = Manifests(rendered(*queues(queue("claw", "low", 7, ["normal"]), queue("claw"))))

    job = items.one("ScaledJob", "rollout-claw-low")
    variables = {
        one["name"]: one.get("value")
        for one in job["spec"]["jobTargetRef"]["template"]["spec"]["containers"][0]["env"]
    }
    assert job["spec"]["maxReplicaCount"] == 7
    assert job["spec"]["triggers"][0]["metadata"]["consumer"] == "rollout-claw-low"
    assert variables["ORCHARD_WORKER__DOMAIN"] == "claw"
    assert variables["ORCHARD_WORKER__LENDS"] == "normal"
    settings = items.one("ConfigMap", "settings")["data"]
    wanted = "rollout.claw.low,rollout.claw.normal"
    assert settings["ORCHARD_NATS__QUEUES"] == wanted, "the writer makes their consumers"


def test_a_model_server_in_the_cluster_is_let_through_by_its_labels() -> None:
    rule = {"to": [{"podSelector": {"matchLabels": {"app": "vllm"}}}], "ports": [{"port": 8000}]}
    items = Manifests(rendered("--set-json", f"egress=[{json.dumps(rule)}]"))

    _, *added = items.one("NetworkPolicy", "outside")["spec"]["egress"]
    assert added == [rule]


def test_who_uses_the_store_may_have_the_identity_of_its_account_in_place_of_keys() -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/orchard"}
    plain, items = (
        Manifests(rendered(*words)) for words in ((), ("--set-json", f"storeIdentity={json.dumps(role)}"))
    )

    def accounts(of: Manifests) -> set[str]:
        """Of all Pods that would have the keys."""
        return {
            pod["spec"]["serviceAccountName"]
            for _, pod in of.pods()
            if any(
                source.get("secretRef", {}).get("name") == "store-s3"
                for box in containers(pod)
                for source in box.get("envFrom", ())
            )
        }

    identified = {
        item["metadata"]["name"]
        for item in items.of("ServiceAccount")
        if item["metadata"].get("annotations") == role
    }
    assert identified == accounts(items) == accounts(plain)
    assert {"writer", "worker", "console"} <= identified
    assert not any("annotations" in item["metadata"] for item in plain.of("ServiceAccount"))


def test_another_namespace_is_another_everywhere() -> None:
    """In alarms and on the dashboard, too."""
    words = ["--set", "monitoring=true,kedaNamespace=k,monitoringNamespace=m"]
    text = helm("template", "x", str(CHART), "--namespace", "elsewhere", *words)

    own = (
        r"namespace: orchard\b",
        r"namespace=~?\\?.orchard\b",
        r"\.orchard\.svc",
        "orchard-sandboxes",
    )
    for word in own:
        assert not re.search(word, text), word
    assert "nats-0.nats.elsewhere.svc" in text
    assert 'kube_pod_status_unschedulable{namespace=~"elsewhere|elsewhere-sandboxes"}' in text
    names = set(re.findall(r"kubernetes.io/metadata.name: ([\w-]+)", text))
    assert names == {"elsewhere", "elsewhere-sandboxes", "k", "m", "kube-system"}


def queue(domain: str, priority: str = "normal", workers: int = 3, lends: Sequence[str] = ()) -> Manifest:
    return {"kind": "rollout", "domain": domain, "priority": priority, "maxWorkers": workers, "lends": lends}


def queues(*entries: Manifest) -> list[str]:
    return ["--set-json", f"queues={json.dumps(entries)}"]


def test_twenty_queues_have_workers_consumers_and_rights_of_their_own() -> None:
    """A domain may have `_`, which names of Kubernetes may not."""
    entries = [queue(f"domain_{number}", str(number), lends=[]) for number in range(20)]
    items = Manifests(rendered(*queues(*entries)))

    jobs = items.of("ScaledJob")
    consumers = {job["spec"]["triggers"][0]["metadata"]["consumer"] for job in jobs}
    assert consumers == {f"rollout-domain_{number}-{number}" for number in range(20)}
    assert all(re.fullmatch(r"[a-z0-9-]{1,52}", job["metadata"]["name"]) for job in jobs)
    accounts = items.one("ConfigMap", "nats")["data"]["accounts.conf"]
    rights = {
        found[1]
        for found in re.finditer(r"\$JS\.API\.CONSUMER\.MSG\.NEXT\.ORCHARD_WORK\.([^\"]+)\"", accounts)
    }
    assert rights == consumers
    assert "orchard.work.>" not in accounts.partition("user: worker")[2].partition("user: archiver")[0]


def teams(**entries: Manifest) -> list[str]:
    return ["--set-json", f"teams={json.dumps(entries)}"]


def test_a_team_has_a_queue_of_its_own_beside_every_queue_of_rollouts() -> None:
    """With workers that KEDA starts for it, and no more than its quota needs."""
    vision = {"maxWorkers": 2, "share": 2, "slots": 32, "usdPerDay": 10.5}
    lists = queues(queue("swe", lends=["high"]), queue("swe", "high"))
    items = Manifests(rendered(*lists, *teams(vision=vision, a_b={"maxWorkers": 1})))

    jobs = {job["metadata"]["name"]: job["spec"] for job in items.of("ScaledJob")}
    queues_ = ["rollout-swe-normal", "rollout-swe-high"]
    assert jobs.keys() == {name + team for name in queues_ for team in ("", "-vision", "-a-b")}
    job = jobs["rollout-swe-normal-vision"]
    assert job["maxReplicaCount"] == 2
    assert job["triggers"][0]["metadata"]["consumer"] == Queue(team="vision").consumer
    settings = items.one("ConfigMap", "settings")["data"]
    assert queues_in(settings["ORCHARD_NATS__QUEUES"]) == [
        Queue(priority=priority, team=team)
        for priority in ("normal", "high")
        for team in ("", "a_b", "vision")
    ]
    assert settings["ORCHARD_TEAMS__VISION__SLOTS"] == "32"
    assert settings["ORCHARD_TEAMS__VISION__USD_PER_DAY"] == "10.5"
    assert settings["ORCHARD_TEAMS__A_B__SHARE"] == "1"
    accounts = items.one("ConfigMap", "nats")["data"]["accounts.conf"]
    assert '"$JS.API.CONSUMER.MSG.NEXT.ORCHARD_WORK.rollout-swe-high:vision"' in accounts
    assert '"orchard.later.rollout.swe.normal:a_b.>"' in accounts


def test_who_gives_commands_is_read_from_the_secret_of_people() -> None:
    items = Manifests(rendered("--set", "secrets.people=people,page.enabled=true,page.host=o.example"))

    path = {"name": "ORCHARD_ACCESS__PEOPLE", "value": "/etc/orchard/people/people.toml"}
    with_people = {name for name, pod in items.pods() if path in containers(pod)[0].get("env", ())}
    assert with_people == {"Deployment/console", "Deployment/page"}


def test_a_steward_that_tells_what_waits_has_key_and_way_to_the_sandbox_service() -> None:
    def steward(*words: str) -> tuple[set[str], set[str], bool]:
        """Variables of the steward, settings of all, and whether the policies let it through."""
        items = Manifests(rendered(*words))
        (container,) = containers(items.one("Deployment", "steward")["spec"]["template"])
        clients = items.one("NetworkPolicy", "sandbox-clients")["spec"]["podSelector"]["matchExpressions"][0]
        (come, _) = items.one("NetworkPolicy", "orchestrator")["spec"]["ingress"]
        let_in = come["from"][0]["podSelector"]["matchExpressions"][0]
        assert clients == let_in
        names = {one["name"] for one in container["env"]}
        return names, set(items.one("ConfigMap", "settings")["data"]), "steward" in clients["values"]

    told, quiet = steward("--set", "warmFollowsQueue=true"), steward()
    assert "SANDBOX_API_KEY" in told[0] - quiet[0]
    assert told[1] - quiet[1] == {"ORCHARD_SANDBOX__FOLLOW_QUEUE"}
    assert (told[2], quiet[2]) == (True, False)


def test_limits_of_a_queue_follow_from_all_who_may_wait_there() -> None:
    small = Manifests(rendered(*queues(queue("swe"))))
    large = Manifests(
        rendered(
            *queues(queue("swe", "high", 200), queue("swe", "normal", 500, ["high"]), queue("b", "high", 9))
        )
    )

    assert not any("MAX_" in name for name in small.one("ConfigMap", "settings")["data"])
    settings = large.one("ConfigMap", "settings")["data"]
    assert settings["ORCHARD_NATS__MAX_WAITING"] == settings["ORCHARD_NATS__MAX_ACK_PENDING"] == str(700 * 16)


def test_large_numbers_are_numbers(tmp_path: Path) -> None:
    """Helm has those of a file as floating-point ones, and writes a million as 1e+06."""
    values = {
        "workers": {"maxAgeSeconds": 1_000_000, "deadlineSeconds": 2_000_000, "idleSeconds": 3_000_000},
        "orchestrator": {"requestsInFlight": 4_000_000},
        "queues": [queue("swe", workers=5_000_000)],
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    items = Manifests(rendered("--values", str(tmp_path / "values.yaml"), "--set", "monitoring=true"))

    (job,) = items.of("ScaledJob")
    target = job["spec"]["jobTargetRef"]
    arguments = target["template"]["spec"]["containers"][0]["args"]
    assert target["activeDeadlineSeconds"] == 2_000_000 and job["spec"]["maxReplicaCount"] == 5_000_000
    assert arguments[arguments.index("--max-age") + 1] == "1000000"
    assert arguments[arguments.index("--idle-exit") + 1] == "3000000"
    (trigger,) = items.one("ScaledObject", "orchestrator")["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "4000000"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "workers.graceSeconds=7200"], "must be above workers.shutdownSeconds"),
        (["--set", "workers.deadlineSeconds=50000"], "cuts off what still runs"),
        (["--set", "workers.slot=3"], "slot is not allowed"),
        (["--set", "orchestrator.maxReplicas=1"], "must not be below orchestrator.replicas"),
        (["--set", "storeClaim=20Gi"], "it is the path at which the volume is"),
        (["--set", "store=bucket"], "store"),
        (["--set", 'sandboxes=namespace="boxes"'], "let sandboxesNamespace say the same (orchard-sandboxes)"),
        (["--set", "images.worker=registry.example/worker:"], "images.worker"),
        (["--set", "images.worker=registry.example/worker@sha256:12"], "images.worker"),
        (["--set", "nats.install=false"], "where NATS is"),
        (queues(), "at least 1"),
        (queues(queue("swe"), queue("swe")), "twice"),
        (queues(queue("a_b"), queue("a-b")), "by `_` and `-` alone"),
        (queues(queue("swe", "high", 1, ["low"])), "which is not in queues"),
        (queues(queue("swe", "high", 1, ["high"])), "to itself"),
        (queues(queue("a" * 60)), "more than 52 characters"),
        (queues({**queue("swe"), "priority": 1}), "priority"),
        (queues({**queue("swe"), "kind": "annotate"}), "domain"),
        (queues({**queue("swe"), "kind": "prove"}), "domain"),
        (queues({**queue("swe"), "kind": "synthesis"}), "domain"),
        (queues({**queue("swe"), "maxWorker": 1}), "maxWorker"),
        (teams(vision={"maxWorkers": 3, "slots": 32}), "no more than its quota of 32 slots needs"),
        (teams(vision={"maxWorkers": 1, "share": 0}), "share"),
        (teams(**{"a-b": {"maxWorkers": 1}}), "a-b"),
    ],
)
def test_values_that_cannot_work_are_refused_with_a_sentence(words: list[str], says: str) -> None:
    run = subprocess.run(
        [HELM, "template", "orchard", CHART, "--namespace", "orchard", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert says in run.stderr


DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.mark.long
@pytest.mark.parametrize(
    "image", [f"r.example/w@{DIGEST}", f"r.example:5000/o/w:1.2@{DIGEST}", "w:1", "r.example/a/b/c:v1_2.3-x"]
)
def test_images_may_be_named_by_tag_and_digest(image: str) -> None:
    names = ("worker", "writer", "orchestrator", "nats", "natsExporter")
    items = Manifests(rendered("--set", ",".join(f"images.{name}={image}" for name in names)))
    assert {box["image"] for _, pod in items.pods() for box in containers(pod)} == {image}


def test_what_reads_the_store_has_its_volume_with_figures_too() -> None:
    words = ["--set", "monitoring=true", "--values", str(CHART / "values-kind.yaml")]
    items = Manifests(rendered(*words))
    for name, pod in items.pods():
        for box in containers(pod):
            told = [one["name"] for one in box.get("env", ())]
            told += [one.get("configMapRef", {}).get("name", "") for one in box.get("envFrom", ())]
            if {"ORCHARD_STORE", "settings"} & set(told):
                assert "/store" in {mount["mountPath"] for mount in box["volumeMounts"]}, (name, box["name"])


def test_limits_for_sandboxes_may_be_left_out() -> None:
    words = ("sandboxQuota=null", "sandboxDefaults=null", "priorityClass=null")
    items = Manifests(rendered(*(word for one in words for word in ("--set", one))))
    assert items.of("ResourceQuota", "LimitRange", "PriorityClass") == []
    assert not any("priorityClassName" in pod["spec"] for _, pod in items.pods())


def test_replicas_in_place_of_an_answer_are_no_more_than_the_most() -> None:
    words = ("monitoring=true", "orchestrator.replicas=3", "orchestrator.maxReplicas=4")
    spec = Manifests(rendered("--set", ",".join(words))).one("ScaledObject", "orchestrator")["spec"]
    assert spec["fallback"]["replicas"] == 4


def test_every_role_has_the_rights_on_each_event_stream_that_it_has_on_the_first() -> None:
    items = Manifests(rendered("--set", "nats.eventStreams=3"))

    assert items.one("ConfigMap", "settings")["data"]["ORCHARD_NATS__EVENT_STREAMS"] == "3"
    accounts = items.one("ConfigMap", "nats")["data"]["accounts.conf"]
    for role in ("writer", "steward", "worker", "archiver"):
        rights = re.findall('"([^"]+)"', accounts.partition(f"user: {role}")[2].partition("subscribe")[0])
        of_first = {one for one in rights if "ORCHARD_EVENTS" in one and "ORCHARD_EVENTS_" not in one}
        for stream in (1, 2):
            assert {one.replace("ORCHARD_EVENTS", f"ORCHARD_EVENTS_{stream}") for one in of_first} <= {
                *rights
            }
            assert ("orchard.events.>" in rights) == (f"orchard.events-{stream}.>" in rights)
    of_people = re.findall(r'"orchard\.events\.(\*\.[^"]+)"', accounts)
    assert of_people.count("*.*.rollout.requested") == 3  # exported, imported, allowed
    assert re.findall(r'"orchard\.events-2\.(\*\.[^"]+)"', accounts) == of_people
    assert "ORCHARD_NATS__EVENT_STREAMS" not in Manifests(rendered()).one("ConfigMap", "settings")["data"]
