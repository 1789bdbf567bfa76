"""The blocking client of the sandbox service: the asynchronous one on a thread of its own."""

import functools
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, overload

from orchard.injector.agent.protocol import WORKSPACE
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.event_loop import Blocking, EventLoopThread, blocking
from orchard.injector.following import Exit, Output
from orchard.injector.process import AsyncContainerProcess, ContainerProcess
from orchard.injector.results import JobResult
from orchard.injector.sandbox import AsyncSandbox
from orchard.injector.tunnels import LOOPBACK, Tunnel
from orchard.injector.watching import Watch


def _all(loop: EventLoopThread, sandboxes: Sequence[AsyncSandbox]) -> "list[Sandbox]":
    return [Sandbox(loop, one) for one in sandboxes]


class Sandbox(Blocking[AsyncSandbox]):
    """AsyncSandbox for blocking code; see there for what each method does and raises."""

    def __init__(self, loop: EventLoopThread, sandbox: AsyncSandbox) -> None:
        super().__init__(loop, sandbox)
        self.sandbox_id = sandbox.sandbox_id
        self.namespace = sandbox.namespace
        self.image = sandbox.image
        self.block_network = sandbox.block_network
        self.info = sandbox.info

    @overload
    def exec(
        self,
        command: str | list[str],
        timeout: float | None = ...,
        cwd: str | None = ...,
        env: dict[str, str] | None = ...,
        wait: bool = ...,
        poll_interval: float | None = ...,
        login_shell: bool = ...,
        pty: Literal[False] = ...,
        *,
        timeout_seconds: float | None = ...,
        output_limit: int = ...,
        merge_output: bool = ...,
        stdin: str | None = ...,
        idempotency_key: str | None = ...,
        user: str | None = ...,
    ) -> JobResult: ...
    @overload
    def exec(
        self,
        command: str | list[str],
        *,
        cwd: str | None = ...,
        env: dict[str, str] | None = ...,
        login_shell: bool = ...,
        pty: Literal[True],
        rows: int = ...,
        cols: int = ...,
        user: str | None = ...,
    ) -> ContainerProcess: ...
    @functools.wraps(AsyncSandbox.exec)
    def exec(self, *args: Any, **named: Any) -> JobResult | ContainerProcess:
        started = self._loop.run(self._awaited.exec(*args, **named))
        return (
            ContainerProcess(self._loop, started) if isinstance(started, AsyncContainerProcess) else started
        )

    def forward(
        self,
        port: int,
        *,
        local_port: int = 0,
        host: str = LOOPBACK,
        idle_seconds: float | None = None,
    ) -> Tunnel:
        """Open a tunnel by `with`; see AsyncSandbox."""
        made = self._awaited.forward(port, local_port=local_port, host=host, idle_seconds=idle_seconds)
        return Tunnel(self._loop, made)

    def reverse(
        self, port: int, target: int | tuple[str, int], *, idle_seconds: float | None = None
    ) -> Tunnel:
        """Open a reverse tunnel by `with`; see AsyncSandbox."""
        return Tunnel(self._loop, self._awaited.reverse(port, target, idle_seconds=idle_seconds))

    def watch(self, remote_path: str = WORKSPACE) -> Watch:
        """Begin a watch by `with`; see AsyncSandbox."""
        return Watch(self._loop, self._awaited.watch(remote_path))

    get_job = blocking(AsyncSandbox.get_job)
    wait_job = blocking(AsyncSandbox.wait_job)

    def follow(self, job_id: str, offset: str = "0.0") -> Iterator[Output | Exit]:
        """Yield a job's output; see AsyncSandbox.follow."""
        events = self._awaited.follow(job_id, offset)

        async def one() -> Output | Exit | None:
            return await anext(events, None)

        while (event := self._loop.run(one())) is not None:
            yield event

    cancel_job = blocking(AsyncSandbox.cancel_job)
    apply_patch = blocking(AsyncSandbox.apply_patch)
    remove = blocking(AsyncSandbox.remove)
    move = blocking(AsyncSandbox.move)
    list_jobs = blocking(AsyncSandbox.list_jobs)
    upload_content = blocking(AsyncSandbox.upload_content)
    upload_file = blocking(AsyncSandbox.upload_file)
    download_content = blocking(AsyncSandbox.download_content)
    download_file = blocking(AsyncSandbox.download_file)
    upload_directory = blocking(AsyncSandbox.upload_directory)
    download_directory = blocking(AsyncSandbox.download_directory)
    upload_archive = blocking(AsyncSandbox.upload_archive)
    download_archive = blocking(AsyncSandbox.download_archive)
    list_files = blocking(AsyncSandbox.list_files)
    check_env = blocking(AsyncSandbox.check_env)
    snapshot = blocking(AsyncSandbox.snapshot)
    pause = blocking(AsyncSandbox.pause)
    resume = blocking(AsyncSandbox.resume)
    take_snapshot = blocking(AsyncSandbox.take_snapshot)
    list_snapshots = blocking(AsyncSandbox.list_snapshots)
    delete_snapshot = blocking(AsyncSandbox.delete_snapshot)
    restore = blocking(AsyncSandbox.restore)
    fork = blocking(AsyncSandbox.fork, _all)
    status = blocking(AsyncSandbox.status)
    heartbeat = blocking(AsyncSandbox.heartbeat)
    stop_heartbeat = blocking(AsyncSandbox.stop_heartbeat)
    delete = blocking(AsyncSandbox.delete)

    def start_heartbeat(self, interval: float = 60.0) -> None:
        """Send a heartbeat every `interval` seconds in the background."""
        self._loop.call(lambda: self._awaited.start_heartbeat(interval))


class SandboxClient(Blocking[AsyncSandboxClient]):
    """AsyncSandboxClient for blocking code; see there for what each argument and method means.

    Safe to use from several threads. A forked child may continue to use it, with connections of its own, and
    without owning, or deleting, what its parent made.
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
        client = AsyncSandboxClient(
            base_url, timeout, auto_cleanup, api_key, prefix, retry_seconds=retry_seconds, tls_ca=tls_ca
        )
        super().__init__(EventLoopThread(), client)
        self.base_url = client.base_url
        self.prefix = client.prefix

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    create_sandbox = blocking(AsyncSandboxClient.create_sandbox, Sandbox)
    get_sandbox = blocking(AsyncSandboxClient.get_sandbox, Sandbox)
    list_sandboxes = blocking(AsyncSandboxClient.list_sandboxes)
    delete_sandbox = blocking(AsyncSandboxClient.delete_sandbox)
    cleanup_all = blocking(AsyncSandboxClient.cleanup_all)
    health = blocking(AsyncSandboxClient.health)
    resources = blocking(AsyncSandboxClient.resources)
    list_images = blocking(AsyncSandboxClient.list_images)
    pull_image = blocking(AsyncSandboxClient.pull_image)
    tell_demand = blocking(AsyncSandboxClient.tell_demand)
    prepare_images = blocking(AsyncSandboxClient.prepare_images)
    import_image = blocking(AsyncSandboxClient.import_image)
    delete_image = blocking(AsyncSandboxClient.delete_image)

    def close(self) -> None:
        """Clean up, unless `auto_cleanup` is off, close all connections and end the thread."""
        try:
            self._loop.run(self._awaited.close())
        finally:
            self._loop.stop()
