"""`python -m orchard` is the `orchard` command."""

import os
import signal
import sys

from orchard.storage.allocation import ARROW_ALLOCATOR


def main() -> None:
    """Runs the command line. Ctrl-C ends the command during its long import too."""
    os.environ.update(ARROW_ALLOCATOR)
    try:
        from orchard.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
