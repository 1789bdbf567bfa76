"""Clusters failed rollouts by how they ended, the first failing test, and the last error.

It is a grouping, not a model: the same words in, the same cluster out. At most LOOKED rollouts are looked at,
the newest ones, and the page says so.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import duckdb

from orchard.actions.abort_reasons import FORM, remedy, shortened
from orchard.actions.attempt_ranges import QueryRange
from orchard.page.failing_tests import FAILING
from orchard.page.folder import KEY
from orchard.schemas.outcomes import AbortCause
from orchard.storage.reader import Row, rows, within

LOOKED = 2_000
FEW = 10
"""Maximum number of failing tests that the title calls a few."""
ENDING = 600
"""Characters at the end of a command's output that are searched for an error."""
_FAILED = f"""
select sequence, rollout_id, attempt, campaign, task_id, harness, model, outcome, exit_status, cause, turns,
       detail, {FORM} as form
from indexed.ended where (outcome = 'unresolved' or outcome = 'aborted')
and ($campaign is null or campaign = $campaign) order by sequence desc limit $limit
"""
_GRADES = f"""
select w.rollout_id, w.attempt, w.cause, w.detail, {FAILING} as failed,
       list_sort(list_transform(failed, lambda t: t.value || ' ' || t.key))[1:3] as bad,
       len(failed) as failing
from tables.rewards_all w semi join _failed f on f.rollout_id = w.rollout_id and f.attempt = w.attempt
"""
_SAID = """
select m.rollout_id, m.attempt, m.turn, m.returncode, right(m.content, $most) as ending
from tables.messages_all m semi join _failed f on f.rollout_id = m.rollout_id and f.attempt = m.attempt
where m.role = 'tool' and m.returncode <> 0
qualify row_number() over (partition by m.rollout_id order by m.sequence desc) = 1
"""
_CALLS = """
select * from (select rollout_id, command, count(*) as times from (
    select m.rollout_id, unnest(m.tool_calls).arguments as command
    from tables.messages_all m semi join _failed f on f.rollout_id = m.rollout_id and f.attempt = m.attempt
    where m.role = 'assistant'
) group by all having count(*) >= 4)
qualify row_number() over (partition by rollout_id order by times desc, command) = 1
"""
_NUMBERS = re.compile(r"0x[0-9a-f]+|\b\d[\d.,:]*\b|/[\w./-]+")
_ERROR = re.compile(
    r"^\s*(?:E\s+)?((?:[A-Za-z_.]+)?(?:Error|Exception|error|fatal|not found|No such)\b.*)$", re.MULTILINE
)


@dataclass(frozen=True)
class FailureCluster:
    title: str
    why: list[str]
    """Sentences about the newest rollout of the cluster."""
    rollouts: list[Row]
    exit_status: str
    cause: str

    @property
    def tasks(self) -> int:
        """Number of distinct tasks."""
        return len({row["task_id"] for row in self.rollouts})


@dataclass(frozen=True)
class Failures:
    """All clusters, the largest first."""

    clusters: list[FailureCluster]
    looked: int
    complete: bool
    """False if there are more failed rollouts than the LOOKED newest."""


def failures(
    tables: duckdb.DuckDBPyConnection,
    campaign: str | None = None,
    clean: Callable[[str], str] = str,
    narrow: QueryRange = within,
) -> Failures:
    """The newest failed rollouts, of all campaigns or of one, in clusters. `clean` masks keys,
    before texts are cut."""
    import pyarrow as pa

    found = rows(tables, _FAILED, {"campaign": campaign, "limit": LOOKED + 1})
    complete, found = len(found) <= LOOKED, found[:LOOKED]
    if not found:
        return Failures([], 0, True)
    wanted = pa.table(
        {
            "rollout_id": [row["rollout_id"] for row in found],
            "attempt": pa.array([row["attempt"] for row in found], pa.int64()),
        }
    )
    tables.register("_failed", wanted)
    try:
        asked = "select min(sequence) as first from indexed.asked semi join _failed using (rollout_id)"
        span = (rows(tables, asked)[0]["first"] or 0, found[0]["sequence"])
        grades, errors, repeats = (
            {row["rollout_id"]: row for row in rows(tables, narrow(tables, query, *span), more)}
            for query, more in ((_GRADES, {}), (_SAID, {"most": ENDING + KEY}), (_CALLS, {}))
        )
    finally:
        tables.unregister("_failed")
    groups: dict[tuple[str, ...], list[tuple[Row, list[str]]]] = {}
    for row in found:
        name = row["rollout_id"]
        key, why = _signature(row, grades.get(name), errors.get(name), repeats.get(name), clean)
        groups.setdefault(key, []).append((row, why))
    clusters = [
        FailureCluster(
            title=key[0],
            why=members[0][1] or _why_aborted([row for row, _ in members], clean),
            rollouts=[row for row, _ in members],
            exit_status=members[0][0]["exit_status"] or "",
            cause=members[0][0]["cause"] or "",
        )
        for key, members in groups.items()
    ]
    return Failures(sorted(clusters, key=lambda each: -len(each.rollouts)), len(found), complete)


def _signature(
    row: Row, grade: Row | None, error: Row | None, repeat: Row | None, clean: Callable[[str], str]
) -> tuple[tuple[str, ...], list[str]]:
    """Key of a rollout's cluster, the title first, and sentences that explain it."""
    if row["outcome"] == "aborted":
        return (f"aborted: {row['cause']}",), []
    ended = row["exit_status"] or "no exit status"
    if repeat:
        return (f"{ended}, repeats a command",), [
            f"Ended: {ended}",
            f"One command was given {repeat['times']} times: {clean(repeat['command'])[:200]}",
        ]
    if grade and grade["cause"]:
        return (f"{ended}, judged {grade['cause']}",), [f"The grader's cause: {grade['cause']}"]
    if ended != "submitted" and error:
        said = last_error(clean(error["ending"] or "")[-ENDING:])
        return (f"{ended}, after an error", _NUMBERS.sub("…", said)), [
            f"Ended: {ended}",
            f"Last command that failed: exit {error['returncode']}, {said}",
        ]
    if grade and grade["bad"]:
        kinds = sorted({bad.partition(" ")[0].lower() for bad in grade["bad"]})
        some = (
            "one test"
            if grade["failing"] == 1
            else "a few tests"
            if grade["failing"] <= FEW
            else "many tests"
        )
        return (f"{ended}, {some} {' and '.join(kinds)}",), [
            f"Ended: {ended}",
            f"{grade['failing']} test{'s' * (grade['failing'] > 1)}, the first: {grade['bad'][0]}",
        ]
    if grade and grade["detail"]:
        line = next(iter(_lines(grade["detail"])), "")
        return (f"{ended}, not resolved", _NUMBERS.sub("…", line)), [f"The grader says: {line}"]
    return (f"{ended}, not resolved",), [f"Ended: {ended}"]


def _why_aborted(aborted: list[Row], clean: Callable[[str], str]) -> list[str]:
    """The most common detail of rollouts aborted by one cause, and what to do about it."""
    form, _ = Counter(row["form"] for row in aborted).most_common(1)[0]
    detail = next(row["detail"] for row in aborted if row["form"] == form)
    cause, campaigns = aborted[0]["cause"], {row["campaign"] for row in aborted}
    why = [f"Infrastructure failed: {cause}: {shortened(clean(detail or ''))}"]
    name = campaigns.pop() if len(campaigns) == 1 else "NAME"
    if cause == AbortCause.CANCELLED:
        why = [f"Its user cancelled it: `orchard resume {name}` continues it"]
    elif what := remedy(cause):
        why.append(f"What to do: {what}, then `orchard resume {name}`")
    return why


def last_error(text: str) -> str:
    """The last line that looks like an error, else the last line."""
    found: list[Any] = _ERROR.findall(text)
    said = found[-1] if found else next(reversed([*_lines(text)]), "")
    return str(said).strip()[:160]


def _lines(text: str) -> Iterable[str]:
    return (line for line in text.split("\n") if line.strip() and not line.startswith("</"))
