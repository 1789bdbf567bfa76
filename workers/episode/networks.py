"""What a task's sandboxes may reach: nothing, unless its world or its definition asks for more. Pure."""

from typing import NamedTuple

import msgspec

from orchard.schemas.tasks import Asked, CheckSandbox, Task, checks_of
from orchard.workers.episode.settings import TaskNetwork
from orchard.workers.episode.worlds import blocks_network

PORTS = (443, 80)
"""Ports of a host that a definition names without one: https and http."""


class Network(NamedTuple):
    blocked: bool = True
    hosts: tuple[str, ...] = ()
    """Hosts, as `HOST:PORT`, that can be reached although the network is blocked."""

    @property
    def told(self) -> str:
        if not self.blocked:
            return "any public address"
        return f"only {', '.join(self.hosts)}" if self.hosts else "nothing"


SHUT = Network()


def asked(task: Task) -> Network:
    """Returns what the task's published definition asks for, for its agent, and for its check where that has
    no sandbox of its own."""
    if not isinstance(task.asks, Asked):
        return SHUT
    return Network(blocked=not task.asks.network, hosts=() if task.asks.network else task.asks.hosts)


def check_task(task: Task, sandbox: CheckSandbox) -> Task:
    """Returns the task with the sandbox of its check in place of the agent's. One of another image has no
    services beside it."""
    return msgspec.structs.replace(
        task,
        image=sandbox.image,
        cpu=sandbox.cpu,
        memory=sandbox.memory,
        asks=sandbox.asks,
        services=task.services if sandbox.image == task.image else msgspec.UNSET,
    )


def network_of(task: Task, *, agent: bool) -> Network:
    """Returns the access of the agent's sandbox, or of those where the task is graded and controlled. Raises
    PluginError."""
    if agent and not blocks_network(task):
        return Network(blocked=False)
    return asked(task)


def refusal(task: Task, setting: TaskNetwork) -> str | None:
    """Returns a sentence that says why the task is not run under this setting; None if it is."""
    own = [check.sandbox for check in checks_of(task.grading) if isinstance(check.sandbox, CheckSandbox)]
    networks = [asked(task), *(asked(check_task(task, sandbox)) for sandbox in own)]
    wanted = next((network for network in networks if network != SHUT), SHUT)
    if setting == "as_asked" or wanted == SHUT:
        return None
    return (
        f'task {task.task_id} asks for a network ({wanted.told}), and sandbox.task_network is "never" here: '
        f"{WAY_OUT}"
    )


WAY_OUT = (
    'set task_network = "as_asked" under [sandbox] in orchard.toml, here and where the workers run; or leave '
    'these tasks out; or write network_mode = "no-network" into the task.toml of those that need none, and '
    "import them again (docs/own-tasks.md)"
)
