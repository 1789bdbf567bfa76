"""What a fleet's run did, and what SQL over the log says of it."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from orchard.storage.errors import StorageError
from orchard.storage.reader import open_tables
from tests.chaos import checks
from tests.chaos.fleet_processes import Processes
from tests.chaos.world import CAMPAIGN

MIB = 2**20
FINISHED = f"select count(*) from rollouts where campaign = '{CAMPAIGN}' and status <> 'aborted'"
ABORTED = f"select count(*) from rollouts where campaign = '{CAMPAIGN}' and status = 'aborted'"
OUTCOMES = f"""
select times, count(*) from (
    select rollout_id, count(*) filter (type in ('rollout.finished', 'rollout.aborted'))
        - count(*) filter (type = 'rollout.reopened') as times
    from events where campaign = '{CAMPAIGN}' and rollout_id is not null group by 1
    having count(*) filter (type = 'rollout.requested') > 0
) group by 1
"""
"""How many requests have how many outcomes, by the log's events alone."""


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    rollouts: int = 1000
    kills: int = 5
    workers: int = 20
    slots: int = 32
    max_age: float = 300.0
    """Seconds; each worker goes after some time in the second half of them."""
    minutes: float | None = None
    """What is open then is cancelled, and has that outcome; None: it may take as long as it likes."""
    seed: int = 1
    away: float = 0.0
    """Minutes for which one NATS server is gone, from half of the rollouts on."""
    event_streams: int = 1


@dataclass
class Report:
    """What a run did and what was found afterwards."""

    size: Size
    kills: Counter[str] = field(default_factory=Counter)
    away: str = ""
    """The NATS server that was gone for the time asked for."""
    done_while_away: int = 0
    """Rollouts that ended meanwhile."""
    started_while_away: int = 0
    """Workers that were started meanwhile."""
    workers_started: int = 0
    workers_at_once: int = 0
    workers_ended: Counter[str] = field(default_factory=Counter)
    """By exit status."""
    seconds: float = 0.0
    """Of this run, from the first worker to the last outcome."""
    rollouts_a_second: float = 0.0
    resumed: int = 0
    """Rollouts that the infrastructure aborted, and that were asked for again."""
    before: int = 0
    """Rollouts that runs before this one, of the same store, had done."""
    finished: int = 0
    """The others were cancelled."""
    lost: int = -1
    doubled: int = -1
    attempts: dict[str, int] = field(default_factory=dict)
    """By how they ended."""
    events: int = 0
    peak_mib: dict[str, float] = field(default_factory=dict)
    """Resident memory of each process at most; of the workers the largest."""
    cpu_ms_a_rollout: dict[str, float] = field(default_factory=dict)
    """Processor time of all processes of a kind."""
    disk_mib: dict[str, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    """Promises that were broken."""


def counted(store: str, query: str) -> int:
    """The number that a query over the tables gives."""
    with open_tables(store) as tables:
        (number,) = tables.sql(query).fetchall()[0]
    return int(number)


def finished_before(store: str) -> int:
    """Rollouts that a run before has finished, as far as they are in the tables."""
    try:
        return counted(store, FINISHED)
    except StorageError:
        return 0


def judge(store: Path, report: Report, processes: Processes) -> None:
    """What SQL over the log says, and what the processes took."""
    size = report.size
    with open_tables(str(store)) as tables:
        rows = tables.sql(OUTCOMES).fetchall()
        outcomes = {int(times): int(requests) for times, requests in rows}
        report.attempts = dict(tables.sql("select ending, count(*) from attempts group by 1").fetchall())
        report.events = tables.sql("select count(*) from events").fetchall()[0][0]
    report.lost = size.rollouts - sum(number for times, number in outcomes.items() if times)
    report.doubled = sum(number for times, number in outcomes.items() if times > 1)
    if report.lost or report.doubled:
        report.findings.append(f"requests by their number of outcomes: {outcomes}")
    report.findings += checks.tables_hold(store, size.rollouts)
    report.finished = counted(str(store), FINISHED)
    here = max(1, report.finished - report.before)
    report.rollouts_a_second = round(here / report.seconds, 2)
    report.workers_ended = Counter(str(status) for status in processes.ends.values())
    for name, used in processes.used.items():
        kind = "worker" if name.startswith("worker") else name
        report.peak_mib[kind] = max(report.peak_mib.get(kind, 0), round(used.peak / MIB))
        spent = report.cpu_ms_a_rollout.get(kind, 0) + 1000 * used.seconds / here
        report.cpu_ms_a_rollout[kind] = round(spent, 2)
