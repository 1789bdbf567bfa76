"""`python -m orchard.injector.orchestrator`: the sandbox service, on this machine or a Kubernetes cluster."""

import argparse
import asyncio
import contextlib
import errno
import gc
import logging
import os
import pkgutil
import resource
import secrets
import signal
import socket
import ssl
import sys
import tempfile
import uuid
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from orchard.injector.agent import kernel, logs
from orchard.injector.backend import Backend
from orchard.injector.errors import SandboxError, SandboxRequestInvalid
from orchard.injector.local.backend import LocalBackend
from orchard.injector.orchestrator import deadlines, limits
from orchard.injector.orchestrator.app import Orchestrator
from orchard.injector.orchestrator.keys import Keys
from orchard.injector.orchestrator.origins import is_loopback
from orchard.schemas.plugins import GUIDE, Kind, PluginError

KEYS_VARIABLE = "SANDBOX_API_KEY"
ADMIN_KEYS_VARIABLE = "SANDBOX_ADMIN_KEYS"
KEY_FILE = "sandbox.key"
SECRET_VARIABLE = "ORCHARD_AGENT_SECRET"
SECRET_LENGTH = 32
LOCAL = ("local", "unsafe-host")


def main() -> int:
    """Serve until SIGTERM or SIGINT; sandboxes stay with the agent. Returns the exit status."""
    options = _options()
    logs.configure()
    loopback = is_loopback(options.host)
    given = [_taken(name) for name in (options.keys_env, options.admin_keys_env)]
    if not any(given) and not (loopback and (options.open or options.state is not None)):
        print(  # noqa: T201
            f"refusing to serve {options.host} without keys: put one or more, separated by commas, in the "
            f"environment variable {options.keys_env}" + (", or say --open" if loopback else ""),
            file=sys.stderr,
        )
        return 2
    try:
        if not any(given) and not options.open:
            given[0] = [_own_key(options.state)]
        uvloop.run(_serve(_backend(options), options, Keys(*given), loopback))
    except (SandboxError, PluginError, OSError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        remedy = ": another program listens there, pass another --port or --metrics-port" if taken else ""
        print(f"the sandbox service cannot start: {error}{remedy}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m orchard.injector.orchestrator", description=__doc__)
    parser.add_argument("--state", type=Path, default=None, help="state directory of the local agent")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port, see --port-file")
    parser.add_argument(
        "--port-file", type=Path, default=None, help="the port is written here once it serves"
    )
    parser.add_argument(
        "--backend",
        default="local",
        metavar="NAME",
        help="local, kubernetes, a plug-in (docs/extending.md), or unsafe-host, which runs commands on this "
        "machine without any isolation",
    )
    parser.add_argument(
        "--kubernetes-settings", type=Path, default=None, metavar="FILE", help="TOML, for `kubernetes`"
    )
    parser.add_argument(
        "--agent-secret-env",
        default=SECRET_VARIABLE,
        help="environment variable with the secret that agents' keys are made from, for `kubernetes`",
    )
    parser.add_argument(
        "--agent",
        choices=("start", "external"),
        default="start",
        help="start an agent when none answers, or leave that to somebody else",
    )
    parser.add_argument(
        "--keys-env", default=KEYS_VARIABLE, help="environment variable with the accepted keys"
    )
    parser.add_argument(
        "--admin-keys-env",
        default=ADMIN_KEYS_VARIABLE,
        help="the same for keys that see all sandboxes; of several others each sees its own",
    )
    parser.add_argument(
        "--open",
        action="store_true",
        help="no keys, on loopback: every account of this machine may run commands in every sandbox. Without "
        f"this and without keys one is made and kept in STATE/{KEY_FILE}",
    )
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that the service is asked by, or whose pages may ask it: of a proxy, for example",
    )
    parser.add_argument(
        "--limits", type=Path, default=None, metavar="FILE", help="TOML: what keys may ask for"
    )
    parser.add_argument(
        "--metrics-port", type=int, default=None, help="serve /metrics here, and not on --port"
    )
    parser.add_argument(
        "--tls-cert", type=Path, default=None, metavar="FILE", help="PEM: serve https with this certificate"
    )
    parser.add_argument(
        "--tls-key", type=Path, default=None, metavar="FILE", help="PEM: the certificate's private key"
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=5.0,
        help="time that requests get to end after SIGTERM; clients repeat what is cut off then",
    )
    options = parser.parse_args()
    if options.backend == "kubernetes" and options.kubernetes_settings is None:
        parser.error("--backend kubernetes needs --kubernetes-settings FILE")
    if options.backend in LOCAL and options.state is None:
        parser.error(f"--backend {options.backend} needs --state DIR")
    if (options.tls_cert is None) != (options.tls_key is None):
        parser.error("--tls-cert and --tls-key belong together")
    return options


def _taken(variable: str) -> list[str]:
    """Take the keys out of an environment variable, so that child processes do not inherit them."""
    return [key for key in os.environ.pop(variable, "").split(",") if key]


def _own_key(state: Path) -> str:
    """Load or create the key of a service without configured keys; only the owner may read its file."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = state / KEY_FILE
    if not place.exists():
        descriptor, whole = tempfile.mkstemp(dir=state, prefix=KEY_FILE)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.token_urlsafe(32)}\n")
        with contextlib.suppress(FileExistsError):  # another service made one meanwhile
            os.link(whole, place)
        Path(whole).unlink()
    key = place.read_text().strip()
    if not key:
        raise SandboxRequestInvalid(f"{place} is empty: remove it, and a new key is made")
    print(f"clients need the key in {place}: export {KEYS_VARIABLE}=$(cat {place})", file=sys.stderr)  # noqa: T201
    return key


def _backend(options: argparse.Namespace) -> Backend:
    """Make the backend. Raises SandboxRequestInvalid when the settings or the secret are invalid."""
    if options.backend in LOCAL:
        return LocalBackend(options.state, backend=options.backend, start_agent=options.agent == "start")
    if options.backend != "kubernetes":
        return _plugged(options.backend)(options.state)
    secret = os.environ.pop(options.agent_secret_env, "")
    if len(secret) < SECRET_LENGTH:
        raise SandboxRequestInvalid(
            f"the environment variable {options.agent_secret_env} must hold a secret of at least"
            f" {SECRET_LENGTH} characters, the same for all orchestrators of the cluster, for example from"
            " `openssl rand -hex 32`"
        )
    # Here, because its client takes a second to import.
    from orchard.injector.kubernetes.backend import KubernetesBackend
    from orchard.injector.kubernetes.settings import load

    identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    return KubernetesBackend(load(options.kubernetes_settings), secret.encode(), identity)


def _plugged(name: str) -> Callable[[Path | None], Backend]:
    """Makes the backend at `module:attribute`, or of the entry point of that name. Raises PluginError."""
    entries = {entry.name: entry.value for entry in entry_points(group=f"orchard.{Kind.BACKEND}")}
    reference = name if ":" in name else entries.get(name)
    if reference is None:
        known = ", ".join([*LOCAL, "kubernetes", *sorted(entries)])
        raise PluginError(f"there is no plug-in {name!r} among the backends ({known}): see {GUIDE}")
    try:
        made: Any = pkgutil.resolve_name(reference)
        made = made() if isinstance(made, type) else made
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise PluginError(f"the backend {name!r} ({reference}) cannot be loaded: {what}") from error
    if not callable(made):
        raise PluginError(f"the backend {name!r} ({reference}) cannot be called: see {GUIDE}")
    make: Callable[[Path | None], Backend] = made
    return make


async def _serve(backend: Backend, options: argparse.Namespace, keys: Keys, loopback: bool) -> None:
    allowed = None if options.limits is None else limits.load(options.limits)
    orchestrator = Orchestrator(
        backend,
        keys,
        allowed,
        own_metrics_port=options.metrics_port is not None,
        loopback=loopback,
        hosts=options.allowed_host,
    )
    figures = deadlines.runner(orchestrator.metrics_application())
    runner = deadlines.runner(orchestrator.application())
    # Requests leave many objects and few cycles; to look for those every 700 costs a sixth of our time.
    kernel.hold_little_memory()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    tls = None
    if options.tls_cert is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(options.tls_cert, options.tls_key)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    await runner.setup()
    try:
        site = web.TCPSite(runner, options.host, options.port, backlog=4096, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        log = logging.getLogger(__name__)
        log.info("serving %s:%d over %s", options.host, port, options.backend)
        for name in keys.accepted:  # by these names they are in figures and in the file of limits
            log.info("accepting the key named %s, in figures %s", name, keys.figures()[name])
        if options.metrics_port is not None:
            await figures.setup()
            await web.TCPSite(figures, options.host, options.metrics_port).start()
        if options.port_file is not None:
            _write_port(options.port_file, port)
        await ended.wait()
        await site.stop()
        await orchestrator.drain.finish(options.drain_seconds)
    finally:
        await figures.cleanup()
        await runner.cleanup()


def _write_port(path: Path, port: int) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(f"{port}\n")
    temporary.rename(path)


if __name__ == "__main__":
    sys.exit(main())
