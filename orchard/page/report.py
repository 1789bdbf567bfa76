"""Reports: a campaign, a training run or a comparison as a folder of the page's own pages, which opens from
disk and can be mailed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import msgspec

from orchard.actions import rollout as one_rollout
from orchard.actions.campaign_status import CampaignView, recorded
from orchard.actions.rollout_index import INDEXED, RolloutIndex
from orchard.page.compare import ComparedArm, compare, examples, matrix, tallied
from orchard.page.evaluations import evaluated, shown_of
from orchard.page.failures import failures
from orchard.page.folder import KEY, PICTURES, Folder, WrittenReport
from orchard.page.one_campaign import details
from orchard.page.one_file import OneFile
from orchard.page.rollouts import Query, page_of, summary_of
from orchard.page.runs import runs
from orchard.page.side_by_side import aligned, read_both
from orchard.page.tables import SETTINGS
from orchard.page.tasks import listed
from orchard.storage.errors import StorageError
from orchard.storage.reader import open_tables, position

Progress = Callable[[int, int], object]
BYTES = 36_000_000
"""Approximate size of all rollout pages together, small enough to mail."""
MOST_PAIRS = 200
"""Maximum number of gained and lost tasks shown side by side."""
_HEAD, _MARKUP = 13_000, 1_900
"""Bytes around the turns of a rollout, and of a turn's markup."""
_SHORTEST = 100
"""Minimum characters shown of a text."""
_VIEW = one_rollout.RolloutView(window=100_000, others=False)
BATCH = 2_000
"""Maximum messages of the rollouts that one query reads."""
_COPIED = (
    *("messages_all", "llm_calls_all", "rewards_all", "rollouts_all", "requests_all", "values_all"),
    *("service_calls_all", "judgements_all"),
)


class UnknownReport(StorageError):
    """A name that the tables know neither as a campaign nor as a training run."""


@dataclass(frozen=True)
class _Store:
    tables: duckdb.DuckDBPyConnection
    url: str
    campaigns: dict[str, CampaignView]
    out: Path
    mask: int | None

    def folder(self, title: str, nav: Sequence[tuple[str, str]]) -> Folder:
        """The folder, or the file, that is written."""
        made = OneFile if self.out.suffix == ".html" else Folder
        return made(self.url, self.out, title, nav, self.mask)

    def arms(self, campaign: str) -> list[ComparedArm]:
        """Arms of a campaign. Raises UnknownReport."""
        if campaign not in self.campaigns:
            raise UnknownReport(
                f"the tables have no campaign {campaign!r} to compare: `orchard status` lists them"
            )
        return [entry.arm for entry in matrix(self.tables, [campaign])]


def write_report(
    store: str,
    name: str,
    out: Path,
    progress: Progress | None = None,
    second: str | None = None,
    mask: int | None = None,
) -> WrittenReport:
    """Writes pages into the folder `out`, or into one file if its name ends in `.html`: of the campaign or
    training run of this name, or with `second` of two campaigns compared. Keys of known vendors are masked.
    `mask` decides who may read the files.

    Raises UnknownReport, StorageError, and OSError where the folder cannot be written.
    """
    with open_tables(store) as tables:
        for setting in SETTINGS:
            tables.execute(setting)
        index = RolloutIndex(tables)
        try:
            index.follow(position(store))
            views = {view.name: view for view in recorded(tables, INDEXED)}
            known = _Store(tables, store, views, out, mask)
            if second is not None:
                return _comparison(known, name, second, progress)
            if name in known.campaigns:
                return _campaign(known, known.campaigns[name], progress)
            return _run(known, name, progress)
        finally:
            index.close()


def _campaign(known: _Store, view: CampaignView, progress: Progress | None) -> WrittenReport:
    tables, name = known.tables, view.name
    nav = [("Campaign", "/"), ("Rollouts", "/rollouts"), ("Tasks", "/tasks"), ("Compare", "/compare")]
    nav.append(("Failures", "/failures"))
    results = evaluated(tables, name)
    if results is not None:
        nav.append(("Evaluation", f"/evaluations/{quote(name)}"))
    folder = known.folder(name, nav)
    plain = ("index", "compare", "failures", "tasks")
    folder.files |= {"/" if each == "index" else f"/{each}": f"{each}.html" for each in plain}
    folder.files |= {f"/evaluations/{quote(name)}": "evaluation.html"}
    folder.files |= {f"/campaigns/{quote(name)}": "index.html"}
    query = Query.of({"campaign": name})
    pages = list(_rows(tables, query)) or [[]]
    folder.files |= {f"/page/{number}": _listing(number) for number in range(len(pages))}
    folder.files["/rollouts"] = _listing(0)
    folder.begin([row["rollout_id"] for page in pages for row in page])
    _copy(tables, folder.rollouts)
    entries = matrix(tables, [name])
    front = {"view": view, "entries": entries, "details": details(tables, name)}
    shown = folder.scrubbed(front, "index.html")
    folder.save("index.html", "report.html", "/", **shown)
    arms = [entry.arm for entry in entries][1::-1]
    _compared(known, folder, "compare.html", arms if len(arms) == 2 else [], entries, [name])
    found = failures(tables, name, lambda text: folder.scrubbed(text, "failures.html"), narrow=_copied)
    found = folder.scrubbed(found, "failures.html")
    folder.save("failures.html", "failures.html", "/failures", found=found, campaign=name)
    tasks = listed(tables, name, "", "hardest", 0, limit=10_000)
    shown = {"found": tasks, "part": "", "sort": "hardest", "skip": 0, "campaign": name, "tasks_made": None}
    folder.save("tasks.html", "tasks.html", "/tasks", **folder.scrubbed(shown, "tasks.html"))
    if results is not None:
        evaluation = folder.scrubbed(shown_of(*results), "evaluation.html")
        path = f"/evaluations/{quote(name)}"
        folder.save("evaluation.html", "evaluation.html", path, found=evaluation, campaign=name)
    summary = summary_of(tables, query)
    for number, page in enumerate(pages):
        shown = {"rows": page, "number": number, "pages": len(pages), "summary": summary, "query": None}
        shown = folder.scrubbed(shown, _listing(number))
        folder.save(_listing(number), "report_rollouts.html", "/rollouts", **shown)
    _rollouts(tables, folder, progress)
    return folder.finish()


def _run(known: _Store, name: str, progress: Progress | None) -> WrittenReport:
    found = runs(known.tables, [name])
    if found.chosen != [name]:
        raise UnknownReport(
            f"the tables have neither a campaign nor a training run {name!r}: `orchard status` lists "
            'campaigns, `orchard sql "select distinct run from training"` runs of fine-tuning'
        )
    folder = known.folder(name, [("Run", "/runs")])
    folder.files["/runs"] = "index.html"
    members = {member["rollout_id"]: None for group in found.groups for member in group["members"] or ()}
    asked = known.tables.execute(
        "select rollout_id from indexed.asked where list_contains($ids, rollout_id)", {"ids": list(members)}
    )
    there = {row[0] for row in asked.fetchall()}
    folder.begin([member for member in members if member in there])
    _copy(known.tables, folder.rollouts)
    found = replace(found, runs=[row for row in found.runs if row["run"] == name])
    folder.save("index.html", "runs.html", "/runs", found=folder.scrubbed(found, "index.html"))
    _rollouts(known.tables, folder, progress)
    return folder.finish()


def _comparison(known: _Store, first: str, second: str, progress: Progress | None) -> WrittenReport:
    """Compares the arms of two campaigns that share harness and model, else the only arm of each."""
    arms = [known.arms(first), known.arms(second)]
    if not all(arms):
        raise UnknownReport(f"no rollout of {first if not arms[0] else second} has ended: compare them later")
    alike = [(a, b) for a in arms[0] for b in arms[1] if (a.harness, a.model) == (b.harness, b.model)]
    if not alike and max(map(len, arms)) > 1:
        each = "; ".join(f"{arm.campaign}: {arm.harness} with {arm.model}" for some in arms for arm in some)
        raise UnknownReport(
            f"{first} and {second} have several arms and share none ({each}): choose two of them on the page "
            "Compare of `orchard ui`"
        )
    alike = alike or [(arms[0][0], arms[1][0])]
    names = ["index.html", *(f"compare-{number}.html" for number in range(2, len(alike) + 1))]
    nav = [(f"{a.harness} · {a.model}", f"/compare/{number}") for number, (a, _) in enumerate(alike)]
    folder = known.folder(f"{first} and {second}", nav)
    folder.files |= {f"/compare/{number}": file for number, file in enumerate(names)}
    beside = _examples(known, alike)
    folder.files |= {address: f"beside/{number}.html" for number, address in enumerate(beside)}
    folder.begin(list(dict.fromkeys(each for both in beside.values() for each in both)))
    _copy(known.tables, folder.rollouts)
    for number, (both, file) in enumerate(zip(alike, names, strict=True)):
        entries = [
            entry for arm in both for entry in matrix(known.tables, [arm.campaign]) if entry.arm == arm
        ]
        _compared(known, folder, file, both, entries, [], f"/compare/{number}")
    for address, (left, right) in beside.items():
        file = folder.files[address]
        found = read_both(known.tables, left, right, 0, beyond=KEY, narrow=_copied)
        shown = aligned(*folder.scrubbed(found, file), 0, folder.renderer, folder.blobs)
        folder.save(file, "beside.html", "/beside", found=shown)
    _rollouts(known.tables, folder, progress)
    return folder.finish()


def _examples(known: _Store, pairs: Sequence[tuple[ComparedArm, ComparedArm]]) -> dict[str, tuple[str, str]]:
    """Address of each task gained or lost to the rollouts that show it."""
    found: dict[str, tuple[str, str]] = {}
    for first, second in pairs:
        result = compare(*(tallied(known.tables, arm) for arm in (first, second)))
        for changed in (*result.gained, *result.lost) if result else ():
            both = examples(known.tables, first, second, changed.task_id)
            if both is not None and len(found) < MOST_PAIRS:
                found[changed.beside(first, second)] = both
    return found


def _compared(
    known: _Store,
    folder: Folder,
    file: str,
    arms: Sequence[ComparedArm],
    entries: Sequence[Any],
    campaigns: Sequence[str],
    path: str = "/compare",
) -> None:
    result = compare(*(tallied(known.tables, arm) for arm in arms)) if arms else None
    chosen = list(arms) if result else []
    shown = {"entries": list(entries), "arms": list(arms), "chosen": chosen, "result": result}
    folder.save(file, "compare.html", path, campaigns=campaigns, pairs=[], **folder.scrubbed(shown, file))


def _copy(tables: duckdb.DuckDBPyConnection, rollouts: Sequence[str]) -> None:
    """Copies the rows of these rollouts into tables of their own, sorted by rollout for fast reads."""
    tables.execute(
        "create or replace table indexed.reported as select unnest($ids::varchar[]) as rollout_id",
        {"ids": list(rollouts)},
    )
    for name in _COPIED:
        tables.execute(
            f"create table indexed.{name} as select * from tables.{name} semi join indexed.reported "
            "using (rollout_id) order by rollout_id, sequence"
        )
        tables.execute(f"create or replace view tables.{name} as select * from indexed.{name}")


def _rows(tables: duckdb.DuckDBPyConnection, query: Query) -> Iterator[list[dict[str, Any]]]:
    while True:
        page = page_of(tables, query)
        if page.rows:
            yield page.rows
        if page.next is None:
            return
        query = replace(query, after=tuple(msgspec.json.decode(page.next)))


def _rollouts(tables: duckdb.DuckDBPyConnection, folder: Folder, progress: Progress | None) -> None:
    """Writes a page for each rollout, all together of about BYTES."""
    count = len(folder.rollouts)
    asked = "select rollout_id, count(*) from tables.messages_all group by rollout_id"
    messages: dict[str, int] = dict(tables.execute(asked).fetchall())
    done = 0
    for some in _batches(sorted(folder.rollouts), messages):
        views = {name: _view(BYTES // count, messages.get(name, 0)) for name in some}
        most = replace(_VIEW, text=max(view.text for view in views.values()), beyond=KEY)
        for found in one_rollout.read_all(tables, some, most, narrow=_copied):
            page = f"rollouts/{found.id}.html"
            folder.room += PICTURES // count
            shown = folder.renderer.rollout(
                folder.scrubbed(found, page), views[found.id], folder.blobs, BYTES // count // 4
            )
            folder.save(page, "rollout.html", f"/rollouts/{found.id}", **shown)
            done += 1
            if progress is not None:
                progress(done, count)


def _batches(rollouts: Sequence[str], messages: Mapping[str, int]) -> Iterator[list[str]]:
    """Splits rollouts into batches of at most BATCH messages, or one rollout."""
    some, size = list[str](), 0
    for name in rollouts:
        if some and size + messages.get(name, 0) > BATCH:
            yield some
            some, size = [], 0
        some.append(name)
        size += messages.get(name, 0)
    if some:
        yield some


def _view(room: int, messages: int) -> one_rollout.RolloutView:
    """View whose texts are cut so that the page has about `room` bytes."""
    each = (room - _HEAD - _MARKUP * (messages // 2)) // max(2 * messages, 1)
    return replace(_VIEW, text=min(max(each, _SHORTEST), one_rollout.TEXT))


def _copied(_: duckdb.DuckDBPyConnection, query: str, *__: int) -> str:
    """Replaces `within` for the tables that `_copy` made: they hold nothing else, so the query stays as it
    is."""
    return query


def _listing(number: int) -> str:
    return "rollouts.html" if number == 0 else f"rollouts-{number + 1}.html"
