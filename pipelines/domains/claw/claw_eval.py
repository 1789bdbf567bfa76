"""Tasks of Claw-Eval, read from a checkout that the user has. Nothing of it is in Orchard."""

import gzip
import io
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.pipelines.tasks.registry import storable
from orchard.schemas.blobs import BlobRef
from orchard.schemas.claw_eval import (
    NAME,
    WORKSPACE,
    WORKSPACE_SERVER,
    ClawEvalCheckout,
    ClawEvalTests,
    ClawEvalWorld,
    Endpoint,
    MockService,
)
from orchard.schemas.tasks import PluginGrading, Task, WorldUse

Put = Callable[[bytes, str], BlobRef]
"""Stores bytes of a media type."""

MEDIA_TYPE = "application/gzip"
LARGEST = 256 * 1024 * 1024
"""Bytes of one task's files."""
_LEFT_OUT = frozenset({"__pycache__", ".git", "node_modules", ".venv"})
_NAME = re.compile(r"[\w.-]+")
_MEDIA = re.compile(r"\[(?:media attached[^:\]]*|(?:image|audio|video): *source):\s*([^\]]+)\]", re.I)
"""A picture, audio or video in the user's words."""
_WORKSPACE_SERVER = f"src/{WORKSPACE_SERVER}"


class _Prompt(msgspec.Struct):
    text: str
    language: str = ""
    attachments: list[str] = []


class _Tool(msgspec.Struct):
    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}


class _ToolEndpoint(msgspec.Struct):
    tool_name: str
    url: str
    method: str = "POST"


class _Service(msgspec.Struct):
    name: str
    command: str
    port: int
    health_check: str
    health_check_method: str = "POST"
    ready_timeout: float = 10
    reset_endpoint: str | None = None
    env: dict[str, Any] | None = None


class _Environment(msgspec.Struct):
    timeout_seconds: float = 300
    max_turns: int = 20
    fixtures: list[str] = []
    env_snapshot_timeout: float = 10


class _UserAgent(msgspec.Struct):
    enabled: bool = False


class _Definition(msgspec.Struct):
    """The fields that are read of a `task.yaml`; it has more, which its grader reads."""

    task_id: str
    prompt: _Prompt
    category: str = ""
    difficulty: str = ""
    tools: list[_Tool] = []
    tool_endpoints: list[_ToolEndpoint] = []
    services: list[_Service] = []
    environment: _Environment = msgspec.field(default_factory=_Environment)
    sandbox_files: list[str] = []
    sandbox_grader_files: list[str] = []
    env_snapshot_files: list[str] = []
    env_snapshot_commands: list[str] = []
    local_grader_files: list[str] = []
    user_agent: _UserAgent = msgspec.field(default_factory=_UserAgent)


@dataclass(frozen=True)
class CheckoutOptions:
    """Options for reading a checkout."""

    image: str = "host"
    """Image with `python` and the modules that services and graders import."""
    python: str = "python3"
    error_rate: float = 0.0
    source: str = NAME


@dataclass
class CheckoutTasks:
    tasks: list[Task]
    left_out: list[LeftOut]


def read_checkout(root: Path, put: Put, reading: CheckoutOptions) -> CheckoutTasks:
    """Read the tasks of a checkout, and what is left out. Raises TaskError for a directory that is no
    checkout."""
    if not (root / _WORKSPACE_SERVER).is_file() or not (root / "tasks").is_dir():
        raise TaskError(f"{root} is no checkout of Claw-Eval: it needs {_WORKSPACE_SERVER} and tasks")
    files = sorted(root.glob("tasks/*/task.yaml"))
    if not files:
        raise TaskError(f"{root} has no tasks/*/task.yaml: give a checkout of Claw-Eval")
    names = frozenset(file.parent.name for file in files)
    shared = put(_archive(root, _shared(root)), MEDIA_TYPE)
    places: dict[str, str] = {}
    read = CheckoutTasks([], [])
    for file in files:
        try:
            definition = _definition(file)
            _check(definition, file)
            if (first := places.setdefault(definition.task_id, file.parent.name)) != file.parent.name:
                raise TaskError(f"its task_id {definition.task_id} is that of {first}")
            read.tasks.append(storable(_task(root, file, definition, names, shared, put, reading)))
        except (TaskError, OSError) as error:
            read.left_out.append(LeftOut(file.parent.name, str(error)))
    return read


def _definition(file: Path) -> _Definition:
    try:
        return msgspec.convert(yaml.safe_load(file.read_text(encoding="utf-8")), _Definition)
    except (yaml.YAMLError, ValueError, msgspec.ValidationError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise TaskError(f"task.yaml is no task of Claw-Eval: {said}") from error


def _check(definition: _Definition, file: Path) -> None:
    """Raise TaskError for a task that no harness here can do, or no grader judges."""
    if definition.user_agent.enabled:
        raise TaskError("its user is played by a model, which no harness here does")
    if shown := [*definition.prompt.attachments, *_MEDIA.findall(definition.prompt.text)]:
        raise TaskError(f"its user shows {', '.join(shown)}, which no harness here does")
    if not (file.parent / "grader.py").is_file():
        raise TaskError("it has no grader.py")


def _task(
    root: Path,
    file: Path,
    definition: _Definition,
    names: frozenset[str],
    shared: BlobRef,
    put: Put,
    reading: CheckoutOptions,
) -> Task:
    folder = file.parent
    directory = folder.relative_to(root).as_posix()
    environment = definition.environment
    sandbox_files = tuple(definition.sandbox_files or environment.fixtures)
    grader_files = tuple(definition.sandbox_grader_files)
    brought = [_named(root, folder, name) for name in (*sandbox_files, *grader_files)]
    used = _others(root, folder, definition, names)
    files = (
        *_files(folder),
        *brought,
        *(path for name in used for path in _files(root / "tasks" / name / "fixtures")),
    )
    checkout = ClawEvalCheckout(
        shared=shared,
        task=put(_archive(root, files), MEDIA_TYPE),
        task_id=definition.task_id,
        directory=directory,
        python=reading.python,
    )
    world = ClawEvalWorld(
        checkout=checkout,
        services=tuple(_service(each) for each in definition.services),
        tools=tuple(_tool(each) for each in definition.tools),
        endpoints={
            each.tool_name: Endpoint(url=each.url, method=each.method.upper())
            for each in definition.tool_endpoints
        },
        sandbox_files=sandbox_files,
        sandbox_grader_files=grader_files,
        snapshot_commands=tuple(definition.env_snapshot_commands),
        snapshot_files=tuple(definition.env_snapshot_files),
        snapshot_seconds=environment.env_snapshot_timeout,
        error_rate=reading.error_rate,
        turns=environment.max_turns,
        wall_seconds=environment.timeout_seconds,
    )
    tests = ClawEvalTests(checkout=checkout, local_grader_files=tuple(definition.local_grader_files))
    return Task(
        task_id=definition.task_id,
        source=reading.source,
        repo=NAME,
        image=reading.image,
        workdir=WORKSPACE,
        statement=definition.prompt.text,
        grading=PluginGrading(grader=NAME, settings=msgspec.to_builtins(tests)),
        world=WorldUse(kind=NAME, settings=msgspec.to_builtins(world)),
        memory="4Gi",
        labels=_labels(definition, _text(folder / "grader.py")),
    )


def _labels(definition: _Definition, grader: str) -> dict[str, str]:
    internet = any("web_real" in each.command for each in definition.services)
    return {
        "category": definition.category,
        "difficulty": definition.difficulty,
        "language": definition.prompt.language,
        "judge": "yes" if re.search(r"\bjudge\.", grader) else "no",
        "internet": "yes" if internet else "no",
    }


def _service(given: _Service) -> MockService:
    variables = {name: str(value) for name, value in (given.env or {}).items()}
    return msgspec.convert({**msgspec.structs.asdict(given), "env": variables}, MockService)


def _tool(given: _Tool) -> dict[str, Any]:
    schema = given.input_schema or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": given.name, "description": given.description, "parameters": schema},
    }


def _shared(root: Path) -> Iterator[Path]:
    """The package, the mock services, and every task's grader: a grader may build on another task's."""
    for folder in ("src", "mock_services"):
        yield from _files(root / folder)
    yield from root.glob("tasks/*/*.py")


def _named(root: Path, folder: Path, name: str) -> Path:
    """The file that a task names: in its directory, else in the checkout. Raises TaskError."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise TaskError(f"it names the file {name}, which leads out of its directory")
    found = next((path for path in (folder / name, root / name) if path.is_file()), None)
    if found is None:
        raise TaskError(f"it names the file {name}, which does not exist")
    return found


def _others(root: Path, folder: Path, definition: _Definition, names: frozenset[str]) -> set[str]:
    """Other tasks whose fixtures this one may read: those that its grader, or its services' commands,
    variables and programs name. A program may fall back on the fixtures of the task that it was made for."""
    said = [_text(folder / "grader.py")]
    for each in definition.services:
        said += [each.command, *map(str, (each.env or {}).values())]
        programs = (root / word for word in each.command.split() if word.endswith(".py"))
        said += [_text(program) for program in programs if program.is_file()]
    return {name for text in said for name in _NAME.findall(text)} & names - {folder.name}


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not _LEFT_OUT & set(path.relative_to(folder).parts):
            yield path


def _archive(root: Path, files: Iterable[Path]) -> bytes:
    """The files as a tar that depends on their names, bytes and modes alone."""
    raw = io.BytesIO()
    size = 0
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path in sorted(set(files)):
            content = path.read_bytes()
            size += len(content)
            if size > LARGEST:
                raise TaskError(f"{path.parent} and what else its task needs has more than {LARGEST} bytes")
            member = tarfile.TarInfo(path.relative_to(root).as_posix())
            member.size, member.mode = len(content), 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), 6, mtime=0)
