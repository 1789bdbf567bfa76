"""`python -m orchard` is the `orchard` command."""

import os
import signal
import sys

from orchard.storage.allocation import ARROW_ALLOCATOR


def main() -> None:
    """Run the command line. Its import takes a while in which Ctrl-C ends the command, too."""
    os.environ.update(ARROW_ALLOCATOR)
    try:
        from orchard.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
