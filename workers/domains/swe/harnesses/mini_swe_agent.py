"""The prompts of `mini-swe-agent` and `mini-swe-agent-text`, taken from the installed package.

Prompts and templates are those of the package's configurations for SWE-bench, and its own functions parse the
answers, so each version behaves as published. Its modules that run commands or call models (litellm) are not
imported.
"""

import ast
import errno
import hashlib
import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import yaml

from orchard.schemas.installation import install_command
from orchard.schemas.messages import ToolCall
from orchard.schemas.tasks import Task
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.harnesses import UnknownHarness
from orchard.workers.harnesses.bash_loop import LONGEST_COMMAND, Action, FormatError, PromptSet

PACKAGE = "mini-swe-agent"
_BLOCK_END = "\n```"


class ToolCallPrompts(PromptSet):
    """The package's prompts for models that call tools."""

    name = "mini-swe-agent"
    configuration: ClassVar = "swebench.yaml"
    tools: tuple[dict[str, Any], ...] = ()
    keeps_bad_messages = False
    calls_per_message = 1000
    """The package has no limit."""

    def __init__(self) -> None:
        """Raises UnknownHarness, which says what to install, if the package is missing or unreadable."""
        found = importlib.util.find_spec("minisweagent")
        if found is None or not found.submodule_search_locations:
            raise UnknownHarness(
                f"the harness {self.name!r} needs the package {PACKAGE}: {install_command(PACKAGE)}, here "
                "and where the workers run, or take 'orchard-bash'"
            )
        self.version = metadata.version(PACKAGE)
        self._root = Path(found.submodule_search_locations[0])
        try:
            raw = (self._root / "config" / "benchmarks" / self.configuration).read_bytes()
            self.digest = hashlib.sha256(raw).hexdigest()
            self._read(yaml.safe_load(raw))
        except Exception as error:
            raise UnknownHarness(
                f"the harness {self.name!r} cannot read version {self.version} of {PACKAGE} "
                f"({type(error).__name__}: {error}): pip install '{PACKAGE}>=2.4,<3'"
            ) from error

    def _read(self, configuration: Mapping[str, Any]) -> None:
        from jinja2 import StrictUndefined, Template

        agent, environment, model = (configuration[part] for part in ("agent", "environment", "model"))
        self.environment = dict(environment["env"])
        self._variables = {**agent, **environment, **model}
        self._variables |= {"n_model_calls": 0, "model_cost": 0.0, "elapsed_seconds": 0}
        # The published prompt names the directory of its images.
        task = agent["instance_template"].replace(environment["cwd"], "{{cwd}}")
        self._templates = {
            name: Template(source, undefined=StrictUndefined)
            for name, source in (
                ("system", agent["system_template"]),
                ("task", task),
                ("observation", model["observation_template"]),
            )
        }
        self._format_error_template: str = model["format_error_template"]
        (self._failed,) = re.findall(
            r'"exception_info": f"(.+)\{e\}"', (self._root / "environments" / "local.py").read_text()
        )
        with _quiet():
            self._bad_format: type[Exception] = import_module("minisweagent.exceptions").FormatError
            self._read_parser()
        self._opening("", "/")
        self._shown({"output": "", "returncode": 0, "exception_info": ""})

    def _read_parser(self) -> None:
        module = import_module("minisweagent.models.utils.actions_toolcall")
        self.tools = (module.BASH_TOOL,)
        self._parser = module.parse_toolcall_actions

    def first_messages(self, task: Task) -> tuple[str, str]:
        return self._opening(task.statement, task.workdir)

    def _opening(self, statement: str, workdir: str) -> tuple[str, str]:
        variables = {**self._variables, "task": statement, "cwd": workdir}
        return self._templates["system"].render(variables), self._templates["task"].render(variables)

    def actions(self, calls: Sequence[ToolCall], finish_reason: str) -> list[Action]:
        try:
            found = self._parse(calls, finish_reason)
        except self._bad_format as error:
            raise FormatError(error.messages[0]["content"]) from error  # type: ignore[attr-defined]
        return [_action(call, one["command"]) for call, one in zip(calls, found, strict=True)]

    def _parse(self, calls: Sequence[ToolCall], finish_reason: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._parser(
            [
                SimpleNamespace(
                    id=call.id, function=SimpleNamespace(name=call.name, arguments=call.arguments)
                )
                for call in calls
            ],
            format_error_template=self._format_error_template,
            template_kwargs={"finish_reason": finish_reason},
        )
        return found

    def observation(self, action: Action, outcome: CommandOutcome, limit: float) -> str:
        """Line ends are those of Python's text mode, which the package uses."""
        why = action.obstacle
        if outcome.timed_out:
            seconds = int(limit) if limit == int(limit) else limit
            why = str(subprocess.TimeoutExpired(action.command, seconds))
        return self._shown(
            {
                "output": outcome.output.replace("\r\n", "\n").replace("\r", "\n"),
                "returncode": outcome.returncode,
                "exception_info": why and f"{self._failed}{why}",
            }
        )

    def _shown(self, output: Mapping[str, Any]) -> str:
        shown: str = self._templates["observation"].render(self._variables, output=output)
        return shown

    def left_out(self, calls: int) -> str:
        return f"{calls} calls were not executed: a message may have {self.calls_per_message}."


class TextWords(ToolCallPrompts):
    """The package's prompts for models that write their command into the text."""

    name = "mini-swe-agent-text"
    configuration: ClassVar = "swebench_backticks.yaml"

    def _read_parser(self) -> None:
        self._parser = import_module("minisweagent.models.utils.actions_text").parse_regex_actions
        self._pattern = _constant(self._root / "models" / "litellm_textbased_model.py", "action_regex")

    def _parse(self, calls: Sequence[ToolCall], finish_reason: str) -> list[dict[str, Any]]:
        ((text),) = (call.arguments for call in calls)
        if self._pattern.endswith(r"\n```"):
            # Nothing behind the last end can match, and looking for one from every beginning takes hours.
            text = text[: text.rfind(_BLOCK_END) + len(_BLOCK_END)] if _BLOCK_END in text else ""
        found: list[dict[str, Any]] = self._parser(
            text,
            action_regex=self._pattern,
            format_error_template=self._format_error_template,
            template_kwargs={"finish_reason": finish_reason},
        )
        return found


def _action(call: ToolCall, command: object) -> Action:
    """Returns the command, or the reason why Python would not start a shell for it."""
    if not isinstance(command, str):
        return Action(call, "", f"{type(command).__name__!r} object is not iterable")
    try:
        size = len(command.encode())
    except UnicodeEncodeError as error:
        return Action(call, "", str(error))
    if "\0" in command:
        return Action(call, "", "embedded null byte")
    if size > LONGEST_COMMAND:
        return Action(call, "", str(OSError(errno.E2BIG, os.strerror(errno.E2BIG), "/bin/sh")))
    return Action(call, command)


def _constant(file: Path, name: str) -> str:
    """Reads an annotated string constant from a source file without importing it."""
    (value,) = (
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.target) == name
    )
    assert isinstance(value, str)
    return value


@contextmanager
def _quiet() -> Iterator[None]:
    """Imports the package without its greeting, and without its user directory, whose file of keys it would
    load into this process's environment."""
    names = ("MSWEA_SILENT_STARTUP", "MSWEA_GLOBAL_CONFIG_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="orchard-mini-") as directory:
        os.environ.update(dict(zip(names, ("1", directory), strict=True)))
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
