"""The task.toml of a Harbor task: its fields and defaults, by the rules of Harbor 0.26. Pure.

Fields that Harbor does not know are ignored by it, and named here (`unknown`).
"""

import re
import shlex
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

import msgspec

from orchard.pipelines.tasks.harbor_networks import BaselineNetwork, Policy
from orchard.pipelines.tasks.task_directory import is_variable
from orchard.schemas.quantities import Duration, Seconds

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*\n?")
_TEMPLATE = re.compile(r"\$\{(?P<name>[^}:]+)(?::-(?P<default>.*))?\}")
_SERVICE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*\n?")
_ABSOLUTE = re.compile(r"/|[A-Za-z]:[/\\]")
_NOT_IN_STEPS = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICES = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(COM|LPT)[1-9¹²³])", re.IGNORECASE)
"""Names that Windows keeps for devices."""
MAIN = "main"
"""Name of the agent's service in a compose file."""
_SIZES = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
"""MiB of a unit."""


class Author(msgspec.Struct, frozen=True):
    name: str
    email: str | None = None


class Package(msgspec.Struct, frozen=True):
    name: str
    version: str | None = None
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or ".." in self.name:
            raise ValueError(f"task.name is {self.name!r}, and a name is organization/name")
        if self.version == "":
            raise ValueError("task.version is empty: leave it out")


class Solution(msgspec.Struct, frozen=True):
    env: dict[str, str] = {}


class Agent(Policy, frozen=True):
    timeout_sec: Duration | None = None
    user: str | int | None = None


class Healthcheck(msgspec.Struct, frozen=True):
    command: str
    interval_sec: Seconds = 5.0
    timeout_sec: Duration = 30.0
    start_period_sec: Seconds = 0.0
    start_interval_sec: Seconds = 5.0
    retries: int = 3


class Environment(BaselineNetwork, frozen=True):
    build_timeout_sec: Duration = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    memory: str | None = None
    """Older key: `512M`, `1.5G`."""
    storage_mb: int | None = None
    storage: str | None = None
    """Older key."""
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[Any] = msgspec.field(default_factory=list)
    env: dict[str, str] = msgspec.field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None

    def __post_init__(self) -> None:
        for key, older in (("memory", self.memory_mb), ("storage", self.storage_mb)):
            text = getattr(self, key)
            if text is not None and older is not None and _mebibytes(key, text) != older:
                raise ValueError(f"{key} = {text!r} and {key}_mb = {older} differ: leave one out")

    @property
    def memory_mebibytes(self) -> int | None:
        return self.memory_mb if self.memory is None else _mebibytes("memory", self.memory)

    @property
    def storage_mebibytes(self) -> int | None:
        return self.storage_mb if self.storage is None else _mebibytes("storage", self.storage)


def _service(name: str | None, where: str) -> str | None:
    """The service beside the agent's that is named; None: the agent's. Raises ValueError."""
    plain = MAIN if name is None else name.strip()
    if not _SERVICE.fullmatch(plain):
        raise ValueError(f"{where} names the service {name!r}, and that is no name")
    return None if plain == MAIN else plain


class Hook(msgspec.Struct, frozen=True):
    """An entry of verifier.collect."""

    command: str
    service: str = MAIN
    timeout_sec: Duration = 60.0
    user: str | int | None = None

    def __post_init__(self) -> None:
        _service(self.service, "verifier.collect")

    @property
    def of(self) -> str | None:
        return _service(self.service, "verifier.collect")


class Verifier(Policy, frozen=True):
    timeout_sec: Duration = 600.0
    env: dict[str, str] = msgspec.field(default_factory=dict)
    user: str | int | None = None
    environment_mode: str | None = None
    environment: Environment | None = None
    collect: list[Hook] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.environment_mode not in (None, "shared", "separate"):
            raise ValueError(
                f"environment_mode is {self.environment_mode!r}: Harbor knows shared and separate"
            )
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError('environment_mode is "shared", and there is a [verifier.environment]')

    @property
    def separate(self) -> bool:
        return self.environment_mode == "separate" or self.environment is not None


class Artifact(msgspec.Struct, frozen=True):
    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None

    def __post_init__(self) -> None:
        if ".." in PurePosixPath(self.source).parts:
            raise ValueError(f"the artifact {self.source!r} has a `..` in it")
        if self.of is not None and not _ABSOLUTE.match(self.source):
            raise ValueError(f"the artifact {self.told} is no absolute path")
        if self.destination:
            path = PurePosixPath(self.destination)
            wrong = "\\" in self.destination or path.is_absolute() or ".." in path.parts or not path.parts
            if wrong or self.destination.rstrip("/") == "manifest.json":
                raise ValueError(
                    f"the destination {self.destination!r} of the artifact {self.source!r} is no path "
                    "that Harbor takes"
                )

    @property
    def of(self) -> str | None:
        return _service(self.service, f"the artifact {self.source!r}")

    @property
    def told(self) -> str:
        return f"{self.source!r} of the service {self.of or MAIN}"


class Step(msgspec.Struct, frozen=True):
    name: str
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[str | Artifact] = []

    def __post_init__(self) -> None:
        name = self.name
        wrong = (
            not name.strip() or name in (".", "..") or name.endswith((".", " ")) or len(name.encode()) > 255
        )
        if wrong or _NOT_IN_STEPS.search(name) or _DEVICES.fullmatch(name.partition(".")[0].rstrip(" ")):
            raise ValueError(f"a step is named {name!r}: Harbor takes names of directories on any system")

    @property
    def least(self) -> dict[str, float]:
        if isinstance(self.min_reward, dict):
            return self.min_reward
        return {} if self.min_reward is None else {"reward": self.min_reward}


class Definition(msgspec.Struct, frozen=True):
    """A task.toml."""

    schema_version: str = "1.4"
    task: Package | None = None
    metadata: dict[str, Any] = {}
    verifier: Verifier = Verifier()
    agent: Agent = Agent()
    environment: Environment = Environment()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[Step] | None = None
    artifacts: list[str | Artifact] = []

    def __post_init__(self) -> None:
        names = [unicodedata.normalize("NFC", step.name).casefold() for step in self.steps or ()]
        if len(names) != len(set(names)):
            raise ValueError(f"two steps have one name: {', '.join(names)}")

    @property
    def artifact_entries(self) -> list[Artifact]:
        """Raises ValueError for one that Harbor does not take."""
        return [Artifact(each) if isinstance(each, str) else each for each in self.artifacts]


def read_definition(text: str) -> tuple[Definition, list[str]]:
    """The definition, and the names of the fields in it that Harbor does not know. Raises DecodeError or
    ValueError."""
    given = msgspec.toml.decode(text)
    if "version" in given:  # as it was called
        given.setdefault("schema_version", given.pop("version"))
    return msgspec.convert(given, Definition), list(_unknown(given, Definition, ""))


def _unknown(given: Mapping[str, Any], kind: type[msgspec.Struct], above: str) -> Iterator[str]:
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in given.items():
        if key not in fields:
            yield f"{above}{key}"
            continue
        of = [each for each in (fields[key], *_parts(fields[key])) if isinstance(each, type)]
        inner = next((each for each in of if issubclass(each, msgspec.Struct)), None)
        for each in value if isinstance(value, list) else [value]:
            if inner is not None and isinstance(each, dict):
                yield from _unknown(each, inner, f"{above}{key}.")


def _parts(kind: Any) -> Iterator[Any]:
    for part in get_args(kind):
        yield part
        yield from _parts(part)


def without_host(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables, with the default of each that may come from the machine that runs Harbor. Raises
    ValueError for one that comes from there alone, and for a name that no shell can set."""
    found = {}
    for name, value in variables.items():
        template = _TEMPLATE.fullmatch(value)
        default = template["default"] if template else value
        if default is None:
            raise ValueError(
                f"variable {name} is {value!r}, taken from the machine that runs the tests: "
                "a task holds no secrets, so write a plain value"
            )
        if not is_variable(name):
            raise ValueError(f"variable {name!r} cannot be set by a shell: use letters, digits and _")
        found[name] = default
    return found


def healthcheck_script(check: Healthcheck) -> str:
    """Shell text that tries the command until it succeeds; it fails after `retries` failures in a row that
    began after `start_period_sec`."""
    return f"""(
began=$(date +%s) failed=0
while now=$(date +%s); ! timeout {max(int(check.timeout_sec), 1)} bash -c {shlex.quote(check.command)}; do
  if [ $((now - began)) -lt {int(check.start_period_sec)} ]; then
    sleep {check.start_interval_sec:g}
    continue
  fi
  failed=$((failed + 1))
  if [ $failed -ge {check.retries} ]; then
    echo "the healthcheck failed $failed times" >&2
    exit 1
  fi
  sleep {check.interval_sec:g}
done
)"""


def healthcheck_seconds(check: Healthcheck) -> float:
    """Most seconds that a healthcheck takes."""
    tries = max(check.retries, 1) * (check.timeout_sec + check.interval_sec)
    return check.start_period_sec + check.timeout_sec + check.start_interval_sec + tries


def _mebibytes(key: str, text: str) -> int:
    """Raises ValueError."""
    size = text.strip().upper()
    if size[-1:] not in _SIZES:
        raise ValueError(f"{key} is {text!r}: write it like '1G' or '512M'")
    try:
        return int(float(size[:-1]) * _SIZES[size[-1:]])
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{key} is {text!r}: write it like '1G' or '512M'") from error
