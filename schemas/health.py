"""Reports of each process about itself, every few seconds, for `orchard status` and alarms."""

from datetime import datetime
from enum import StrEnum

import msgspec


class Condition(StrEnum):
    OK = "ok"
    HOLDING = "holding"
    """Alive, but doing no work until a problem is solved; `says` names it."""
    STOPPED = "stopped"
    """The process ended in order."""


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of one process at one moment; the newest report of a name counts."""

    name: str
    kind: str
    """Kind of process: `worker`, `writer` or `steward`."""
    host: str
    pid: int
    started: datetime
    condition: Condition = Condition.OK
    says: str = ""
    """Why the process holds, in one sentence."""
    serves: str = ""
    """Consumer of the queue that a worker serves."""
    numbers: dict[str, float] = {}
    """Counts by name, such as `running`, `slots` or `position`."""
    plugins: dict[str, list[str]] = {}
    """Names of the plug-ins that the process can use, by kind."""
    endpoints: list[str] | None = None
    """Names of the configured model endpoints; None in reports of older workers."""
    priced: dict[str, list[str]] | None = None
    """Names of the models that have a price, by endpoint; None in reports of older workers."""
    event_streams: int = 1
    """Number of event streams that the process can read, at most; versions that do not say read one."""


class HeardReport(msgspec.Struct, frozen=True):
    """A report, and the seconds since the server got it."""

    report: ProcessReport
    seconds: float


def alive(heard: list[HeardReport]) -> list[ProcessReport]:
    """Reports of processes that run: neither silent nor stopped."""
    return [
        one.report
        for one in heard
        if one.seconds <= SILENT_SECONDS and one.report.condition is not Condition.STOPPED
    ]


REPORT_SECONDS = 10.0
"""Interval between two reports of a process."""
SILENT_SECONDS = 45.0
"""Silence after which a process counts as dead, or as stopped by SIGSTOP."""


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
