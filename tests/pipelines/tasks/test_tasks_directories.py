"""Task directories of Harbor and Terminal-Bench are imported and proven; what cannot be is one sentence."""

import os
import re
import stat
from pathlib import Path

import msgspec
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.directories import directories, directory_task, read_all, read_directory
from orchard.pipelines.tasks.dockerfiles import build_image
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.tasks import Asked, StateCheck
from orchard.storage.blobs import BlobStore

TASK_TOML = """
version = "1.0"

[metadata]
author_name = "A"
difficulty = "easy"
tags = ["files"]

[verifier]
timeout_sec = 20.0
env = { WANTED = "hello, it's me" }

[agent]
timeout_sec = 60.0

[environment]
build_timeout_sec = 600.0
cpus = 1
memory = "512M"
"""
OFFLINE = f'{TASK_TOML}network_mode = "no-network"\n'
HARBOR = {
    "task.toml": OFFLINE,
    "instruction.md": "Write the greeting to greeting.txt.\n",
    "environment/Dockerfile": "FROM debian:12\nWORKDIR /srv\nFROM debian:12\nWORKDIR /\nWORKDIR tmp\n",
    "solution/solve.sh": "#!/bin/bash\ncp /solution/greeting.txt .\n",
    "solution/greeting.txt": "hello, it's me\n",
    "tests/test.sh": 'cmp /tests/helper.bin <(printf "\\377\\000") || exit 9\n'
    '[ "$(cat greeting.txt)" = "$WANTED" ] && echo 1 > /logs/verifier/reward.txt\n'
    "test -e /logs/verifier/reward.txt || echo 0.5 > /logs/verifier/reward.txt\n",
}
TERMINAL_BENCH = {
    "task.yaml": "instruction: |\n  Make the file /tmp/made.\ndifficulty: easy\nparser_name: pytest\n"
    "max_agent_timeout_sec: 60.0\nmax_test_timeout_sec: 20.0\nrun_tests_in_same_shell: false\n",
    "Dockerfile": "FROM debian:12\nWORKDIR /tmp\n",
    "docker-compose.yaml": "services:\n  client:\n    build: .\n",
    "solution.sh": "touch made\n",
    "run-tests.sh": "python3 $TEST_DIR/test_outputs.py\n",
    "tests/test_outputs.py": "import pathlib\nassert pathlib.Path('/tmp/made').exists()\n",
}


def _written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.long
async def test_both_formats_are_proven_by_their_solutions(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    harbor = _written(tmp_path / "set" / "greet", HARBOR)
    (harbor / "tests" / "helper.bin").write_bytes(b"\xff\x00")
    _written(tmp_path / "set" / "make", TERMINAL_BENCH)
    found = directories(tmp_path / "set")
    greet, make = (directory_task(read_directory(path), "host") for path in found)
    make = msgspec.structs.replace(make, asks=Asked())

    assert (greet.task_id, greet.source, greet.workdir) == ("greet", "harbor", "/tmp")
    assert (greet.memory, greet.labels) == ("512Mi", {"difficulty": "easy"})
    assert (make.task_id, make.source, make.workdir) == ("make", "terminal-bench", "/tmp")
    assert isinstance(greet.grading, StateCheck)
    assert greet.grading.timeout_seconds == 20.0
    assert "it's me" not in greet.grading.command, "variables of the tests lie in a file of their own"

    validator = Validator(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))
    nothing = directory_task(read_directory(harbor), "host")
    (harbor / "solution" / "greeting.txt").write_text("good bye\n")
    wrong = directory_task(read_directory(harbor), "host")
    events = [(await validator.validate(task)).event for task in (greet, make, wrong)]
    assert nothing == greet
    assert [type(event) for event in events] == [TaskValidated, TaskValidated, TaskRejected]
    assert all(event.detail is None for event in events if isinstance(event, TaskValidated))
    assert "0.5" in (events[2].detail or ""), "half a reward is no solution, and the proof says what it was"


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"task.toml": 'version = "1.0"\n[[steps]]\nname = "one"\n'}, "steps/one/instruction.md"),
        ({"task.toml": "[environment]\ngpus = 1\n"}, "needs GPUs, which"),
        ({"task.toml": '[verifier.env]\nKEY = "${OPENAI_API_KEY}"\n'}, "a task holds no secrets"),
        ({"task.toml": "[verifier]\ntimeout_sec = 'long'\n"}, "Expected `float`"),
        ({"task.toml": "[verifier]\ntimeout_sec = nan\n"}, "Expected `float` > 0"),
        ({"task.toml": "[verifier"}, "a task or compose file in .*: Expected"),
        ({"tests/test.sh": None}, "no tests/test.sh"),
        ({"instruction.md": None}, "instruction.md"),
        (
            {"environment/docker-compose.yaml": "services:\n  main: {}\n  database: {}\n"},
            "service database: it has neither an image nor a build",
        ),
    ],
)
def test_what_cannot_be_a_task_is_one_sentence(
    tmp_path: Path, files: dict[str, str | None], sentence: str
) -> None:
    given = {**HARBOR, **files}
    path = _written(tmp_path / "it", {name: text for name, text in given.items() if text is not None})
    with pytest.raises(TaskError, match=sentence) as refused:
        read_directory(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("given", "asks"),
    [
        # What Harbor gives a task that says nothing.
        ("", Asked(network=True, creation_seconds=600.0)),
        ("[environment]\nallow_internet = true\n", Asked(network=True, creation_seconds=600.0)),
        ("[environment]\nallow_internet = false\n", Asked(creation_seconds=600.0)),
        ("[environment]\nallow_internet = false\nallowed_hosts = []\n", Asked(creation_seconds=600.0)),
        (
            '[environment]\nallow_internet = true\nnetwork_mode = "no-network"\nbuild_timeout_sec = 900\n',
            Asked(creation_seconds=900.0),
        ),
        (
            '[agent]\ntimeout_sec = 12000\n[environment]\nnetwork_mode = "allowlist"\n'
            'allowed_hosts = ["Packages.Example.", "10.1.2.3"]\n',
            Asked(
                hosts=("packages.example:443", "packages.example:80", "10.1.2.3:443", "10.1.2.3:80"),
                agent_seconds=12000.0,
                creation_seconds=600.0,
            ),
        ),
        (
            '[environment]\nnetwork_mode = "no-network"\n[agent]\nnetwork_mode = "public"\n'
            '[verifier]\nnetwork_mode = "public"\n',
            Asked(network=True, creation_seconds=600.0),
        ),
    ],
)
def test_a_harbor_task_asks_for_what_harbor_gives_it(tmp_path: Path, given: str, asks: Asked) -> None:
    path = _written(tmp_path / "it", {**HARBOR, "task.toml": given})
    assert directory_task(read_directory(path), "host").asks == asks


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ('network_mode = "offline"\n', "network_mode is 'offline': Harbor knows public, no-network"),
        ('allowed_hosts = ["a.example"]\n', 'allowed_hosts needs network_mode = "allowlist"'),
        ('network_mode = "allowlist"\nallowed_hosts = ["*.example.org"]\n', "has a wildcard: name each host"),
        ('network_mode = "allowlist"\nallowed_hosts = ["::1"]\n', "is no rule"),
        (f'network_mode = "allowlist"\nallowed_hosts = {["a.example"] * 33}\n', "33 entries, and a sandbox"),
        (
            'network_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n',
            "the agent is to reach nothing, and the tests any public address",
        ),
    ],
)
def test_a_network_that_cannot_be_given_is_refused_and_not_replaced(
    tmp_path: Path, given: str, sentence: str
) -> None:
    path = _written(tmp_path / "it", {**HARBOR, "task.toml": f"[environment]\n{given}"})
    with pytest.raises(TaskError, match=re.escape(sentence)):
        read_directory(path)


def test_terminal_bench_has_a_network_unless_its_compose_file_says_none(tmp_path: Path) -> None:
    path = _written(tmp_path / "it", TERMINAL_BENCH)
    assert read_directory(path).asks == Asked(network=True, agent_seconds=60.0)
    _written(path, {"docker-compose.yaml": "services:\n  client:\n    network_mode: none\n"})
    assert read_directory(path).asks == Asked(agent_seconds=60.0)


def test_variables_of_terminal_bench_are_its_runners_or_the_tasks_own(tmp_path: Path) -> None:
    path = _written(tmp_path / "it", TERMINAL_BENCH)
    compose = "services:\n  client:\n    environment:\n"
    compose += "      - TEST_DIR=${T_BENCH_TEST_DIR}\n      - MODE=${MODE:-fast}\n"
    _written(path, {"docker-compose.yaml": compose})
    assert read_directory(path).environment == {"MODE": "fast"}
    for name, value in {"KEY": "${OPENAI_API_KEY}", "A-B": "1"}.items():
        _written(path, {"docker-compose.yaml": f"{compose}      - {name}={value}\n"})
        with pytest.raises(TaskError, match=name):
            read_directory(path)


NO_VERDICT = {
    "true\n": "left no reward at /logs/verifier/reward.txt",
    ": > /logs/verifier/reward.txt\n": "the file is empty",
    "echo passed > /logs/verifier/reward.txt\n": "could not convert string",
    "/nowhere/uvx pytest && echo 1 > /logs/verifier/reward.txt\n": "left no reward",
}
"""Tests of a Harbor task, and what is said of them."""


@pytest.mark.long
async def test_tests_without_a_verdict_make_a_task_broken_and_not_failed(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    validator = Validator(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))
    for number, (script, said) in enumerate(NO_VERDICT.items()):
        path = _written(tmp_path / str(number), {**HARBOR, "tests/test.sh": script})
        event = (await validator.validate(directory_task(read_directory(path), "host"))).event
        assert isinstance(event, TaskRejected)
        assert event.reason == "task_broken", script
        assert said in event.detail
    failing = "echo 0 > /logs/verifier/reward.txt; exit 1\n"
    path = _written(tmp_path / "failing", {**HARBOR, "tests/test.sh": failing})
    event = (await validator.validate(directory_task(read_directory(path), "host"))).event
    assert isinstance(event, TaskRejected)
    assert event.reason == "gold_does_not_resolve"
    assert "gave the reward 0" in event.detail


@pytest.mark.long
async def test_a_task_that_asks_for_a_network_is_not_judged_without_it(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    """It would be rejected for what it lacks here; with `as_asked` solution and tests have what it names."""
    found, reward = "getent hosts packages.example > /dev/null", "/logs/verifier/reward.txt"
    files = {
        **HARBOR,
        "task.toml": f'{TASK_TOML}network_mode = "allowlist"\nallowed_hosts = ["packages.example"]\n',
        "tests/test.sh": f"{found} && [ -e solved ] && echo 1 > {reward} || echo 0 > {reward}",
        "solution/solve.sh": f"{found} && touch solved",
    }
    task = directory_task(read_directory(_written(tmp_path / "it", files)), "host")
    settings, blobs = ValidationSettings(runs=1), BlobStore(str(tmp_path / "store"))
    with pytest.raises(
        TaskError, match=r'asks for a network \(only packages.example:443, packages.example:80\).*"as_asked"'
    ):
        await Validator(sandboxes, blobs, settings).validate(task)
    verdict = await Validator(sandboxes, blobs, settings, task_network="as_asked").validate(task)
    assert isinstance(verdict.event, TaskValidated)


def test_bad_directories_cost_themselves_and_are_named(tmp_path: Path) -> None:
    _written(tmp_path / "a", HARBOR)
    _written(tmp_path / "b", {**HARBOR, "task.toml": "[environment]\ngpus = 1\n"})
    _written(tmp_path / "c", {"task.yaml": "difficulty: easy\n"})
    _written(tmp_path / "a", {"task.toml": f'{OFFLINE}[task]\nname = "x/a"\n'})
    _written(tmp_path / "d", {**HARBOR, "task.toml": '[task]\nname = "x/a"\n'})
    found, left_out = read_all(tmp_path)
    assert [each.path.name for each in found] == ["a"]
    assert [each.name for each in left_out] == [str(tmp_path / name) for name in "bcd"]
    assert left_out[0].why.startswith("the task needs GPUs") and "instruction" in left_out[1].why
    assert left_out[2].why == f"the task 'x__a' is already in {tmp_path / 'a'}"


def test_two_names_that_make_one_id_are_one_task(tmp_path: Path) -> None:
    _written(tmp_path / "a", {**HARBOR, "task.toml": '[task]\nname = "x/y"\n'})
    _written(tmp_path / "x__y", HARBOR)
    found, left_out = read_all(tmp_path)
    assert ([each.path.name for each in found], len(left_out)) == (["a"], 1)


def test_a_comment_that_is_no_utf_8_does_not_hide_where_a_task_works(tmp_path: Path) -> None:
    path = _written(tmp_path / "it", HARBOR)
    (path / "environment").mkdir(exist_ok=True)
    (path / "environment" / "Dockerfile").write_bytes(b"FROM x\n# caf\xe9\nWORKDIR /there\n")
    assert directory_task(read_directory(path), "x").workdir == "/there"


@pytest.mark.parametrize("seconds", ["0", "-1", "1e12", "nan", "inf", '"600"', "true"])
def test_a_time_out_that_is_none_costs_its_task(tmp_path: Path, seconds: str) -> None:
    _written(tmp_path / "a", HARBOR)
    _written(tmp_path / "b", {**HARBOR, "task.toml": f"[verifier]\ntimeout_sec = {seconds}\n"})
    found, left_out = read_all(tmp_path)
    assert ([each.path.name for each in found], [each.name for each in left_out]) == (
        ["a"],
        [str(tmp_path / "b")],
    )


def test_a_file_whose_name_is_no_unicode_costs_its_task(tmp_path: Path) -> None:
    path = _written(tmp_path / "it", HARBOR)
    (path / "tests" / os.fsdecode(b"\xff")).touch()
    with pytest.raises(TaskError, match="no Unicode"):
        read_directory(path)


def test_a_link_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    path = _written(tmp_path / "it", HARBOR)
    (tmp_path / "secret").write_text("key")
    (path / "tests" / "data").symlink_to(tmp_path / "secret")
    with pytest.raises(TaskError, match="is a link out of"):
        read_directory(path)


def test_a_directory_without_tasks_is_said(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has no task"):
        directories(tmp_path)


BUILDER = """#!/bin/sh
# As buildah: builds by its first line, and writes the image as an archive.
echo "$@" >> {log}
case $1 in
  build) grep -q FROM "$5" || {{ echo "Error: no FROM in $5" >&2; exit 125; }} ;;
  push) exec {python} {maker} "${{4#docker-archive:}}" ;;
esac
"""
MAKER = """
import hashlib, io, json, sys, tarfile
path, _, name = sys.argv[1].partition(":")
layer = io.BytesIO()
with tarfile.open(fileobj=layer, mode="w") as archive:
    entry = tarfile.TarInfo("app/hello")
    entry.size = 3
    archive.addfile(entry, io.BytesIO(b"hi\\n"))
digest = "sha256:" + hashlib.sha256(layer.getvalue()).hexdigest()
config = {"config": {"WorkingDir": "/app", "Env": ["GREETING=hi"]}, "rootfs": {"diff_ids": [digest]}}
manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
files = {"config.json": json.dumps(config).encode(), "layer.tar": layer.getvalue()}
with tarfile.open(path, "w") as archive:
    for file, data in {**files, "manifest.json": json.dumps(manifest).encode()}.items():
        entry = tarfile.TarInfo(file)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
"""


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program on the path that is called as buildah is; the file where its calls stand."""
    import sys

    programs, log = tmp_path / "bin", tmp_path / "calls"
    _written(programs, {"maker.py": MAKER})
    text = BUILDER.format(log=log, python=sys.executable, maker=programs / "maker.py")
    (programs / "buildah").write_text(text)
    (programs / "buildah").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return log


def test_an_image_is_built_and_imported(tmp_path: Path, builder: Path) -> None:
    context = _written(tmp_path / "context", {"Dockerfile": "FROM scratch\nCOPY hello /app/hello\n"})
    image = build_image(tmp_path / "state", context, "ours/desk:1")
    assert (image.name, image.working_directory) == ("ours/desk:1", "/app")
    assert image.environment["GREETING"] == "hi"
    assert builder.read_text().startswith(f"build --tag ours/desk:1 --file {context}/Dockerfile {context}\n")
    (context / "Dockerfile").write_text("COPY hello /app/hello\n")
    with pytest.raises(TaskError, match="failed with 125: Error: no FROM in"):
        build_image(tmp_path / "state", context, "ours/desk:2")


def test_without_a_builder_the_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    context = _written(tmp_path / "context", {"Dockerfile": "FROM scratch\n"})
    with pytest.raises(TaskError, match="neither buildah nor docker is installed"):
        build_image(tmp_path / "state", context, "ours/desk:1")
    with pytest.raises(TaskError, match="there is no "):
        build_image(tmp_path / "state", tmp_path, "ours/desk:1")
