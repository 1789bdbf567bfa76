"""Task directories of Harbor (task.toml) and Terminal-Bench (task.yaml), judged by their test scripts.

Harbor runs `tests/test.sh`, which writes a number to /logs/verifier/reward.json, or else
reward.txt: 1 is solved. Terminal-Bench runs `run-tests.sh` with TEST_DIR: exit status 0 is solved. Both run
in the agent's sandbox, in the image's working directory, with the image's variables. What a definition says
of network and time-outs, or leaves to the defaults of its format, goes into the task (`Asked`).
"""

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.harbor_networks import Policy, asked_for
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.pipelines.tasks.trees import text_of
from orchard.schemas.identity import digest
from orchard.schemas.quantities import Duration, InvalidQuantity, parse_bytes, parse_cores
from orchard.schemas.tasks import Asked, StateCheck, Task
from orchard.workers.episode.networks import SHUT

HARBOR, TERMINAL_BENCH = "harbor", "terminal-bench"
LARGEST = 16 * 1024 * 1024
"""Bytes of the tests, or of the solution, of one task."""

REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
"""Files in which Harbor's tests leave their verdict; the first that exists counts."""
_PYTEST = b"""\
python3 -c 'import pytest' || exit 127
python3 -m pytest -rA "$TEST_DIR/test_outputs.py"
status=$?
[ $status -lt 3 ] || exit 126
exit $status
"""
"""Terminal-Bench's tests without a script. From 3 on pytest says that it could not run them."""
_HOST_VARIABLE = re.compile(r"\$\{\w+")


class Directory(msgspec.Struct, frozen=True, kw_only=True):
    """A task directory, whatever its format."""

    path: Path
    source: str
    name: str
    statement: str
    tests: dict[str, bytes]
    """Brought to /tests after the agent is done."""
    test_command: str
    solution: dict[str, bytes]
    """Brought to /solution for the proof; empty when there is none."""
    solve_command: str = "bash /solution/solve.sh"
    variables: dict[str, str] = {}
    """Environment variables of the tests."""
    solution_variables: dict[str, str] = {}
    environment: dict[str, str] = {}
    """Environment variables of every command of the agent."""
    timeout_seconds: float
    asks: Asked
    rewards: tuple[str, ...] = ()
    """Files in which the tests leave their verdict; empty: their exit status is the verdict."""
    image: str = ""
    """Published image; empty: it is built from `context`."""
    context: Path
    """Directory of the Dockerfile."""
    workdir: str = ""
    cpu: str = "1"
    memory: str = "2Gi"
    labels: dict[str, str] = {}

    @property
    def task_id(self) -> str:
        return self.name.replace("/", "__")

    @property
    def image_name(self) -> str:
        """The image's name; where it is built, it differs for other files. Raises TaskError."""
        if self.image:
            return self.image
        files = {name: _digest(path) for name, path in _paths(self.context).items()}
        slug = re.sub(r"[^a-z0-9_.-]+", "-", self.name.lower()).strip("-.")
        return f"{self.source}/{slug}:{digest(files, 12)}"

    @property
    def dockerfile(self) -> Path:
        return self.context / "Dockerfile"


def directories(root: Path) -> list[Path]:
    """The task directories at `root`: itself, or those in it. Raises TaskError when there is none."""
    found = [path for path in (root, *sorted(root.glob("*/"))) if _format(path)]
    if not found:
        raise TaskError(
            f"{root} has no task: give a directory with a task.toml or task.yaml, or of such ones"
        )
    return found[:1] if found[0] == root else found


def read_all(root: Path) -> tuple[list[Directory], list[LeftOut]]:
    """The task directories at `root`, and those that are none, each with its reason."""
    found: dict[str, Directory] = {}
    left_out = []
    for path in directories(root):
        try:
            read = read_directory(path)
            if (first := found.setdefault(read.task_id, read)) is not read:
                raise TaskError(f"the task {read.task_id!r} is already in {first.path}")
        except TaskError as error:
            left_out.append(LeftOut(str(path), str(error).removeprefix(f"{path}: ")))
    return list(found.values()), left_out


def read_directory(path: Path) -> Directory:
    """Read a task directory. Raises TaskError, with the path, for a directory that is no task or needs
    more than one sandbox."""
    try:
        read = _harbor(path) if _format(path) == HARBOR else _terminal_bench(path)
        parse_cores(read.cpu)
        parse_bytes(read.memory)
    except msgspec.DecodeError as error:
        raise TaskError(f"a task or compose file in {path}: {error}") from error
    except (OSError, InvalidQuantity, ValueError, RecursionError) as error:
        raise TaskError(f"{path}: {error}") from error
    return read


def directory_task(
    directory: Directory, image: str, workdir: str = "", environment: Mapping[str, str] | None = None
) -> Task:
    """The task in `image`; `workdir` and `environment` are the image's own, where known."""
    workdir = directory.workdir or workdir or _last_workdir(directory.dockerfile)
    solution = directory.solution
    return Task(
        task_id=directory.task_id,
        source=directory.source,
        repo=directory.source,
        image=image,
        statement=directory.statement,
        grading=_check(directory, workdir, environment or {}),
        workdir=workdir,
        environment=directory.environment,
        gold_patch=(
            _placed("/solution", solution)
            + _exports(directory.solution_variables)
            + f"{directory.solve_command}\n"
            if solution
            else ""
        ),
        cpu=directory.cpu,
        memory=directory.memory,
        labels=directory.labels,
        asks=directory.asks,
    )


def _check(directory: Directory, workdir: str, environment: Mapping[str, str]) -> StateCheck:
    """The check brings the tests to a path that no agent can guess, and from there to /tests, where the
    agent left nothing. A preparation that fails has the exit status of a command that cannot be
    executed."""
    texts = {path: text for path, data in directory.tests.items() if (text := text_of(data)) is not None}
    binary = {path: data for path, data in directory.tests.items() if path not in texts}
    place = f"/tmp/tests-{digest([texts, sorted(binary)], 24)}"
    command = (
        "rm -rf /tests /logs/verifier && mkdir -p /logs/verifier /logs/agent || exit 126\n"
        f"mv {place} /tests || exit 126\n"
        + _placed("/tests", binary)
        + "chmod -R 755 /tests\n"
        + f". {place}.variables\ncd {shlex.quote(workdir)} || exit 126\n{directory.test_command}\n"
    )
    variables = _exports({**environment, **directory.environment, **directory.variables})
    files = {f"{place}/{path}": text for path, text in texts.items()}
    return StateCheck(
        files={f"{place}.variables": variables, **files},
        command=command,
        timeout_seconds=directory.timeout_seconds,
        rewards=directory.rewards or msgspec.UNSET,
    )


def _placed(root: str, files: Mapping[str, bytes]) -> str:
    """Shell that writes the files below `root`."""
    lines = []
    for path, data in files.items():
        target = shlex.quote(f"{root}/{path}")
        text = base64.encodebytes(data).decode()
        lines.append(
            f"mkdir -p \"$(dirname {target})\" && base64 -d > {target} <<'END' || exit 126\n{text}END\n"
        )
    return "".join(lines)


def _exports(variables: Mapping[str, str]) -> str:
    """Shell that sets the variables whose names it can express."""
    said = ((name, shlex.quote(value)) for name, value in variables.items() if name.isidentifier())
    return "".join(f"export {name}={value}\n" for name, value in said)


def _last_workdir(dockerfile: Path) -> str:
    """Path of the last WORKDIR of the last stage; / where there is none."""
    workdir = PurePosixPath("/")
    text = dockerfile.read_text(encoding="utf-8", errors="replace") if dockerfile.is_file() else ""
    for line in text.splitlines():  # comments may be in any encoding
        word, _, rest = line.strip().partition(" ")
        if word.upper() == "FROM":
            workdir = PurePosixPath("/")
        elif word.upper() == "WORKDIR":
            workdir /= rest.strip().strip("\"'")
    return str(workdir)


def _format(path: Path) -> str:
    if (path / "task.toml").is_file():
        return HARBOR
    return TERMINAL_BENCH if (path / "task.yaml").is_file() else ""


def _paths(root: Path) -> dict[str, Path]:
    """The regular files below `root`, by relative path. Raises TaskError for a link that leads out of it, and
    for a name that is no text."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            if not path.resolve().is_relative_to(root.resolve()):
                raise TaskError(f"{path} is a link out of {root}: put a file in its place")
            name = path.relative_to(root).as_posix()
            if name != name.encode(errors="replace").decode():
                raise TaskError(f"{root} has a file whose name is no Unicode: {name!r}")
            found[name] = path
    return found


def _files(root: Path, what: str) -> dict[str, bytes]:
    """What the files below `root` hold. Raises ValueError when they are too many bytes."""
    paths = _paths(root)
    if sum(path.stat().st_size for path in paths.values()) > LARGEST:
        raise ValueError(f"its {what} are over {LARGEST // 2**20} MiB: put large files into the image")
    return {name: path.read_bytes() for name, path in paths.items()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _networked(path: Path) -> bool:
    """Whether the service of a compose file has a network, as it has without such a file. Raises ValueError
    for several services."""
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (path / name).is_file():
            services = msgspec.yaml.decode((path / name).read_bytes(), type=_Compose).services
            if len(services) > 1:
                raise ValueError(
                    f"{name} has the services {', '.join(services)}, and a task here has one sandbox: "
                    "put what it needs into one image"
                )
            return all(
                not isinstance(one, dict) or one.get("network_mode") != "none" for one in services.values()
            )
    return True


class _Compose(msgspec.Struct, frozen=True):
    services: dict[str, Any] = {}


# --- Harbor --------------------------------------------------------------------------------------


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


class _Variables(msgspec.Struct, frozen=True):
    env: dict[str, str] = {}


class _Agent(Policy, frozen=True):
    timeout_sec: Duration | None = None


class _Verifier(Policy, frozen=True):
    timeout_sec: Duration = 600.0
    env: dict[str, str] = msgspec.field(default_factory=dict)
    environment_mode: str = "shared"
    environment: dict[str, Any] = msgspec.field(default_factory=dict)


class _Environment(Policy, frozen=True):
    build_timeout_sec: Duration = 600.0
    docker_image: str = ""
    cpus: float = 1
    memory_mb: int = 2048
    memory: str = ""
    gpus: int = 0
    env: dict[str, str] = msgspec.field(default_factory=dict)
    workdir: str = ""
    mcp_servers: list[Any] = msgspec.field(default_factory=list)


class _TaskToml(msgspec.Struct, frozen=True):
    task: _Named = _Named()
    metadata: dict[str, Any] = {}
    verifier: _Verifier = _Verifier()
    agent: _Agent = _Agent()
    environment: _Environment = _Environment()
    solution: _Variables = _Variables()
    steps: list[Any] = []


def _harbor(path: Path) -> Directory:
    given = msgspec.toml.decode((path / "task.toml").read_bytes(), type=_TaskToml)
    environment = given.environment
    beyond = {
        "several steps": given.steps,
        "a verifier in an environment of its own": given.verifier.environment
        or given.verifier.environment_mode != "shared",
        "GPUs": environment.gpus,
        "MCP servers": environment.mcp_servers,
    }
    if missing := [name for name, needed in beyond.items() if needed]:
        raise ValueError(f"the task needs {' and '.join(missing)}, which Orchard does not have")
    for variables in (given.verifier.env, environment.env, given.solution.env):
        for name, value in variables.items():
            if _HOST_VARIABLE.search(value):
                raise ValueError(
                    f"variable {name} is {value!r}, taken from the machine that runs the tests: "
                    "a task holds no secrets, so write a plain value"
                )
    network = asked_for(environment, given.agent, given.verifier)
    if not _networked(path / "environment"):
        network = SHUT
    if not (path / "tests" / "test.sh").is_file():
        raise ValueError("there is no tests/test.sh, so nothing judges the task")
    return Directory(
        path=path,
        source=HARBOR,
        name=given.task.name or path.resolve().name,
        statement=(path / "instruction.md").read_text(encoding="utf-8"),
        tests=_files(path / "tests", "tests"),
        test_command='bash /tests/test.sh; echo "the tests exited with $?"',
        rewards=REWARDS,
        solution=_files(path / "solution", "solution files"),
        variables=given.verifier.env,
        solution_variables=given.solution.env,
        environment=environment.env,
        timeout_seconds=given.verifier.timeout_sec,
        asks=Asked(
            network=not network.blocked,
            hosts=network.hosts,
            agent_seconds=given.agent.timeout_sec,
            creation_seconds=environment.build_timeout_sec,
        ),
        image=environment.docker_image,
        context=path / "environment",
        workdir=environment.workdir,
        cpu=f"{environment.cpus:g}",
        memory=environment.memory or f"{environment.memory_mb}Mi",
        labels=_labels(given.metadata),
    )


# --- Terminal-Bench ------------------------------------------------------------------------------


class _TaskYaml(msgspec.Struct, frozen=True):
    instruction: str
    difficulty: str = ""
    category: str = ""
    max_agent_timeout_sec: Duration = 360.0
    max_test_timeout_sec: Duration = 600.0


def _terminal_bench(path: Path) -> Directory:
    given = msgspec.yaml.decode((path / "task.yaml").read_bytes(), type=_TaskYaml)
    asks = Asked(network=_networked(path), agent_seconds=given.max_agent_timeout_sec)
    tests = _files(path / "tests", "tests")
    script = path / "run-tests.sh"
    if script.is_file():
        tests["run-tests.sh"] = script.read_bytes()
    elif "test_outputs.py" not in tests:
        raise ValueError(
            "there is neither a run-tests.sh nor a tests/test_outputs.py, so nothing judges the task"
        )
    else:
        tests["run-tests.sh"] = _PYTEST
    solution = path / "solution.sh"
    return Directory(
        path=path,
        source=TERMINAL_BENCH,
        name=path.resolve().name,
        statement=given.instruction,
        tests=tests,
        test_command="bash /tests/run-tests.sh",
        solution={"solve.sh": solution.read_bytes()} if solution.is_file() else {},
        variables={"TEST_DIR": "/tests"},
        timeout_seconds=given.max_test_timeout_sec,
        asks=asks,
        context=path,
        labels=_labels({"difficulty": given.difficulty, "category": given.category}),
    )


def _labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    found = {key: metadata.get(key) for key in ("difficulty", "category")}
    return {key: value for key, value in found.items() if isinstance(value, str) and value}
