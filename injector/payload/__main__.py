"""`python -m orchard.injector.payload build OUT.tar`: make the agent's payload."""

import argparse
import sys
from pathlib import Path

from orchard.injector.payload.build import build
from orchard.injector.payload.elf import PayloadError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m orchard.injector.payload", description=__doc__)
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("build", help="build it from this Python, for machines of this kind")
    make.add_argument("archive", type=Path, metavar="OUT.tar", help="tar archive to be written")
    options = parser.parse_args()
    if not options.archive.parent.is_dir():
        parser.error(f"the directory {options.archive.parent} does not exist: make it")
    try:
        build(options.archive)
    except PayloadError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
