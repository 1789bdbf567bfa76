"""Services of a compose file: what is read of them, what is refused, and that a Harbor task has them."""

from pathlib import Path

import msgspec
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.compose_files import read_service
from orchard.pipelines.tasks.directories import directory_task, read_directory
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import TaskValidated
from orchard.schemas.tasks import TaskService
from orchard.storage.blobs import BlobStore

WHOLE = """
services:
  main:
    depends_on: {web: {condition: service_started}}
  web:
    image: "web:${TAG:-1}"
    entrypoint: /start now
    command: ["sh", "-c", "echo $$HOME"]
    environment: [A=1, B]
    hostname: site
    ports: ["127.0.0.1:9000:80", {target: 443}, 22]
    expose: ["8000-8001/tcp"]
    depends_on: [db, made]
    restart: always
  db:
    image: db:1
    user: 999
    working_dir: /data
    healthcheck:
      {test: ["CMD", "ready", "-x", "a b"], interval: 2s, timeout: 1m30s, retries: 2, start_period: 500ms}
  made:
    image: db:1
    command: make it
    depends_on: {db: {condition: service_healthy}}
  after:
    image: db:1
    depends_on: {made: {condition: service_completed_successfully}}
    expose: []
"""


def _read(path: Path, text: str) -> tuple[TaskService, ...]:
    (path / "compose.yaml").write_text(text)
    found = read_service(path / "compose.yaml").beside
    return tuple(each.of(each.service.image, ["entry"], ["given"]) for each in found)


def test_services_are_read_in_the_order_of_their_start(tmp_path: Path) -> None:
    db, made, *rest = _read(tmp_path, WHOLE)
    web, after = sorted(rest, key=lambda each: each.names[0], reverse=True)
    assert web == TaskService(
        names=("web", "site"),
        image="web:1",
        argv=("/start", "now", "sh", "-c", "echo $HOME"),
        environment={"A": "1", "B": ""},
        ports=(22, 80, 443, 8000, 8001),
    )
    assert (db.argv, db.user, db.workdir, db.ports) == (("entry", "given"), "999", "/data", None)
    assert db.ready.startswith("until timeout 90 sh -c 'ready -x '") and db.ready_seconds == 0.5 + 2 * 92
    assert (made.argv, made.ends) == (("entry", "make", "it"), True)
    assert (after.ports, after.ends) == ((), False)


@pytest.mark.parametrize(
    ("service", "said"),
    [
        ("image: a", "names no port and has no healthcheck"),
        ("expose: [80]", "neither an image nor a build"),
        ("{image: a, expose: [80], privileged: true}", "privileged"),
        ("{image: a, expose: [80], volumes: ['data:/data']}", "volumes"),
        ("{image: a, expose: [80], networks: [inner]}", "networks"),
        ("{image: a, expose: ['53/udp']}", "no TCP port"),
        ("{image: a, expose: [80], environment: {KEY: $KEY}}", "taken from the machine"),
        ("{image: a, expose: [80], depends_on: [nobody]}", "depends on 'nobody'"),
        ("{image: a, expose: [80], depends_on: [db]}", "depend on each other"),
        ("{image: a, healthcheck: {test: 'true', interval: soon}}", "'soon' is no duration"),
        ("{build: ./web, expose: [80]}", "no ./web/Dockerfile"),
    ],
)
def test_what_a_service_cannot_have_is_said(tmp_path: Path, service: str, said: str) -> None:
    if "\n" not in service and not service.startswith("{"):
        service = f"{{{service}}}"
    with pytest.raises(ValueError, match=said):
        _read(tmp_path, f"services:\n  main: {{}}\n  db: {service}\n")


MAIN = """services:
  main:
    command: %s
    environment: {URL: "pg://app:${PASSWORD:-secret}@db", SIGN: pa$$word, LOGS: "${T_BENCH_LOGS}", N: true}
    user: ${UID:-1000}
    working_dir: /srv/${PLACE:-app}
"""


@pytest.mark.parametrize(
    "command",
    ['["sh", "-c", "sleep infinity"]', "sleep 1d", "bash", "'sh -c \"while true; do sleep 1; done\"'", "[]"],
)
def test_the_agents_service_is_read_as_compose_reads_it(tmp_path: Path, command: str) -> None:
    (tmp_path / "compose.yaml").write_text(MAIN % command)
    found = read_service(tmp_path / "compose.yaml")
    assert found.environment == {"URL": "pg://app:secret@db", "SIGN": "pa$word", "N": "true"}
    assert (found.user, found.workdir) == ("1000", "/srv/app")


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("command: /start.sh", "the command '/start.sh'"),
        ("command: sh -c 'sleep 5; /start.sh'", "the command"),
        ("environment: {KEY: $KEY}", "service main: .KEY is taken from the machine"),
        ("user: ${WHO}", "service main: .{WHO} is taken from the machine"),
    ],
)
def test_what_the_agents_service_cannot_have_is_said(tmp_path: Path, said: str, wrong: str) -> None:
    (tmp_path / "compose.yaml").write_text(f"services:\n  main:\n    {said}\n")
    with pytest.raises(ValueError, match=wrong):
        read_service(tmp_path / "compose.yaml")


TASK = {
    "task.toml": '[environment]\nworkdir = "/tmp"\nnetwork_mode = "no-network"\n',
    "instruction.md": "Fetch it.\n",
    "environment/Dockerfile": "FROM scratch\n",
    "environment/docker-compose.yaml": """
services:
  main: {depends_on: [site]}
  site:
    image: host
    command: [python3, -m, http.server, "8000", --directory, /etc]
    expose: [8000]
""",
    "tests/test.sh": "cmp page /etc/debian_version && n=1 || n=0; echo $n > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "python3 -c 'import urllib.request as u; u.urlretrieve"
    '("http://site:8000/debian_version", "page")\'\n',
}


@pytest.mark.long
async def test_a_harbor_task_is_proven_with_its_services(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    for name, text in TASK.items():
        (tmp_path / "it" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "it" / name).write_text(text)
    task = directory_task(read_directory(tmp_path / "it"), "host")
    validator = Validator(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))
    event = (await validator.validate(task)).event
    assert isinstance(event, TaskValidated), event
    compose = tmp_path / "it" / "environment" / "docker-compose.yaml"
    compose.write_text(compose.read_text().replace("    command: [python3", "    labels: [python3"))
    with pytest.raises(TaskError, match="the service site has neither an entrypoint nor a command"):
        directory_task(read_directory(tmp_path / "it"), "host")
    assert task.services is not msgspec.UNSET


SEPARATE = """artifacts = [{source = "/var/tmp/rows", service = "db"}, "/tmp/note"]
[environment]
workdir = "/tmp"
network_mode = "no-network"
[verifier]
environment_mode = "separate"
[[verifier.collect]]
service = "db"
command = "pwd > /var/tmp/rows/place; cp log /var/tmp/rows/log; id -un > /var/tmp/rows/who"
user = "daemon"
[[verifier.collect]]
command = "echo $(cat written) > /tmp/note"
"""
DB = """
services:
  main: {depends_on: [db]}
  db:
    image: host
    command: [sh, -c, "mkdir -m 777 /var/tmp/rows; exec python3 -u -m http.server 8000 2> /srv/log"]
    working_dir: /srv
    expose: [8000]
"""


@pytest.mark.long
async def test_a_separate_verifier_gets_what_a_service_has(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    files = TASK | {
        "task.toml": SEPARATE,
        "environment/docker-compose.yaml": DB,
        "tests/test.sh": "cd /var/tmp/rows; all=$(cat place who /tmp/note | paste -sd -)\n"
        "[ $all = /srv-daemon-asked ] && grep -q 'GET /log' log && n=1 || n=0\n"
        "echo $n > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "echo asked > written; python3 -c 'import urllib.request as u; "
        'u.urlopen("http://db:8000/log")\'\n',
    }
    for name, text in files.items():
        (tmp_path / "it" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "it" / name).write_text(text)
    task = directory_task(read_directory(tmp_path / "it"), "host")
    validator = Validator(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))
    event = (await validator.validate(task)).event
    assert isinstance(event, TaskValidated), event
