"""Reports notes and progress of an action; the caller decides how they are shown."""


class Reporter:
    """Ignores all reports, for notebooks; `orchard.terminal.console.reporting` shows them on a terminal."""

    def note(self, text: str, label: str = "") -> None:
        """Reports a sentence to the user; `label` is the kind of note."""

    def progress(self, title: str, done: int, total: int | None, doing: str = "") -> None:
        """Reports progress of the work `title`; `doing` says what it does or waits for now."""


SILENT = Reporter()


def plural(number: int, noun: str) -> str:
    """Number and noun: `1 task`, `2 tasks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """Formats seconds: `1 h 04 min`, `12 min 30 s` or `8 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
