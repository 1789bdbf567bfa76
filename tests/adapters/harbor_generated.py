"""Harbor task directories, generated from a seed: with odd keys or files, and some with several steps."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    ("verifier", "collect"): (
        "[]",
        '[{command = "ls"}]',
        '[{command = "ls", user = 7, timeout_sec = 2.5}, {command = "id", service = "main"}]',
        "[{}]",
        '[{command = "ls", service = ""}]',
        '[{command = "ls", service = " main "}]',
        '[{command = "ls", service = "db"}]',
        '[{command = "ls", service = "d b"}]',
        '[{command = "ls", timeout_sec = 0}]',
    ),
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
STEP_NAMES = ("step-0", "STEP-0", "a b", "a/b", "..", "con", "x.", "é", "", "a:b")
STEP_VALUES: dict[str, tuple[str, ...]] = {
    "agent.timeout_sec": TIMES,
    "agent.user": ('"agent"', "0", "[]"),
    "agent.network_mode": ('"public"', '"offline"', '"no-network"\nverifier.network_mode = "no-network"'),
    "verifier.timeout_sec": TIMES,
    "verifier.user": ('"root"', "7"),
    "verifier.network_mode": ('"public"', '"no-network"'),
    "verifier.environment_mode": ('"shared"', '"separate"', '"own"'),
    "verifier.environment": ("{}", '{docker_image = "judge:2"}', '{os = "windows"}', "{cpus = 2}"),
    "verifier.env": tuple(f"{{NAME = {text}}}" for text in TEXTS),
    "verifier.collect": ('[{command = "ls"}]', '[{command = "ls", service = "db"}]', "[{}]"),
    "min_reward": ("0.5", "1", "{a = 0.5, reward = 1}", '"half"', "{a = []}", "{}"),
    "healthcheck": ('{command = "true"}', "{}"),
    "artifacts": ('["/app/out"]', '[{source = "/a", destination = "/b"}]', '["a/../b"]'),
    "stray": ("1",),
}
STEP_FILES: dict[str, tuple[str | None, ...]] = {
    "instruction.md": (None, "# canary\n\nDo it.\n"),
    "tests/test.sh": ("true\n", "true\n", ""),
    "tests/more.txt": ("x",),
    "tests/Dockerfile": ("FROM scratch\n",),
    "tests/docker-compose.yaml": ("services:\n  main: {}\n",),
    "solution/solve.sh": ("true\n",),
    "solution/other.sh": ("true\n",),
    "workdir/setup.sh": ("true\n",),
    "workdir/sub/file": ("x",),
    "trajectory.json": ("{}",),
}
COMPOSE = (
    "{image: db:1, command: serve, expose: [80]}",
    "{image: db:1, command: [serve, now], healthcheck: {test: [CMD, ready], interval: 1s}}",
    "{image: db:1, entrypoint: serve, ports: ['80:81'], environment: {A: 1}, user: 7, depends_on: [other]}",
    "{image: db:1, command: serve}",
    "{image: db:1, expose: [80]}",
    "{image: db:1, command: serve, expose: [80], volumes: ['a:/a']}",
    "{image: db:1, command: serve, expose: [80], networks: [a]}",
    "{image: '${NOBODYS}', command: serve, expose: [80]}",
    "{command: serve, expose: [80]}",
)
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
        *(f"services:\n  main: {{}}\n  db: {said}\n" for said in COMPOSE),
        *(
            f"services:\n  main: {{depends_on: [db]}}\n  db: {said}\n"
            "  other: {image: o:1, command: x, expose: []}\n"
            for said in COMPOSE[:3]
        ),
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


def _steps(chance: random.Random) -> int:
    return chance.choice([1, 2, 2, 3]) if chance.random() < 0.3 else 0


def _step(files: dict[str, str | None], number: int, chance: random.Random) -> str:
    """A step in TOML; adds its files."""
    name = chance.choice(STEP_NAMES) if chance.random() < 0.08 else f"step-{number}"
    keys = {
        key: chance.choice(STEP_VALUES[key])
        for key in chance.sample(list(STEP_VALUES), chance.choice([0, 0, 1, 2]))
    }
    own: dict[str, str | None] = {"instruction.md": "Do it.\n"}
    for file in chance.sample(list(STEP_FILES), chance.choice([0, 1, 1, 2])):
        own[file] = chance.choice(STEP_FILES[file])
    if "/" not in name and name.strip(". "):
        files |= {f"steps/{name}/{file}": text for file, text in own.items()}
    if chance.random() < 0.3:
        files["tests/test.sh"] = None
        files.setdefault(f"steps/{name}/tests/test.sh", "true\n")
    return f"[[steps]]\nname = {json.dumps(name)}\n" + "".join(
        f"{key} = {value}\n" for key, value in keys.items()
    )


def task(path: Path, chance: random.Random) -> Path:
    made = _base()
    for _ in range(chance.choice([0, 1, 1, 2, 2, 3, 4])):
        if chance.random() < 0.2:
            name = chance.choice(list(FILES))
            made["files"][name] = chance.choice(FILES[name])
        else:
            section, key = chance.choice(list(VALUES))
            made.setdefault(section, {})[key] = chance.choice(VALUES[section, key])
    if chance.random() < 0.1:
        name = "environment/docker-compose.yaml"
        made["files"][name] = chance.choice(FILES[name])
    steps = "".join(_step(made["files"], number, chance) for number in range(_steps(chance)))
    files = made.pop("files")
    sections = {name: keys for name, keys in made.items() if keys}
    files["task.toml"] = (
        "".join(
            (f"[{name}]\n" if name else "") + "".join(f"{key} = {value}\n" for key, value in keys.items())
            for name, keys in sections.items()
        )
        + steps
    )
    for name, text in files.items():
        if text is not None:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
    if chance.random() < 0.05:
        chance.choice(LATE)(path, chance)
    return path
