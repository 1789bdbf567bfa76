"""What is read of a task directory, whatever its format, and of the files in it."""

import base64
import hashlib
import re
import shlex
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from orchard.pipelines.tasks.compose_services import BesideService
from orchard.pipelines.tasks.errors import TaskError
from orchard.schemas.identity import digest
from orchard.schemas.tasks import Asked, CollectHook, ServiceArtifact

LARGEST = 16 * 1024 * 1024
"""Bytes of the tests, or of the solution, of one task."""
_IGNORED = ".harborignore"


class SeparateVerifier(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox of its own in which the tests run."""

    image: str = ""
    """Published image; empty: it is built from `context`."""
    context: Path
    bundled: bool
    """Whether the image has the tests, at /tests."""
    workdir: str = ""
    environment: dict[str, str] = {}
    cpu: str = "1"
    memory: str = "2Gi"
    asks: Asked
    artifacts: tuple[str | ServiceArtifact, ...]
    """What it gets from the agent's sandbox and from those of services."""


class Directory(msgspec.Struct, frozen=True, kw_only=True):
    """A task directory."""

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
    user: str = ""
    """User of the agent's commands; empty: the image's."""
    tests_user: str = ""
    """User of the tests; empty: the image's."""
    material: dict[str, bytes] = {}
    """Brought to the working directory before the agent begins."""
    setup: tuple[str, ...] = ()
    """Shell texts that run in the working directory of a new sandbox, after `material` was brought."""
    verifier: SeparateVerifier | None = None
    """None: the tests run in the agent's sandbox."""
    runs: frozenset[str] = frozenset()
    """Files of `material` that have a run bit."""
    collect: tuple[CollectHook, ...] = ()
    """Commands that run when the agent is done."""
    stages: tuple["Directory", ...] = ()
    """What the agent is told one after the other, each as a task in the same sandbox. `material` and `setup`
    of a stage come before it; the latter runs as `user`. The task itself then has neither tests nor a
    solution."""
    least: dict[str, float] = {}
    """Of a stage: numbers that its tests must give at least, or no further stage begins."""
    combined: Literal["mean", "final"] = "mean"
    """How the numbers of the stages become those of the task."""
    services: tuple[BesideService, ...] = ()
    notes: tuple[str, ...] = ()
    """What the definition says and nothing follows from, a sentence each."""

    @property
    def task_id(self) -> str:
        return self.name.replace("/", "__")

    @property
    def image_name(self) -> str:
        """The image's name; where it is built, it differs for other files. Raises TaskError."""
        return self.image or self._built(self.context)

    @property
    def verifier_image(self) -> str:
        """The name of the image of the verifier. Raises TaskError."""
        assert self.verifier is not None
        return self.verifier.image or self._built(self.verifier.context)

    @property
    def dockerfile(self) -> Path:
        return self.context / "Dockerfile"

    def service_image(self, service: BesideService) -> str:
        """The name of a service's image. Raises TaskError."""
        return self._built(service.context) if service.context else service.service.image

    def _built(self, context: Path) -> str:
        files = {name: _digest(path) for name, path in paths(context, self.path).items()}
        slug = re.sub(r"[^a-z0-9_.-]+", "-", self.name.lower()).strip("-.")
        return f"{self.source}/{slug}:{digest(files, 12)}"


def paths(directory: Path, task: Path) -> dict[str, Path]:
    """The regular files below `directory`, by relative path; none if it is a file. Raises TaskError for a
    link that leads out of the directory of the task or to where it stands, and for a name that is no text."""
    found = {}
    for path in _walk(directory, task.resolve(), frozenset()):
        if path == directory:
            continue
        name = path.relative_to(directory).as_posix()
        if name != name.encode(errors="replace").decode():
            raise TaskError(f"{directory} has a file whose name is no Unicode: {name!r}")
        found[name] = path
    return found


def _walk(path: Path, task: Path, above: frozenset[Path]) -> Iterator[Path]:
    real = path.resolve()
    if not real.is_relative_to(task):
        raise TaskError(f"{path} is a link out of {task}: put a file in its place")
    if path.is_dir():
        if real in above:
            raise TaskError(f"{path} is a link to a directory that it stands in: remove it")
        for each in sorted(path.iterdir()):
            if each.name != "__pycache__":
                yield from _walk(each, task, above | {real})
    elif path.is_file():
        yield path


def contents(directory: Path, task: Path, what: str) -> dict[str, bytes]:
    """What the files below `directory` hold. Raises ValueError when they are too many bytes, and for rules
    that leave files out."""
    found = paths(directory, task)
    if ignored := next((name for name in found if name.rpartition("/")[2] == _IGNORED), None):
        raise ValueError(f"its {what} have a {ignored}, which is not read here: delete it, and what it names")
    if sum(path.stat().st_size for path in found.values()) > LARGEST:
        raise ValueError(f"its {what} are over {LARGEST // 2**20} MiB: put large files into the image")
    return {name: path.read_bytes() for name, path in found.items()}


def runnable(directory: Path, task: Path) -> frozenset[str]:
    """The files below `directory` that their owner may execute."""
    found = paths(directory, task)
    return frozenset(name for name, path in found.items() if path.stat().st_mode & stat.S_IXUSR)


def labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    found = {key: metadata.get(key) for key in ("difficulty", "category")}
    return {key: value for key, value in found.items() if isinstance(value, str) and value}


def is_variable(name: str) -> bool:
    """Whether a POSIX shell can set a variable of this name."""
    return name.isascii() and name.isidentifier()


def placed(root: str, files: Mapping[str, bytes], runs: Collection[str] = ()) -> str:
    """Shell that writes the files below `root`, an absolute path or `.`; those of `runs` can be executed."""
    lines = []
    for path, data in files.items():
        target = shlex.quote(f"{root}/{path}")
        text = base64.encodebytes(data).decode()
        lines.append(
            f"mkdir -p \"$(dirname {target})\" && base64 -d > {target} <<'END' || exit 126\n{text}END\n"
        )
        if path in runs:
            lines.append(f"chmod +x {target} || exit 126\n")
    return "".join(lines)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
