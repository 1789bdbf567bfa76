"""The asynchronous client of the sandbox service."""

import asyncio
import logging
import os
import ssl
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from orchard.injector import operations
from orchard.injector.created_sandboxes import CreatedSandboxes
from orchard.injector.errors import (
    SandboxError,
    SandboxFailed,
    SandboxNotFound,
    SandboxRequestInvalid,
    SandboxWaitTimeout,
)
from orchard.injector.results import HealthResult, JobResult
from orchard.injector.sandbox import AsyncSandbox
from orchard.injector.transport import Transport
from orchard.schemas.sandboxes import (
    Acknowledgement,
    CreateSandbox,
    ImageDeleted,
    ImageDemand,
    ImageInfo,
    PreparedImages,
    PrepareImages,
    PullImage,
    Resources,
    SandboxCreatedReply,
    SandboxInfo,
    SandboxStatus,
)

__all__ = ["AsyncSandbox", "AsyncSandboxClient", "JobResult"]

READY_MARGIN = 30.0
"""Seconds beyond a sandbox's own time for getting ready, after which the client gives up."""
WAIT_STEP = 60.0
"""Longest wait of one request for a sandbox, in seconds."""
UNDOING = 10.0
"""Seconds that a cancelled creation waits for its clean-up; `close` waits for the rest."""

T = TypeVar("T")
log = logging.getLogger(__name__)

DEFAULT_CPU, DEFAULT_MEMORY, DEFAULT_TIMEOUT = "4", "16Gi", 3600.0


class AsyncSandboxClient:
    """Makes sandboxes, and deletes those that it made and nobody deleted.

    It does so at the end of its block, by `close` and when the process ends, but never in a fork of it.
    `base_url`, `api_key` and `prefix` default to the environment's SANDBOX_BASE_URL, SANDBOX_API_KEY and
    SANDBOX_PREFIX. `timeout` bounds one request and `retry_seconds` the retries of a service that does not
    respond, in seconds. With a `prefix`, the ids of sandboxes made here begin with it and a dash. `tls_ca`
    (or SANDBOX_TLS_CA) is a PEM file with the authority that must have signed an https:// service's
    certificate, in place of the system's.
    """

    def __init__(
        self,
        base_url: str | None = None,
        timeout: float = 1200.0,
        auto_cleanup: bool = True,
        api_key: str | None = None,
        prefix: str | None = None,
        *,
        retry_seconds: float = 60.0,
        tls_ca: str | None = None,
    ) -> None:
        url = base_url or os.environ.get("SANDBOX_BASE_URL")
        if not url:
            raise SandboxRequestInvalid("no sandbox service: pass base_url or set SANDBOX_BASE_URL")
        self.base_url = url.rstrip("/")
        self.prefix = prefix or os.environ.get("SANDBOX_PREFIX") or None
        tls = _trusting(tls_ca or os.environ.get("SANDBOX_TLS_CA"))
        self._transport = Transport(
            self.base_url,
            api_key=api_key or os.environ.get("SANDBOX_API_KEY") or None,
            timeout=timeout,
            retry_seconds=retry_seconds,
            tls=tls,
        )
        self._auto_cleanup = auto_cleanup
        self._created = CreatedSandboxes(
            self.base_url, self._transport.headers, at_exit=auto_cleanup, tls=tls
        )
        self._made: dict[str, AsyncSandbox] = {}
        self._undoing: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def create_sandbox(
        self,
        image: str,
        block_network: bool = True,
        sandbox_id: str | None = None,
        cpu: str | None = None,
        memory: str | None = None,
        timeout: float | None = None,
        wait_ready: bool = True,
        poll_interval: float | None = None,  # noqa: ARG002
        *,
        labels: dict[str, str] | None = None,
        ttl_seconds: float | None = None,
        env: dict[str, str] | None = None,
        layers: Sequence[str] = (),
        programs: Sequence[str] = (),
        egress: Sequence[str] = (),
        gpus: int = 0,
        volumes: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncSandbox:
        """Create a sandbox and, unless `wait_ready` is false, wait until it is ready.

        `cpu` ("4") and `memory` ("16Gi") are Kubernetes quantities; `timeout` (3600) bounds getting ready and
        `ttl_seconds` its life without a request or heartbeat, in seconds. `env` (up to 128 variables, 32 KiB)
        is the environment of each command, below the command's own; forks have it too, snapshots do not.
        `layers` are images whose files are laid over those of `image`, later ones on top. `programs` names
        programs of `orchard harness install` whose commands it has on its PATH, on one machine only.
        `poll_interval` is accepted for old callers: nothing is polled.

        `egress` lists the destinations, `HOST:PORT` each, that can be reached over TCP although the network
        is blocked. On Kubernetes the administrator limits `gpus` and names the permitted `volumes`, which map
        a name to the directory where it is mounted.

        Raises SandboxFailed when it cannot start (`image_missing`, `start_timeout`, ...), having removed what
        there was of it, and SandboxConflict when `sandbox_id` is taken.
        """
        request = CreateSandbox(
            image=image,
            block_network=block_network,
            sandbox_id=_prefixed(self.prefix, sandbox_id),
            cpu=cpu or DEFAULT_CPU,
            memory=memory or DEFAULT_MEMORY,
            timeout=timeout or DEFAULT_TIMEOUT,
            labels=labels or {},
            ttl_seconds=ttl_seconds,
            env=env or {},
            layers=list(layers),
            programs=list(programs),
            egress=list(egress),
            gpus=gpus,
            volumes=dict(volumes or {}),
        )
        made = await self._unless_given_up(
            self._transport.call(SandboxCreatedReply, operations.CREATE, body=request, key=idempotency_key),
            lambda reply: [reply.sandbox_id],
        )
        self._created.add(made.sandbox_id)
        try:
            if wait_ready:
                info = await self._ready(made.sandbox_id, request.timeout)
            else:
                info = await self._info(made.sandbox_id)
        except BaseException:
            await asyncio.shield(self.delete_sandbox(made.sandbox_id))
            raise
        return self._own(info)

    async def get_sandbox(self, sandbox_id: str) -> AsyncSandbox:
        """Return an existing sandbox. Raises SandboxNotFound. This client will not delete it."""
        return AsyncSandbox(self._transport, await self._info(sandbox_id), self._forget, self._forked)

    async def list_sandboxes(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """List the sandboxes that carry all `labels`."""
        params = [("label", f"{name}={value}") for name, value in (labels or {}).items()]
        return await self._transport.call(list[SandboxInfo], operations.LIST, params=params)

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """Delete a sandbox; does nothing when there is none."""
        await self._transport.call(Acknowledgement, operations.DELETE, sandbox_id)
        self._forget(sandbox_id)

    async def cleanup_all(self) -> None:
        """Delete the sandboxes that this client made in this process, not those made before a fork."""
        await asyncio.gather(*(self._delete_own(sandbox_id) for sandbox_id in self._created.ids()))

    async def health(self) -> HealthResult:
        """Raise SandboxUnavailable while the service cannot make sandboxes."""
        return await self._transport.call(HealthResult, operations.HEALTH)

    async def resources(self) -> Resources:
        """Report capacity and what is requested of it."""
        return await self._transport.call(Resources, operations.RESOURCES)

    async def list_images(self) -> list[ImageInfo]:
        """List the images that sandboxes can be created from, except `host`, sorted by name.

        This and the other methods for images raise SandboxUnsupported where images are stored in registries.
        """
        return await self._transport.call(list[ImageInfo], operations.IMAGES)

    async def pull_image(
        self,
        reference: str,
        name: str | None = None,
        *,
        username: str | None = None,
        password: str | None = None,
        plain_http: bool = False,
        timeout: float | None = None,
    ) -> ImageInfo:
        """Pull an image from a registry by its `docker pull` reference; returns once it is here.

        Its name becomes `name`, or the reference. `timeout` bounds one attempt, in seconds. Raises
        SandboxNotFound (`image_missing`), SandboxRequestInvalid (`registry_denied`, `image_refused`,
        `image_too_large`), SandboxConflict if another owner has the name, and SandboxError
        (`registry_unavailable`).
        """
        wanted = PullImage(
            reference=reference, name=name, username=username, password=password, plain_http=plain_http
        )
        return await self._transport.call(ImageInfo, operations.PULL_IMAGE, body=wanted, timeout=timeout)

    async def tell_demand(self, images: Mapping[str, int]) -> None:
        """Tell a cluster how many sandboxes of which images will be asked for; it holds for a minute, and
        replaces what was told before. Raises SandboxUnsupported where there are no warm pools."""
        demand = ImageDemand(images=dict(images))
        await self._transport.call(ImageDemand, operations.DEMAND, body=demand)

    async def prepare_images(self, images: Sequence[str]) -> PreparedImages:
        """Let all nodes of a cluster pull up to 20 images, and return how far they are; repeat it until it is
        `done`. Raises SandboxUnsupported on one machine."""
        wanted = PrepareImages(images=list(images))
        return await self._transport.call(PreparedImages, operations.PREPARE, body=wanted)

    async def import_image(self, archive: str | Path, name: str) -> ImageInfo:
        """Import a `docker save` archive or an OCI image layout in a tar archive."""
        with await asyncio.to_thread(Path(archive).open, "rb") as file:
            params = {"name": name}
            return await self._transport.call(ImageInfo, operations.IMPORT_IMAGE, body=file, params=params)

    async def delete_image(self, name: str) -> None:
        """Delete an image. Raises SandboxNotFound, and SandboxConflict (`in_use`) while sandboxes use it."""
        await self._transport.call(ImageDeleted, operations.DELETE_IMAGE, params={"name": name})

    async def close(self) -> None:
        """Clean up, unless `auto_cleanup` is off, and close all connections."""
        try:
            loop = asyncio.get_running_loop()  # a fork does not wait for its parent's
            if undoing := [one for one in self._undoing if one.get_loop() is loop]:
                await asyncio.wait(undoing)
            if self._auto_cleanup:
                await self.cleanup_all()
                self._created.close()
        finally:
            await self._transport.close()

    def _own(self, info: SandboxInfo) -> AsyncSandbox:
        sandbox = AsyncSandbox(self._transport, info, self._forget, self._forked)
        self._made[sandbox.sandbox_id] = sandbox
        return sandbox

    async def _unless_given_up(
        self, creating: Coroutine[Any, Any, T], ids: Callable[[T], Sequence[str]]
    ) -> T:
        """Await a request that creates sandboxes; if cancelled, delete what it creates.

        The request runs to its response under its one idempotency key, since only that has the ids.
        """
        answer = asyncio.ensure_future(creating)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            undoing = asyncio.ensure_future(self._undo(answer, ids))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            await asyncio.wait([undoing], timeout=UNDOING)
            raise

    async def _undo(self, answer: asyncio.Future[T], ids: Callable[[T], Sequence[str]]) -> None:
        try:
            await asyncio.gather(*(self.delete_sandbox(sandbox_id) for sandbox_id in ids(await answer)))
        except SandboxError as error:
            log.warning("a creation was given up, and what it made may be left behind: %s", error)

    async def _forked(self, forking: Coroutine[Any, Any, list[SandboxInfo]]) -> list[AsyncSandbox]:
        """Own the forks once all are ready; if one is not, delete them all."""
        forks = await self._unless_given_up(forking, lambda made: [info.sandbox_id for info in made])
        ids = [info.sandbox_id for info in forks]
        for sandbox_id in ids:
            self._created.add(sandbox_id)
        try:
            ready = await asyncio.gather(*(self._ready(sandbox_id, DEFAULT_TIMEOUT) for sandbox_id in ids))
        except BaseException:
            await asyncio.shield(asyncio.gather(*(self.delete_sandbox(sandbox_id) for sandbox_id in ids)))
            raise
        return [self._own(info) for info in ready]

    async def _delete_own(self, sandbox_id: str) -> None:
        sandbox = self._made.get(sandbox_id)
        await (self.delete_sandbox(sandbox_id) if sandbox is None else sandbox.delete())

    def _forget(self, sandbox_id: str) -> None:
        self._made.pop(sandbox_id, None)
        self._created.remove(sandbox_id)

    async def _info(self, sandbox_id: str) -> SandboxInfo:
        return await self._transport.call(SandboxInfo, operations.GET, sandbox_id)

    async def _ready(self, sandbox_id: str, timeout: float) -> SandboxInfo:
        deadline = time.monotonic() + timeout + READY_MARGIN
        while True:
            step = min(WAIT_STEP, max(0.0, deadline - time.monotonic()))
            params = {"timeout": str(step)}
            try:
                info = await self._transport.call(SandboxInfo, operations.WAIT, sandbox_id, params=params)
            except SandboxWaitTimeout:
                if time.monotonic() >= deadline:
                    raise SandboxFailed(
                        f"sandbox {sandbox_id} was not ready within {timeout:g} s", reason="start_timeout"
                    ) from None
                continue
            except SandboxNotFound as error:
                raise SandboxFailed(
                    f"sandbox {sandbox_id} was removed before it was ready", reason="deleted"
                ) from error
            if info.status is SandboxStatus.READY:
                return info
            raise SandboxFailed(f"sandbox {sandbox_id} failed: {info.status_message}", reason=info.reason)


def _trusting(authority: str | None) -> ssl.SSLContext | None:
    """Trust only the authority of a PEM file; None: the system's. Raises SandboxRequestInvalid."""
    if not authority:
        return None
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:  # an SSLError is one
        raise SandboxRequestInvalid(
            f"the certificate file {authority} cannot be used ({error.strerror or error}): correct tls_ca or "
            "SANDBOX_TLS_CA"
        ) from error


def _prefixed(prefix: str | None, sandbox_id: str | None) -> str | None:
    """The id to request, with the prefix; None leaves it to the service."""
    if prefix is None or (sandbox_id or "").startswith(f"{prefix}-"):
        return sandbox_id
    return f"{prefix}-{sandbox_id or uuid.uuid4().hex[:8]}"
