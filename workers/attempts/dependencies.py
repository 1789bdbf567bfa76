"""What a worker lends to its attempts."""

from dataclasses import dataclass, field

from orchard.injector.client import AsyncSandboxClient
from orchard.storage.blobs import BlobStore
from orchard.streams.publisher import Publisher
from orchard.workers.episode.sandboxes import SandboxSettings
from orchard.workers.episode.settings import JudgeSettings
from orchard.workers.episode.standby import Standby
from orchard.workers.episode.worlds import Shared
from orchard.workers.gateway.server import Gateway
from orchard.workers.graders.controls import Controls
from orchard.workers.llm.client import ModelClient


@dataclass(frozen=True, kw_only=True)
class AttemptDependencies:
    """What a worker lends to every attempt it runs."""

    worker: str
    publisher: Publisher
    blobs: BlobStore
    sandboxes: AsyncSandboxClient
    sandbox_settings: SandboxSettings
    models: ModelClient
    gateway: Gateway = field(default_factory=Gateway)
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    shared: Shared = field(default_factory=Shared)
    """Of all worlds that it opens. Whoever made it closes it."""
    controls: Controls = field(default_factory=Controls)
    """What is known of the tasks' checks."""
    standbys: tuple[Standby, ...] = ()
    """Machines that are ready before they are asked for."""
