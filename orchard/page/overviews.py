"""Routes of the pages for tasks, comparisons, failures, runs and health."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from aiohttp import web

from orchard.page import texts
from orchard.page.campaigns import PATIENCE_SECONDS
from orchard.page.compare import (
    ComparedArm,
    against,
    compare,
    default_arms,
    examples,
    matrix,
    tallied,
    together,
)
from orchard.page.evaluations import Evaluation, evaluated, known_evaluations, shown_of
from orchard.page.failures import failures
from orchard.page.health import heard, recorded
from orchard.page.notes import author_of
from orchard.page.one_campaign import details
from orchard.page.rollouts import BadFilter
from orchard.page.runs import runs
from orchard.page.side_by_side import aligned, read_both
from orchard.page.tasks import SORTS, known, listed
from orchard.pipelines.tasks.registry import read_tasks
from orchard.schemas.tasks import Task, judging_tests
from orchard.storage.errors import StorageError
from orchard.streams.errors import StreamsError
from orchard.workers.masking import masked

if TYPE_CHECKING:
    from orchard.page.server import PageSite


MOST_PAIRS = 12
"""Maximum number of chosen arms that are all compared with the first."""


class Overviews:
    def __init__(self, site: "PageSite") -> None:
        self._site = site
        self._evaluations: dict[str, tuple[int, Evaluation]] = {}
        """Evaluations by campaign, with the sequence at which they were read: reading many cells is slow."""

    def register(self, app: web.Application) -> None:
        for path, view, _ in VIEWS:
            app.router.add_get(path, partial(view, self))

    async def campaign(self, request: web.Request) -> web.Response:
        """Shows one campaign: its arms, why rollouts aborted, its worst rollouts and its hardest tasks."""
        name, overview = request.match_info["name"], await self._site.watch.newest()
        view = next((view for view in overview.campaigns if view.name == name), None)
        if view is None:
            raise web.HTTPNotFound
        entries = await self._site.tables.ask(matrix, [name])
        shown = {"view": view, "overview": overview, "entries": entries, "score": view.score}
        shown["details"] = await self._site.tables.ask(details, name)
        live = ("version", overview.version)
        return await self._site.page(
            request, "one_campaign.html", **shown, author=author_of(request), live=live
        )

    async def tasks(self, request: web.Request) -> web.Response:
        """Lists tasks by pass rate."""
        sort = request.query.get("sort", "hardest")
        if sort not in SORTS:
            raise BadFilter(f"sort {sort[:40]!r} is unknown: choose one of {', '.join(SORTS)}")
        part, skip = request.query.get("part", ""), number(request, "skip") or 0
        campaign, live = request.query.get("campaign") or None, await self._site.live_log()
        found = await self._site.tables.ask(listed, campaign, part, sort, skip)
        shown = {"found": found, "part": part, "sort": sort, "skip": skip, "campaign": campaign}
        shown["tasks_made"] = await self._site.tasks_made(await self._site.watch.newest())
        return await self._site.page(request, "tasks.html", **shown, live=live)

    async def task(self, request: web.Request) -> web.Response:
        name, live = request.match_info["id"], await self._site.live_log()
        found = await self._site.tables.ask(known, name)
        if found.task is None and not found.cells:
            raise web.HTTPNotFound
        asked = await asyncio.to_thread(self._asked, name)
        return await self._site.page(request, "task.html", found=found, task_id=name, **asked, live=live)

    def _asked(self, task_id: str) -> Mapping[str, Any]:
        """Statement, tests and solution with keys masked; empty if the blob cannot be read."""
        try:
            (task,) = read_tasks(self._site.session.config.store, ids=[task_id])
        except (StorageError, ValueError):
            return {"statement": None, "task": None, "patch": [], "tests": []}
        return {
            "statement": texts.markdown(masked(task.statement.strip()).text)
            if task.statement.strip()
            else None,
            "task": task,
            "patch": texts.diff(masked(task.gold_patch).text) if task.gold_patch.strip() else [],
            "tests": _tests(task),
        }

    async def compare(self, request: web.Request) -> web.Response:
        """Compares two arms, and shows the matrix of all."""
        campaigns = [name for name in request.query.getall("campaign", []) if name]
        live = await self._site.live_log()
        found = await self._site.tables.ask(matrix, campaigns)
        arms = [entry.arm for entry in found]
        given = [ComparedArm.of(request.query[name]) for name in ("a", "b") if request.query.get(name)]
        chosen, passed = tuple(given), 0
        overview = await self._site.watch.newest()
        unfinished = {view.name: view for view in overview.campaigns if not view.over}
        if len(chosen) != 2:
            common = await self._site.tables.ask(together, campaigns)
            chosen, passed = default_arms(arms, common, list(unfinished))
        result, pairs = None, []
        if len(chosen) == 2:
            both = [await self._site.tables.ask(tallied, arm) for arm in chosen]
            result = await asyncio.to_thread(compare, *both)
        if campaigns and chosen and 2 < len(arms) <= MOST_PAIRS:
            pairs = await self._site.tables.ask(against, chosen[0], arms)
        every = arms if not campaigns else [e.arm for e in await self._site.tables.ask(matrix)]
        shown = {"entries": found, "arms": every, "chosen": chosen, "result": result, "pairs": pairs}
        shown |= {"campaigns": campaigns, "passed": passed}
        shown["unfinished"] = [
            unfinished[name] for name in {arm.campaign: 0 for arm in chosen} if name in unfinished
        ]
        return await self._site.page(request, "compare.html", **shown, live=live)

    async def failures(self, request: web.Request) -> web.Response:
        campaign, live = request.query.get("campaign") or None, await self._site.live_log()
        found = await self._site.tables.ask(failures, campaign)
        return await self._site.page(request, "failures.html", found=found, campaign=campaign, live=live)

    async def runs(self, request: web.Request) -> web.Response:
        overview = await self._site.watch.newest()
        live = ("version", overview.version)
        found = await self._site.tables.ask(
            runs, request.query.getall("run", []), number(request, "before"), request.query.get("step", "")
        )
        return await self._site.page(request, "runs.html", found=found, live=live)

    async def beside(self, request: web.Request) -> web.Response:
        """Shows two rollouts side by side: given ids, or examples for a task and two arms."""
        if task := request.query.get("task"):
            arms = [ComparedArm.of(request.query.get(side, "")) for side in ("a", "b")]
            shown = await self._site.tables.ask(examples, *arms, task)
            if shown is None:
                raise web.HTTPNotFound
            raise web.HTTPFound("/beside?" + urlencode({"a": shown[0], "b": shown[1]}))
        names = [await self._site.rollout_id(request.query.get(side, "")) for side in ("a", "b")]
        turn = number(request, "turn") or 0
        both = await self._site.tables.ask(read_both, *names, turn)
        renderer, blobs = self._site.renderer, self._site.session.blobs
        found = await asyncio.to_thread(aligned, *both, turn, renderer, blobs)
        return await self._site.page(request, "beside.html", found=found)

    async def evaluations(self, request: web.Request) -> web.Response:
        live = await self._site.live_log()
        found = await self._site.tables.ask(known_evaluations)
        return await self._site.page(request, "evaluations.html", found=found, live=live)

    async def evaluation(self, request: web.Request) -> web.Response:
        """Shows an evaluation's matrix and the tables of `orchard eval report`."""
        name, live = request.match_info["campaign"], await self._site.live_log()
        at, shown = self._evaluations.get(name, (-1, None))
        if shown is None or at != live[1]:
            found = await self._site.tables.ask(evaluated, name)
            if found is None:
                raise web.HTTPNotFound
            shown = await asyncio.to_thread(shown_of, *found)
            self._evaluations[name] = live[1], shown
        return await self._site.page(request, "evaluation.html", found=shown, campaign=name, live=live)

    async def health(self, request: web.Request) -> web.Response:
        """Shows processes, lag, dead letters and endpoints."""
        overview = await self._site.watch.newest()
        live = ("version", overview.version)
        found = await self._site.tables.ask(recorded, self._site.tables.reached)
        if (connection := self._site.watch.connection) is not None:
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    found = await heard(found, connection)
            except (StreamsError, TimeoutError):
                overview = await self._site.watch.newest()
        shown = {"found": found, "overview": overview, "tasks_made": await self._site.tasks_made(overview)}
        return await self._site.page(request, "health.html", **shown, live=live)


VIEWS = (
    ("/campaigns/{name:.+}", Overviews.campaign, ""),
    ("/tasks", Overviews.tasks, "Tasks"),
    ("/tasks/{id:.+}", Overviews.task, ""),
    ("/compare", Overviews.compare, "Compare"),
    ("/beside", Overviews.beside, ""),
    ("/failures", Overviews.failures, "Failures"),
    ("/evaluations", Overviews.evaluations, "Evaluations"),
    ("/evaluations/{campaign:.+}", Overviews.evaluation, ""),
    ("/runs", Overviews.runs, "Runs"),
    ("/status", Overviews.health, "Health"),
)
"""Routes of the views, each with its title in the navigation; empty for none."""
NAV = (("Campaigns", "/"), ("Rollouts", "/rollouts"), *((title, path) for path, _, title in VIEWS if title))


def _tests(task: Task) -> list[tuple[str, tuple[str, ...]]]:
    fail_to_pass, pass_to_pass = judging_tests(task.grading)
    listed = [("fail to pass", fail_to_pass), ("pass to pass", pass_to_pass)]
    return listed if fail_to_pass or pass_to_pass else []


def number(request: web.Request, name: str) -> int | None:
    """Parses a query parameter as a whole number; None without it. Raises BadFilter."""
    given = request.query.get(name, "")
    if not given:
        return None
    if not given.isdecimal() or len(given) > 15:
        raise BadFilter(f"{name} is {given[:40]!r}: write a whole number of at most 15 digits")
    return int(given)
