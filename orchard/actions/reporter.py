"""How an action tells its caller what it does meanwhile; the caller decides how that is shown."""


class Reporter:
    """Shows nothing, as notebooks want it; `orchard.terminal.console.reporting` gives the terminal's."""

    def note(self, text: str, label: str = "") -> None:
        """Take a sentence for the user; `label` says what kind of note it is."""

    def progress(self, title: str, done: int, total: int | None, doing: str = "") -> None:
        """Take how far the work named `title` is; `doing` says what it does or waits for just now."""


SILENT = Reporter()
