"""How much a process logs: `--quiet` and `--verbose`, which its child processes inherit."""

import logging
import os

from orchard.configuration.variables import LOG_VARIABLE

LEVELS = {"quiet": logging.WARNING, "": logging.INFO, "verbose": logging.DEBUG}
"""Level of Orchard's own records by the value of LOG_VARIABLE."""


def start_logging() -> None:
    """Logs to stderr, one line for each record; secrets are never logged."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    logging.getLogger("orchard").setLevel(LEVELS.get(os.environ.get(LOG_VARIABLE, ""), logging.INFO))
    for noisy in ("httpx", "openai", "nats", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
