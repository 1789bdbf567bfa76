"""`python -m orchard` is the `orchard` command."""

import gc
import os
import signal
import sys

from orchard.storage.allocation import ARROW_ALLOCATOR


def main() -> None:
    """Runs the command line. Ctrl-C ends the command during its long import too.

    Where the locale has another encoding, Python is started again in UTF-8 mode: paths go into configuration
    and messages as UTF-8.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    os.environ.update(ARROW_ALLOCATOR)
    gc.set_threshold(20_000, 20, 20)  # imports make hardly any garbage
    try:
        from orchard.cli.app import main as run

        run()
    except ImportError as error:
        if "failed to map segment" not in str(error):
            raise
        sys.exit(f"error: {error}: install on a file system that is not mounted with `noexec`")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
