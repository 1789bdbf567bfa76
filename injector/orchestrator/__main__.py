"""`python -m orchard.injector.orchestrator`: the sandbox service, on this machine or a Kubernetes cluster."""

import argparse
import asyncio
import gc
import ipaddress
import logging
import os
import resource
import signal
import socket
import sys
import uuid
from pathlib import Path

import uvloop
from aiohttp import web

from orchard.injector.agent import logs
from orchard.injector.backend import Backend
from orchard.injector.errors import SandboxError, SandboxRequestInvalid
from orchard.injector.local.backend import LocalBackend
from orchard.injector.orchestrator import limits
from orchard.injector.orchestrator.app import Orchestrator

KEYS_VARIABLE = "SANDBOX_API_KEY"
SECRET_VARIABLE = "ORCHARD_AGENT_SECRET"
SECRET_LENGTH = 32
"""Characters, at least."""


def main() -> int:
    """Serve until SIGTERM or SIGINT; sandboxes stay with the agent. Returns the exit status."""
    options = _options()
    logs.configure()
    keys = [key for key in os.environ.get(options.keys_env, "").split(",") if key]
    if not keys and not _is_loopback(options.host):
        print(  # noqa: T201
            f"refusing to serve {options.host} without keys: put one or more, separated by commas, in the "
            f"environment variable {options.keys_env}",
            file=sys.stderr,
        )
        return 2
    try:
        uvloop.run(_serve(_backend(options), options, keys))
    except (SandboxError, OSError) as error:
        print(f"the sandbox service cannot start: {error}", file=sys.stderr)  # noqa: T201
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
        choices=("local", "kubernetes", "unsafe-host"),
        default="local",
        help="`unsafe-host` runs commands on this machine without any isolation",
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
        "--limits", type=Path, default=None, metavar="FILE", help="TOML: what keys may ask for"
    )
    parser.add_argument(
        "--metrics-port", type=int, default=None, help="serve /metrics here, and not on --port"
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
    if options.backend != "kubernetes" and options.state is None:
        parser.error(f"--backend {options.backend} needs --state DIR")
    return options


def _backend(options: argparse.Namespace) -> Backend:
    """Raises SandboxRequestInvalid when the settings or the secret cannot be used."""
    if options.backend != "kubernetes":
        return LocalBackend(options.state, backend=options.backend, start_agent=options.agent == "start")
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


async def _serve(backend: Backend, options: argparse.Namespace, keys: list[str]) -> None:
    allowed = None if options.limits is None else limits.load(options.limits)
    orchestrator = Orchestrator(backend, keys, allowed, own_metrics_port=options.metrics_port is not None)
    figures = web.AppRunner(orchestrator.metrics_application(), access_log=None)
    runner = web.AppRunner(
        orchestrator.application(),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=1.0,
    )
    # Requests leave many objects and few cycles; to look for those every 700 costs a sixth of our time.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    await runner.setup()
    try:
        site = web.TCPSite(runner, options.host, options.port, backlog=4096)
        await site.start()
        port = runner.addresses[0][1]
        log = logging.getLogger(__name__)
        log.info("serving %s:%d over %s", options.host, port, options.backend)
        for key in keys:  # by these names they are in figures and in the file of limits
            log.info("accepting the key named %s", limits.name_of(key))
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
    """By a rename: whoever sees the file sees all of it."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(f"{port}\n")
    temporary.rename(path)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
