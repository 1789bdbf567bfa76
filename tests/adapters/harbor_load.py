"""Harbor's own `Task` and Orchard read the same generated directories: the same are refused, and the same
facts follow of the others, but for the differences in the lists."""

import json
import os
import random
import re
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harbor.models.task.config import TaskConfig
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import (
    resolve_effective_verifier_env_config,
    resolve_task_verifier_mode,
    resolve_verifier_environment_definition,
)
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, VerifierConfig
from harbor.trial.network_policy import resolve_trial_network_plan
from harbor.utils.env import resolve_env_vars

NUMBER = int(os.environ.get("ORCHARD_HARBOR_DIRECTORIES", "3000"))
SEED = 39
REFUSED_HERE = {
    r"the task needs .*, which Orchard does not have": "named in docs/own-tasks.md",
    r"Expected `float` [<>]": "a time limit of nothing, of less, or without end is a mistake",
    r"Expected `(float|int|bool|int \| str)( \| null)?`": "a number is a number, no text and no truth value",
    r"cpu must be positive|memory must be positive|no resource quantity|is not a resource quantity": (
        "a sandbox without a processor or memory cannot be made; Harbor says so when it makes one"
    ),
    r"allowed_hosts has \d+ entries, and a sandbox takes": "a sandbox has a limit of rules",
    r"allowed_hosts: ": "hosts by pattern, ranges and IPv6 addresses are no rules of a sandbox",
    r"is to reach .*, and the tests": "one sandbox has one network",
    r"taken from the machine that runs the tests": "a task holds no secrets; Harbor says so when it runs",
    r"environment.os is 'windows'": "sandboxes are linux",
    r"has the services": "a task has one sandbox",
    r"docker-compose.yaml asks for": "as above: what a container engine would do is not dropped in silence",
    r"have a .*\.harborignore": "files that rules leave out are to be deleted",
    r"is no absolute path below": "an artifact is looked for where it was said, in both sandboxes",
    r"Expected `str \| null`, got .* `\$.environment.(memory|storage)`": (
        "Harbor ignores a size that is no text; nothing is ignored in silence"
    ),
}
"""What our sentence says of a directory that Harbor loads, and why."""
READ_OTHERWISE = {
    "memory": "none said: 2Gi here, what the machine has there",
    "cpu": "none said: 1 here, what the machine has there",
}
"""Facts that are compared only where the definition says them."""
SHUT_HERE = "allow_internet = false\nallowed_hosts = []"
"""A definition that says this has no network here, and all of it there: what it says is clear."""

READER = """
import json, sys
from pathlib import Path
from orchard.pipelines.tasks.directories import directory_task, read_directory
from orchard.pipelines.tasks.errors import TaskError
from orchard.workers.episode.networks import asked, check_task
for line in sys.stdin:
    path = Path(line.strip())
    try:
        read = read_directory(path)
        task = directory_task(read, "image", verifier_image="other")
    except TaskError as error:
        print(json.dumps({"refused": str(error)}), flush=True)
        continue
    own = read.verifier
    print(json.dumps({
        "name": read.name,
        "statement": task.statement,
        "agent seconds": task.asks.agent_seconds,
        "tests seconds": task.grading.timeout_seconds,
        "environment": task.environment,
        "tests variables": read.variables,
        "solution variables": read.solution_variables,
        "image": read.image,
        "workdir": read.workdir,
        "cpu": read.cpu,
        "memory": read.memory,
        "user": read.user,
        "tests user": read.tests_user,
        "network": asked(task),
        "tests network": asked(check_task(task, task.grading.sandbox) if own else task),
        "separate": own is not None,
        "bundled": own is not None and own.bundled,
        "tests": sorted(read.tests),
        "notes": read.notes,
        "healthcheck": len(read.setup) > 1,
    }), flush=True)
"""


def test_what_harbor_loads_is_read_and_what_it_refuses_is_refused(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    paths = [_made(tmp_path / f"task-{number}", chance) for number in range(NUMBER)]
    ours = _ours(paths)
    silent, told, both = [], Counter[str](), 0
    for path, read in zip(paths, ours, strict=True):
        theirs = _theirs(path)
        if "refused" in theirs and "refused" in read:
            continue
        if "refused" in theirs:
            silent.append(f"{path}: read here, refused there: {theirs['refused']}")
        elif "refused" in read:
            known = next(
                (why for said, why in REFUSED_HERE.items() if re.search(said, read["refused"])), None
            )
            told[known or ""] += 1
            if known is None:
                silent.append(f"{path}: loaded there, refused here: {read['refused']}")
        else:
            both += 1
            silent += _differences(path, read, theirs)
    assert not silent, "\n".join(silent[:20]) + f"\n{len(silent)} differences"
    assert both > NUMBER / 10
    unused = set(REFUSED_HERE.values()) - set(told)
    assert not unused or NUMBER < 3000, f"no directory shows these differences any more: {unused}"


def _ours(paths: list[Path]) -> list[dict[str, Any]]:
    names = "".join(f"{path}\n" for path in paths)
    command = [os.environ["ORCHARD_PYTHON"], "-c", READER]
    done = subprocess.run(command, input=names, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _theirs(path: Path) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            task = Task(path)
    except Exception as error:  # whatever it raises is a refusal
        return {"refused": f"{type(error).__name__}: {error}"}
    config = task.config
    definition = resolve_verifier_environment_definition(config, task.paths)
    plan = resolve_trial_network_plan(
        config,
        AgentConfig(name="nop"),
        EnvironmentConfig(),
        VerifierConfig(),
        None,
        verifier_mode=resolve_task_verifier_mode(config),
        env_config=resolve_effective_verifier_env_config(config, None),
    )
    bundled = bool(definition and definition.bundled_tests)
    tests = task.paths.tests_dir
    return {
        "name": task.name,
        "statement": task.instruction,
        "agent seconds": config.agent.timeout_sec,
        "tests seconds": config.verifier.timeout_sec,
        "environment": _resolved(config.environment.env),
        "tests variables": _resolved(config.verifier.env),
        "solution variables": {"DEBIAN_FRONTEND": "noninteractive", **(_resolved(config.solution.env) or {})},
        "image": config.environment.docker_image or "",
        "workdir": config.environment.workdir or "",
        "cpu": config.environment.cpus and f"{config.environment.cpus:g}",
        "memory": config.environment.memory_mb and f"{config.environment.memory_mb}Mi",
        "user": _user(config.agent.user),
        "tests user": _user(config.verifier.user),
        "network": _network(plan.agent_phase),
        "tests network": _network(plan.verifier_phase),
        "separate": definition is not None,
        "bundled": bundled,
        "tests": []
        if bundled
        else sorted(each.relative_to(tests).as_posix() for each in tests.rglob("*") if each.is_file()),
        "healthcheck": config.environment.healthcheck is not None,
        "config": config,
    }


def _resolved(variables: Mapping[str, str]) -> dict[str, str] | None:
    try:
        return resolve_env_vars(dict(variables))
    except ValueError:
        return None


def _user(user: str | int | None) -> str:
    return "" if user is None else str(user)


def _network(policy: Any) -> list[Any]:
    """As ours are written: blocked, and the hosts at the ports of the web."""
    hosts = [f"{host}:{port}" for host in policy.allowed_hosts for port in (443, 80)]
    return [policy.network_mode.value != "public", hosts]


def _differences(path: Path, ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    config: TaskConfig = theirs.pop("config")
    found = []
    for fact, value in theirs.items():
        if fact in READ_OTHERWISE and value is None:
            continue
        if fact in ("network", "tests network") and (path / "environment" / "docker-compose.yaml").exists():
            continue  # what its compose file says, Harbor leaves to docker
        if "network" in fact and SHUT_HERE in (path / "task.toml").read_text():
            continue
        if ours[fact] != value:
            found.append(f"{path}: {fact}: {ours[fact]!r} here, {value!r} there")
    unknown = [name for name in ("stray", "agent.stray", "environment.stray") if name in _stray(path)]
    if any(name not in " ".join(ours["notes"]) for name in unknown):
        found.append(f"{path}: {unknown} are not in {ours['notes']}")
    if config.environment.storage_mb is not None and "MiB of disk" not in " ".join(ours["notes"]):
        found.append(f"{path}: its storage is dropped in silence")
    return found


def _stray(path: Path) -> str:
    text = (path / "task.toml").read_text()
    section, found = "", []
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        if line.startswith("stray"):
            found.append(f"{section}stray")
    return " ".join(found)


# --- Directories ---------------------------------------------------------------------------------

Made = dict[str, Any]
"""Sections of a task.toml, each key with its TOML text; and under `files`, texts by path, or None."""


def _base() -> Made:
    return {
        "": {"version": '"1.0"'},
        "metadata": {"difficulty": '"easy"'},
        "agent": {},
        "verifier": {},
        "environment": {},
        "files": {
            "instruction.md": "Do it.\n",
            "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
            "tests/test.bat": "rem\n",
            "environment/Dockerfile": "FROM scratch\n",
        },
    }


TIMES = ("600", "60.5", "0", "-1", "nan", "inf", '"600"', "true", '"long"', "[]")
HOSTS = (
    '["a.example"]',
    '["A.Example.", "10.1.2.3"]',
    '["*.example.org"]',
    '["10.0.0.0/8"]',
    '["::1"]',
    '["https://a.example"]',
    '["a.example:80"]',
    '["-a.example"]',
    '["a_b.example"]',
    '[""]',
    "[]",
    '"a.example"',
    json.dumps([f"h{n}.example" for n in range(40)]),
)
ALLOWED = tuple(f'"allowlist"\nallowed_hosts = {hosts}' for hosts in HOSTS)
TEXTS = (
    '"plain"',
    '"${HOME_OF_NOBODY:-fallback}"',
    '"${HOME_OF_NOBODY}"',
    '"a${HOME_OF_NOBODY}b"',
    '""',
    "1",
)
SIZES = (
    '"512M"',
    '"1.5G"',
    '"2048K"',
    '"512.0"',
    '"512.0M"',
    '"1T"',
    '"G"',
    '"-1G"',
    '"infG"',
    "512",
    '" 1g "',
)
VALUES: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "version"): ('"1.0"', '"1.4"', "1.0", "1", '""'),
    ("", "schema_version"): ('"1.3"', '"9"', "2"),
    ("", "stray"): ("1",),
    ("", "source"): ('"somewhere"', "1"),
    ("", "multi_step_reward_strategy"): ('"mean"', '"final"', '"sum"'),
    ("", "steps"): ("[]",),
    ("", "artifacts"): (
        '["/app/out"]',
        '["out"]',
        '["out"]\nverifier.environment_mode = "separate"',
        '["/a/../b"]',
        '[{source = "/a", destination = "b"}]',
        '[{source = "/a", destination = "/b"}]',
        '[{source = "/a", exclude = ["*.o"]}]',
        '[{source = "/a", service = "main"}]',
        '[{source = "/a", service = "db"}]',
        '[{source = "a", service = "db"}]',
        '[{source = "/a", service = "d b"}]',
        '[{source = "/a", destination = "manifest.json"}]',
        "[1]",
        "[]",
    ),
    ("task", "name"): ('"org/name"', '"name"', '"o/../n"', '"o/n/m"', '"-o/n"', '"o.g/n_1"'),
    ("task", "version"): ('"1"', '""'),
    ("task", "authors"): ('[{name = "A"}]', '[{email = "a@b"}]', "[]"),
    ("metadata", "tags"): ('["a"]',),
    ("agent", "timeout_sec"): TIMES,
    ("agent", "user"): ('"agent"', "1000", '""', "1.5", "true"),
    ("agent", "network_mode"): ('"public"', '"no-network"', '"allowlist"', '"offline"', *ALLOWED),
    ("agent", "allowed_hosts"): HOSTS,
    ("agent", "stray"): ("[]",),
    ("verifier", "timeout_sec"): TIMES,
    ("verifier", "user"): ('"root"', "0", "[]"),
    ("verifier", "network_mode"): ('"public"', '"no-network"', '"allowlist"', '""'),
    ("verifier", "allowed_hosts"): HOSTS,
    ("verifier", "environment_mode"): ('"shared"', '"separate"', '"own"'),
    ("verifier", "env"): tuple(f"{{NAME = {text}}}" for text in TEXTS),
    ("verifier", "collect"): ("[]", '[{command = "ls"}]', "[{}]", '[{command = "ls", service = ""}]'),
    ("verifier", "environment"): (
        "{}",
        '{docker_image = "judge:1"}',
        '{docker_image = "judge:1", network_mode = "no-network"}',
        "{allow_internet = false}",
        '{workdir = "/judge", cpus = 2, memory_mb = 4096}',
        '{os = "windows"}',
        "{cpus = nan}",
        "{gpus = 1}",
    ),
    ("environment", "build_timeout_sec"): TIMES,
    ("environment", "docker_image"): ('"debian:12"', '""', "1"),
    ("environment", "os"): ('"linux"', '"Linux"', '"windows"', '"plan9"', "1"),
    ("environment", "cpus"): ("1", "2.0", "0.5", "0", "-1", "nan", "inf", '"2"', '"two"', "true"),
    ("environment", "memory_mb"): ("512", "2048.0", "512.5", "0", "-1", '"512"', '"x"'),
    ("environment", "memory"): SIZES,
    ("environment", "storage_mb"): ("512", '"x"', "0"),
    ("environment", "storage"): SIZES,
    ("environment", "gpus"): ("0", "1", '"one"'),
    ("environment", "gpu_types"): ('["H100"]', "[1]"),
    ("environment", "tpu"): ('{type = "v6e", topology = "2x4"}', '{type = "v6e", topology = "x"}', '"v6e"'),
    ("environment", "mcp_servers"): ("[]", '[{name = "a", url = "http://a"}]', '[{name = "a"}]', '"a"'),
    ("environment", "env"): tuple(f"{{NAME = {text}}}" for text in TEXTS),
    ("environment", "skills_dir"): ('"/skills"', '""'),
    ("environment", "healthcheck"): (
        '{command = "true"}',
        "{}",
        '{command = "true", retries = 0}',
        '{command = "true", interval_sec = 0.5, timeout_sec = 3, start_period_sec = 2}',
        '{command = "true", timeout_sec = "3"}',
    ),
    ("environment", "workdir"): ('"/app"', '""', "1"),
    ("environment", "allow_internet"): ("true", "false", "false\nallowed_hosts = []", '"yes"', "1", "2"),
    ("environment", "network_mode"): ('"public"', '"no-network"', '"allowlist"', '"none"', "true", *ALLOWED),
    ("environment", "allowed_hosts"): HOSTS,
    ("environment", "stray"): ('"x"',),
    ("solution", "env"): tuple(f"{{NAME = {text}}}" for text in TEXTS),
}
FILES: dict[str, tuple[str | None, ...]] = {
    "instruction.md": (
        None,
        "",
        "<!-- harbor-canary GUID x -->\n# Canary y\n\nDo it.\n",
        "# Title\nDo it.\n",
        "\n\nDo it.\n",
    ),
    "tests/test.sh": (None, ""),
    "tests/data/more.txt": ("x",),
    "tests/Dockerfile": ("FROM scratch\n",),
    "tests/docker-compose.yaml": ("services:\n  main: {}\n",),
    "tests/.harborignore": ("*.o\n", "", "test.sh\n"),
    "environment/Dockerfile": (None,),
    "environment/file.txt": ("x",),
    "environment/docker-compose.yaml": (
        "services:\n  main: {}\n",
        "services:\n  main:\n    network_mode: none\n",
        "services:\n  main: {}\n  db: {}\n",
        "services:\n  main:\n    privileged: true\n",
    ),
    "environment/docker-compose.yml": ("services:\n  main: {}\n  db: {}\n", "{"),
    "solution/solve.sh": ("true\n", None),
    "trajectory.json": ("{}",),
}


def _linked(path: Path, chance: random.Random) -> None:
    where = path / chance.choice(["tests", "solution"]) / "link"
    where.parent.mkdir(exist_ok=True)
    where.symlink_to(chance.choice(["../instruction.md", "../../outside", "missing", ".", "../environment"]))


def _broken(path: Path, chance: random.Random) -> None:
    with (path / "task.toml").open("a") as file:
        file.write(
            chance.choice(
                ["[[steps]]\nname = 'one'\n", "[agent\n", "[agent]\n", "x = \n", "[unheard]\na=1\n"]
            )
        )


def _not_text(path: Path, chance: random.Random) -> None:
    name = chance.choice(["instruction.md", "task.toml"])
    (path / name).write_bytes(b"\xff\xfe")


LATE: tuple[Callable[[Path, random.Random], None], ...] = (
    _linked,
    _linked,
    _linked,
    _broken,
    _broken,
    _not_text,
)


def _made(path: Path, chance: random.Random) -> Path:
    made = _base()
    for _ in range(chance.choice([0, 1, 1, 2, 2, 3, 4])):
        if chance.random() < 0.2:
            name = chance.choice(list(FILES))
            made["files"][name] = chance.choice(FILES[name])
        else:
            section, key = chance.choice(list(VALUES))
            made.setdefault(section, {})[key] = chance.choice(VALUES[section, key])
    files = made.pop("files")
    sections = {name: keys for name, keys in made.items() if keys}
    files["task.toml"] = "".join(
        (f"[{name}]\n" if name else "") + "".join(f"{key} = {value}\n" for key, value in keys.items())
        for name, keys in sections.items()
    )
    for name, text in files.items():
        if text is not None:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
    if chance.random() < 0.05:
        chance.choice(LATE)(path, chance)
    return path
