"""Write the reference into a directory: `python -m orchard.reference docs/reference`."""

import sys
from pathlib import Path

from orchard.reference.pages import PAGES


def main() -> None:
    """Write every page into the directory given as the only argument."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name, write in PAGES.items():
        (target / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
