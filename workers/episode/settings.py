"""Configuration of workers, their sandboxes and their judge."""

from typing import Annotated, Literal

import msgspec

from orchard.schemas.addresses import check_variable
from orchard.schemas.campaigns import DEFAULT_DOMAIN
from orchard.schemas.identity import check_name
from orchard.schemas.quantities import Count, Duration, Seconds, Size, Weight, parse_bytes
from orchard.schemas.sandboxes import OUTPUT_LIMIT

TaskNetwork = Literal["never", "as_asked"]
"""Whether tasks whose definition asks for a network are refused, or given what they ask for."""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker process (configuration section `[worker]`)."""

    slots: Count = 1
    """Number of attempts at the same time."""
    domain: str = DEFAULT_DOMAIN
    """Domain of the campaigns that it serves."""
    priority: str = "normal"
    """Priority of the campaigns that it serves."""
    lends: str = ""
    """Other priorities of its domain, separated by commas, which idle slots serve."""
    idle_exit_seconds: Seconds = 0.0
    """Exit after this many seconds without work in any slot; 0: never. Set for workers that KEDA starts."""
    max_age_seconds: Seconds = 0.0
    """Stop claiming after this many seconds, or a random share of them of at least half, and exit when
    running attempts have ended; 0: no limit."""

    spare_browsers: Annotated[int, msgspec.Meta(ge=0, le=64)] = 1
    """Browsers that are kept started for the next attempts of tasks that need one; about 0.2 GiB each."""

    def __post_init__(self) -> None:
        for priority in self.lent_to:
            check_name(priority, "priority in worker.lends")

    @property
    def lent_to(self) -> list[str]:
        """Priorities in `lends` other than the worker's own."""
        named = (one.strip() for one in self.lends.split(","))
        return [one for one in named if one and one != self.priority]


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How workers use the sandbox service (configuration section `[sandbox]`)."""

    url: str | None = None
    """Address of the orchestrator; None: the one that `orchard up` runs on this machine."""
    api_key_env: str = "SANDBOX_API_KEY"
    """Environment variable that holds the service's key."""
    tls_ca: str | None = None
    """Path of a PEM file: the authority of an https:// service's certificate. None: the system's."""
    ttl_seconds: Duration = 120.0
    """A sandbox whose worker is gone is removed after this long without a heartbeat."""
    heartbeat_seconds: Duration = 30.0
    """Seconds between two heartbeats of a sandbox."""
    creation_tries: Count = 3
    """Tries to create a sandbox before the attempt fails."""
    creation_jitter: Seconds = 0.0
    """Maximum random delay in seconds before a creation, for fleets where thousands start at once."""
    max_memory: str = "16Gi"
    """Maximum memory of a sandbox: memory is doubled after an out-of-memory kill up to this."""
    follow_queue: bool = False
    """Whether the steward tells the sandbox service every 10 s which images waiting rollouts need, for the
    warm pools of a cluster."""
    output_limit: Size = OUTPUT_LIMIT
    """Bytes kept of a command's output."""
    task_network: TaskNetwork = "never"
    """Whether tasks get the network that their published definition asks for, as most of Harbor's do: `never`
    refuses such tasks, `as_asked` gives it to them."""

    def __post_init__(self) -> None:
        parse_bytes(self.max_memory)  # raises InvalidQuantity
        check_variable(self.api_key_env, "sandbox.api_key_env")


class JudgeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model that judges where tasks need one (configuration section `[judge]`)."""

    model: str | None = None
    """The model's name at its endpoint; None: no task that needs a judge can be graded."""
    endpoint: str = "default"
    """Name of the endpoint, with its key and prices."""
    protocol: str = "rubric-2"
    """Name and version of the protocol, where the task names none."""
    temperature: Weight | None = 0.0
    """Sampling temperature; null: the default of the endpoint."""
    max_tokens: Count | None = None
    """Maximum tokens of one answer."""
    timeout_seconds: Seconds = 300.0
    """Seconds for one answer, all tries included."""
