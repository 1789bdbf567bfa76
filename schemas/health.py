"""What each process of the pipeline says of itself, every few seconds, for `orchard status` and alarms."""

from datetime import datetime
from enum import StrEnum

import msgspec


class Condition(StrEnum):
    OK = "ok"
    HOLDING = "holding"
    """Alive, and doing no work until something is mended; `says` names it."""
    STOPPED = "stopped"
    """Ended in order."""


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment; the newest report of a name stands for it."""

    name: str
    kind: str
    """`worker`, `writer` or `steward`."""
    host: str
    pid: int
    started: datetime
    condition: Condition = Condition.OK
    says: str = ""
    """Why it holds, in one sentence."""
    serves: str = ""
    """Name of the queue's consumer, for a worker."""
    numbers: dict[str, float] = {}
    """Counts by name, such as `running`, `slots` or `position`."""
    plugins: dict[str, list[str]] = {}
    """Names of the plug-ins that it can use, by kind."""
    endpoints: list[str] | None = None
    """Names of the model endpoints that it is configured for; None: older workers do not say."""
    priced: dict[str, list[str]] | None = None
    """Names of the models that have a price, by endpoint; None: older workers do not say."""


class HeardReport(msgspec.Struct, frozen=True):
    """A report, and how long ago the server got it."""

    report: ProcessReport
    seconds: float


def alive(heard: list[HeardReport]) -> list[ProcessReport]:
    """Processes that work, or would if there were any."""
    return [
        one.report
        for one in heard
        if one.seconds <= SILENT_SECONDS and one.report.condition is not Condition.STOPPED
    ]


REPORT_SECONDS = 10.0
"""Between two reports of a process."""
SILENT_SECONDS = 45.0
"""Without a report for so long a process counts as dead, or as stopped by SIGSTOP."""


def sick(heard: list[HeardReport]) -> list[str]:
    """A sentence for each process that is silent or holds; empty when all is well."""
    sentences = []
    for one in sorted(heard, key=lambda each: each.report.name):
        report = one.report
        who = f"{report.name} (process {report.pid} on {report.host})"
        if report.condition is Condition.STOPPED:
            continue
        if one.seconds > SILENT_SECONDS:
            sentences.append(f"{who} has been silent for {one.seconds:.0f} s: it was killed, or is stopped")
        elif report.condition is Condition.HOLDING:
            sentences.append(f"{who} does no work: {report.says}")
    return sentences
