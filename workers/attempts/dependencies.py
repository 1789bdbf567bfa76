"""What a worker passes to each of its attempts."""

from dataclasses import dataclass, field

from orchard.injector.client import AsyncSandboxClient
from orchard.storage.blobs import BlobStore
from orchard.streams.publisher import Publisher
from orchard.workers.episode.sandboxes import SandboxSettings
from orchard.workers.episode.settings import JudgeSettings
from orchard.workers.episode.worlds import SharedResources, Standby
from orchard.workers.gateway.server import Gateway
from orchard.workers.graders.endings import Controls
from orchard.workers.llm.client import ModelClient


@dataclass(frozen=True, kw_only=True)
class AttemptDependencies:
    worker: str
    publisher: Publisher
    blobs: BlobStore
    sandboxes: AsyncSandboxClient
    sandbox_settings: SandboxSettings
    models: ModelClient
    gateway: Gateway = field(default_factory=Gateway)
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    shared: SharedResources = field(default_factory=SharedResources)
    """Resources of all worlds of this worker. Its creator closes it."""
    controls: Controls = field(default_factory=Controls)
    standbys: tuple[Standby, ...] = ()
    """Pools of sandboxes that are ready before an attempt asks for one."""
