"""Ends commands on errors: a sentence for what the user can fix, a traceback for a defect."""

import errno
import re
import signal
import sys
from collections.abc import Callable, Iterator

from orchard.schemas.installation import DISTRIBUTION, install_command
from orchard.terminal.permissions import keep_private

MISTAKES = (
    ("orchard.configuration.config", "ConfigError"),
    ("orchard.injector.errors", "SandboxError"),
    ("orchard.pipelines.campaigns.commands", "CampaignError"),
    ("orchard.pipelines.datasets.errors", "DatasetError"),
    ("orchard.pipelines.evaluation.suite", "EvaluationError"),
    ("orchard.pipelines.reranking.errors", "RerankError"),
    ("orchard.pipelines.tasks.left_out", "NotImported"),
    ("orchard.pipelines.models.errors", "ModelError"),
    ("orchard.pipelines.rl.coordinator", "RunError"),
    ("orchard.pipelines.rl.engines", "Refused"),
    ("orchard.pipelines.sft.settings", "TrainingError"),
    ("orchard.pipelines.tasks.errors", "TaskError"),
    ("orchard.pipelines.values.recorded", "UnknownRollout"),
    ("orchard.schemas.identity", "InvalidName"),
    ("orchard.schemas.plugins", "PluginError"),
    ("orchard.schemas.quantities", "InvalidQuantity"),
    ("orchard.storage.errors", "StorageError"),
    ("orchard.streams.errors", "StreamsError"),
    ("orchard.workers.failures", "InfrastructureError"),
    ("orchard.workers.harnesses", "UnknownHarness"),
)
"""Errors that a user can fix: shown as one sentence, exit code 1. Others are defects and show a traceback."""


def mistakes() -> tuple[type[Exception], ...]:
    """Classes of MISTAKES whose modules are imported: only they can have been raised."""
    loaded = [(sys.modules.get(module), name) for module, name in MISTAKES]
    return tuple(getattr(module, name) for module, name in loaded if module is not None)


_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)")


def _leaves(group: ExceptionGroup[Exception]) -> Iterator[Exception]:
    """Errors in an exception group, at any depth."""
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def tell(*errors: object) -> None:
    """Prints a user's mistakes on stderr without reading brackets as markup."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    for error in errors:
        console.print(Text.assemble(("error:", "bold red"), f" {error}"), soft_wrap=True)


def _missing_package(error: ModuleNotFoundError) -> str | None:
    """Sentence that names the extra of a package that is not installed; None for other modules."""
    from importlib import metadata  # slow, and needed once in a while

    package = (error.name or "").partition(".")[0]
    for requirement in metadata.requires(DISTRIBUTION) or []:
        name, _, condition = requirement.partition(";")
        extra = _EXTRA.search(condition)
        if extra and package and re.match(rf"{re.escape(package)}\b", name):
            return f"this command needs the package {package}: install it with `{install_command(extra[1])}`"
    return None


def _scarce(error: Exception) -> str:
    """Sentence for the machine's refusal to start a process, write a file or listen; empty for others."""
    if isinstance(error, BlockingIOError) or "can't start new thread" in str(error):
        return "no process can be started: raise `ulimit -u`, or pids.max of the control group"
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.ENOSPC, errno.EDQUOT):
        what = error.filename or "a file"
        return f"{what} cannot be written ({error.strerror}): choose another --store or --state"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"{error.strerror}: another program listens there, choose another port"
    return ""


def run_told(run: Callable[[], object]) -> None:
    """Runs a command: a user's mistakes become one sentence each, Ctrl-C the exit status 130."""
    keep_private()
    try:
        run()
    except ExceptionGroup as group:
        if group.subgroup(BrokenPipeError) is not None:
            sys.exit(0)
        known, defects = group.split(mistakes())
        if known is None or defects is not None:
            raise
        tell(*_leaves(known))
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if scarce := _scarce(error):
            tell(scarce)
            sys.exit(1)
        missing = _missing_package(error) if isinstance(error, ModuleNotFoundError) else None
        if missing is None and not isinstance(error, mistakes()):
            raise
        tell(missing or error)
        sys.exit(getattr(error, "exit_code", 1))
