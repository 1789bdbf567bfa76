"""The pages of the reference by file name."""

from collections.abc import Callable

from orchard.reference.commands import commands
from orchard.reference.configuration import configuration
from orchard.reference.events import events
from orchard.reference.tables import tables

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": commands,
    "configuration.md": configuration,
    "events.md": events,
    "tables.md": tables,
}
