"""Requirements of a campaign's tasks: harness, plug-ins, network; checked when it is submitted."""

from collections import Counter
from collections.abc import Iterable, Mapping

from orchard.configuration.config import ConfigError
from orchard.pipelines.tasks.directories import TERMINAL_BENCH
from orchard.pipelines.tasks.harbor_directories import HARBOR
from orchard.pipelines.tasks.registry import Needs
from orchard.schemas.campaigns import CampaignSpec
from orchard.schemas.plugins import Kind
from orchard.workers import harnesses, plugins
from orchard.workers.episode.networks import SHUT, WAY_OUT
from orchard.workers.episode.settings import TaskNetwork
from orchard.workers.graders.judgement import Grader

_SHOWN = 3
"""Maximum number of examples in a sentence."""


def needed_plugins(spec: CampaignSpec, needs: Mapping[str, Needs]) -> dict[Kind, set[str]]:
    """Plug-ins that the campaign's rollouts need. Raises PluginError for a missing one."""
    graders = {each.grader for each in needs.values() if each.grader is not None}
    for name in graders:
        plugins.need(Kind.GRADER, name)
    return {Kind.HARNESS: set(spec.harnesses) - set(harnesses.built_in_names()), Kind.GRADER: graders}


def by_patch(need: Needs) -> bool:
    """Whether a task is judged by a patch. Raises PluginError for a missing grader."""
    if need.grader is None:
        return need.patch
    grader: Grader = plugins.need(Kind.GRADER, need.grader)
    return not grader.in_place


def default_harness(domain: str, needs: Mapping[str, Needs]) -> str:
    """Default harness for the tasks. Raises ConfigError if no harness fits them all."""
    if (chosen := harnesses.default_harness(domain)) is not None:
        return chosen
    patches = sum(map(by_patch, needs.values()))
    if 0 < patches < len(needs):
        raise ConfigError(
            f"{patches} tasks are judged by a patch and {len(needs) - patches} by what is left in their "
            f"sandboxes, and no harness tells the model of both: submit them apart (--source), each kind "
            f"under its own ({harnesses.patch_harness()}, {harnesses.TASK}), or name one for all by --harness"
        )
    return harnesses.TASK if needs and not patches else harnesses.patch_harness()


def check_network(needs: Mapping[str, Needs], setting: TaskNetwork) -> list[str]:
    """Notes on the tasks' network, a sentence each. Raises ConfigError if tasks need a network and none is
    configured."""
    asking = {task: each.network for task, each in needs.items() if each.network not in (None, SHUT.told)}
    unread = [
        task for task, each in needs.items() if each.network is None and each.repo in (HARBOR, TERMINAL_BENCH)
    ]
    if asking and setting == "never":
        raise ConfigError(
            f"{len(asking)} of {len(needs)} tasks ask for a network ({_some(asking)}), and "
            f'sandbox.task_network is "never": {WAY_OUT}'
        )
    notes = [
        f"{count} of {len(needs)} tasks have a network, for agent and check: {what}"
        for what, count in Counter(asking.values()).most_common(_SHOWN)
    ]
    if unread:
        notes.append(
            f"{len(unread)} tasks ({_some(unread)}) were imported before network and time-outs of their "
            "definitions were read: they run without a network and with the campaign's time-outs until they "
            "are imported again"
        )
    return notes


def check_copies(needs: Mapping[str, Needs], copies: bool | None) -> None:
    """Raises ConfigError if checks need the agent's processes ended, and the sandbox service has no copies to
    end them by. None: it does not say."""
    stopped = [task for task, each in needs.items() if each.stopped]
    if stopped and copies is False:
        raise ConfigError(
            f"{len(stopped)} of {len(needs)} tasks ({_some(stopped)}) are judged after the agent's processes "
            "ended (check_in = stopped), and the sandbox service cannot end them: import these tasks again "
            "and validate them with this service, or leave them out"
        )


def _some(names: Iterable[str]) -> str:
    given = list(names)
    return ", ".join(given[:_SHOWN]) + (", ..." if len(given) > _SHOWN else "")
