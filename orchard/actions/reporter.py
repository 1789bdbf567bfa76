"""Reports notes and progress of an action; the caller decides how they are shown."""


class Reporter:
    """Ignores all reports, for notebooks; `orchard.terminal.console.reporting` shows them on a terminal."""

    def note(self, text: str, label: str = "") -> None:
        """Reports a sentence to the user; `label` is the kind of note."""

    def progress(self, title: str, done: int, total: int | None, doing: str = "") -> None:
        """Reports progress of the work `title`; `doing` says what it does or waits for now."""


SILENT = Reporter()
