"""`python -m orchard.injector.front --upstreams FILE`: one address for several sandbox services."""

import argparse
import asyncio
import logging
import os
import signal
import ssl
import sys
from pathlib import Path

from aiohttp import web

from orchard.injector.agent import logs
from orchard.injector.errors import SandboxRequestInvalid
from orchard.injector.front.app import Front
from orchard.injector.front.upstreams import load
from orchard.injector.orchestrator import deadlines
from orchard.injector.orchestrator.origins import is_loopback

KEY_VARIABLE = "SANDBOX_API_KEY"


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m orchard.injector.front", description=__doc__)
    parser.add_argument(
        "--upstreams", type=Path, required=True, metavar="FILE", help="TOML: [upstreams.NAME]"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that the front is asked by, or whose pages may ask it",
    )
    parser.add_argument("--port", type=int, default=0, help="0: any free port, see --port-file")
    parser.add_argument(
        "--port-file", type=Path, default=None, help="the port is written here once it serves"
    )
    parser.add_argument("--tls-cert", type=Path, default=None, metavar="FILE", help="PEM: serve https")
    parser.add_argument("--tls-key", type=Path, default=None, metavar="FILE", help="PEM: its private key")
    options = parser.parse_args()
    if (options.tls_cert is None) != (options.tls_key is None):
        parser.error("--tls-cert and --tls-key belong together")
    logs.configure()
    try:
        front = Front(
            load(options.upstreams),
            os.environ.pop(KEY_VARIABLE, None),
            loopback=is_loopback(options.host),
            hosts=options.allowed_host,
        )
        asyncio.run(_serve(front, options))
    except (SandboxRequestInvalid, OSError) as error:
        print(f"the front cannot start: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


async def _serve(front: Front, options: argparse.Namespace) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    tls = None
    if options.tls_cert is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(options.tls_cert, options.tls_key)
    runner = deadlines.runner(front.application())
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port, backlog=4096, ssl_context=tls).start()
        port = runner.addresses[0][1]
        logging.getLogger(__name__).info("serving %s:%d", options.host, port)
        if options.port_file is not None:
            temporary = options.port_file.with_name(f"{options.port_file.name}.new")
            temporary.write_text(f"{port}\n")
            temporary.rename(options.port_file)
        await ended.wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
