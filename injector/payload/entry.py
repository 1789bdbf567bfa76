"""The payload's entry point: reports versions, copies itself or a program's files, or serves its container.

It imports only the standard library, aiohttp and `orchard.injector.agent`: nothing else is in the payload.
"""

import argparse
import importlib
import json
import pkgutil
import platform
import shutil
import sys
from pathlib import Path

from orchard.injector import agent
from orchard.injector.agent import layer_files
from orchard.injector.agent.pod import start

ROOT = Path(__file__).resolve().parent.parent
SET_FOR_THE_LOADER = frozenset({"LD_AUDIT", "LD_PRELOAD"})
"""Variables emptied for the payload (`launch.ENVIRONMENT`), which commands need not see."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="agent", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--version", action="store_true", help="say what is inside, after importing all of it"
    )
    action.add_argument(
        "--install", type=Path, metavar="DIR", help="copy the payload into this directory, made if missing"
    )
    action.add_argument(
        "--layer", type=Path, metavar="DIR", help="copy a program's files from here, if they have the digest"
    )
    action.add_argument("--serve", action="store_true", help="serve this container as a sandbox")
    parser.add_argument("--host", default="127.0.0.1", help="numeric address to listen on")
    parser.add_argument("--port", type=int, default=0, help="to listen on; 0: a free one; it is printed")
    parser.add_argument("--into", type=Path, metavar="DIR", help="where --layer copies them to")
    parser.add_argument("--digest", metavar="SHA256", help="that --layer compares")
    parser.add_argument("--sandbox", metavar="ID", help="id of the sandbox that this container is")
    parser.add_argument(
        "--grace", type=float, default=0.0, metavar="SECONDS", help="for what still asks after SIGTERM"
    )
    options = parser.parse_args()
    if options.install is not None:
        for part in ROOT.iterdir():
            # Not the whole at once: it would change the date of DIR, which may be somebody else's.
            shutil.copytree(part, options.install / part.name, dirs_exist_ok=True)
        return 0
    if options.layer is not None:
        try:
            layer_files.copy(options.layer, options.into, options.digest)
        except layer_files.LayerDiffers as error:
            print(error, file=sys.stderr)  # noqa: T201
            return 1
        return 0
    if options.version:
        print(json.dumps(_versions()))  # noqa: T201
        return 0
    if options.sandbox is None:
        parser.error("--serve needs --sandbox ID")
    return start.run(options.host, options.port, options.sandbox, SET_FOR_THE_LOADER, options.grace)


def _versions() -> dict[str, str]:
    """Import all of the agent, so that a missing module shows now and not at the first command."""
    for module in pkgutil.walk_packages(agent.__path__, "orchard.injector.agent."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    aiohttp = importlib.import_module("aiohttp")
    return {
        "python": platform.python_version(),
        "aiohttp": aiohttp.__version__,
        "machine": platform.machine(),
    }


if __name__ == "__main__":
    sys.exit(main())
