"""`python -m orchard` is the `orchard` command."""

import signal
import sys


def main() -> None:
    """Run the command line. Its import takes a while in which Ctrl-C ends the command, too."""
    try:
        from orchard.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
