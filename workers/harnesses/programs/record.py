"""A harness that is a program, as data: where it comes from, how it is started, how its result is read.

Texts are templates: `$name` stands for a word, `$$` for a dollar sign. The words are `url` (the gateway as
the sandbox reaches it, without `/v1`), `model`, `prompt`, `workdir`, `home` (a directory of the program's
own, outside of the repository) and `layer` (where its files are). In files each word has the escapes of a
JSON string, so that it can stand between double quotes of JSON, TOML and YAML.
"""

import json
from collections.abc import Mapping
from string import Template
from typing import Literal

import msgspec

from orchard.injector.agent import layer_files

LAYER = layer_files.PLACE
"""Where the files of a program lie in its sandbox."""
HOME = "/tmp/orchard-harness"
"""Where it may keep what is its own."""

PATCH_PROMPT = """\
The repository in $workdir has the issue below. Resolve it: change the files of the repository, and nothing \
else. Tests that judge the change exist already and need not be written.

$statement
"""

TASK_PROMPT = "$statement\n"
"""In place of PATCH_PROMPT for a task that is judged by what the program leaves, and not by a patch."""

WORLD_PROMPT = """\
$about

$statement
"""
"""Of a task with a world, whatever the program's own is."""


class PythonPackages(msgspec.Struct, frozen=True, kw_only=True, tag="python"):
    """Packages of PyPI beside a Python of their own."""

    packages: tuple[str, ...]
    """As pip takes them; the version of the first one is the program's."""
    python: tuple[str, ...] = ("3.12",)
    """Versions that will do; the first that is on the machine is taken."""


class NpmBinary(msgspec.Struct, frozen=True, kw_only=True, tag="npm"):
    """A package of npm that brings a binary of its own for each kind of machine."""

    package: str
    """As npm takes it."""
    binaries: Mapping[str, str]
    """Name in the layer's directory `bin` to path below `node_modules`, with `*` for what differs."""


class SuppliedFiles(msgspec.Struct, frozen=True, kw_only=True, tag="supplied"):
    """A file or directory that the user names: `orchard harness install NAME --from PATH`."""

    hint: str = ""
    """Where to get it."""


class OwnFiles(msgspec.Struct, frozen=True, kw_only=True, tag="own"):
    """Texts that come with the record."""

    files: Mapping[str, str]
    """By path in the layer; all can be executed."""
    version: str = "1"


class McpClient(msgspec.Struct, frozen=True, kw_only=True):
    """How a program is told of an MCP server: the world of its task. One more word is `mcp`, its URL."""

    files: Mapping[str, str] = {}
    """Written before it starts, by path; put behind a file of the program's own that has the same path."""
    arguments: tuple[str, ...] = ()
    """Put behind its command."""
    environment: Mapping[str, str] = {}


Source = PythonPackages | NpmBinary | SuppliedFiles | OwnFiles


class FileSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """The submission is a text in a JSON file that the program leaves."""

    path: str
    keys: tuple[str, ...]
    """Where in the file."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program and what a runner has to know of it."""

    name: str
    """Of the harness."""
    wire: Literal["chat", "completions", "responses", "anthropic"]
    """The API that it speaks, for people: the gateway takes all."""
    source: Source
    command: tuple[str, ...]
    """Its words. The current directory is the task's; a status of 0 means that it is done."""
    prompt: str = PATCH_PROMPT
    """Of the words `statement` and `workdir`."""
    stdin: str = ""
    memory: str = "512Mi"
    """What its sandbox has beside the task's memory."""
    environment: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    """Written before it starts, by path."""
    mcp: McpClient | None = None
    """None: it can have no task with a world."""
    submission: FileSubmission | None = None
    """None: all that differs from the base commit when it has ended."""


def filled(template: str, words: Mapping[str, str]) -> str:
    """The text with its words. Raises KeyError for a word that there is not."""
    return Template(template).substitute(words)


def escaped(words: Mapping[str, str]) -> dict[str, str]:
    """The words as they stand between the quotes of a JSON string."""
    return {name: json.dumps(word, ensure_ascii=False)[1:-1] for name, word in words.items()}


def with_server(program: Program) -> Program:
    """The program as it is told of an MCP server."""
    client = program.mcp or McpClient()
    files = {path: program.files.get(path, "") + text for path, text in client.files.items()}
    return msgspec.structs.replace(
        program,
        files={**program.files, **files},
        command=(*program.command, *client.arguments),
        environment={**program.environment, **client.environment},
    )
