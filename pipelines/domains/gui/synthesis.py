"""Tasks on generated sites: drawn from a seed, each with its records at the end, so that nothing is judged
by eye."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import msgspec

from orchard.schemas.gui import NAME, Fault, SiteGrading, SiteName, SiteSpec
from orchard.schemas.identity import digest
from orchard.schemas.tasks import PluginGrading, Task, WorldUse
from orchard.workers.domains.gui.sites.appearance import Split, appearance_names
from orchard.workers.domains.gui.sites.catalog import content_of
from orchard.workers.domains.gui.sites.goals import NoGoal, goal_of, kinds_of

SITES: tuple[str, ...] = tuple(name for name in get_args(SiteName) if name != "tiny")
"""Sites that tasks are made on, unless they are named; `tiny` is for tiny policies alone."""
IMAGE = "host"
"""Image of the sandbox: it has Chromium."""
MEMORY = "2Gi"
WORLD = "browser"
_TRIES = 50


def synthesize(
    seed: int,
    count: int,
    *,
    sites: Sequence[str] = SITES,
    split: Split = "train",
    kinds: Sequence[str] = (),
    faults: Sequence[Fault] = (),
) -> Iterator[Task]:
    """`count` tasks: sites and kinds in turn, layout and theme of the split, contents that no other split
    has.

    With `faults` each task's site has one of them: each site has all in turn. Raises ValueError for a
    site without a kind to choose.
    """
    chosen = {site: [kind for kind in kinds_of(site) if not kinds or kind in kinds] for site in sites}
    if bad := [site for site, found in chosen.items() if not found]:
        raise ValueError(f"{', '.join(bad)} has no task of the kinds {', '.join(kinds)}: choose others")
    for number in range(count):
        dice = random.Random(f"{split}-{seed}-{number}")
        site = sites[number % len(sites)]
        kind = chosen[site][number // len(sites) % len(chosen[site])]
        fault = faults[(number // len(sites)) % len(faults)] if faults else None
        yield _task(dice, site, kind, split, fault)


def _task(dice: random.Random, name: str, kind: str, split: Split, fault: Fault | None) -> Task:
    layouts, themes = appearance_names(name, split)
    for _ in range(_TRIES):
        # Contents of the splits differ, whatever the seeds: those to measure on are odd.
        seed = dice.randrange(2**30) * 2 + (split == "held-out")
        layout, theme = dice.choice(sorted(layouts)), dice.choice(sorted(themes))
        site = msgspec.convert(
            {"name": name, "seed": seed, "layout": layout, "theme": theme, "fault": fault}, SiteSpec
        )
        try:
            return task_of(site, kind, split)
        except NoGoal:
            continue
    raise ValueError(f"no task {kind} in {_TRIES} contents")


def task_of(site: SiteSpec, kind: str, split: Split = "train") -> Task:
    """The task of that kind on a site. Raises NoGoal."""
    goal = goal_of(site, kind)
    content = content_of(site)
    expected = SiteGrading(site=site, goal=kind, records=goal.records, answer=goal.answer)
    screen = {"browser": {"width": content.screen[0], "height": content.screen[1]}} if content.screen else {}
    settings: dict[str, Any] = {
        "start_url": f"http://{content.host}/",
        "site": msgspec.to_builtins(site),
        **screen,
    }
    return Task(
        task_id=f"{kind.replace('.', '-')}-{digest([site, kind], 12)}",
        source=NAME,
        repo=site.name,
        image=IMAGE,
        statement=goal.statement,
        grading=PluginGrading(grader=NAME, settings=msgspec.to_builtins(expected), in_place=True),
        workdir="/tmp",
        memory=MEMORY,
        labels={
            "site": site.name,
            "goal": kind,
            "layout": site.layout,
            "theme": site.theme,
            "split": split,
            **({"fault": site.fault} if site.fault else {}),
        },
        world=WorldUse(kind=WORLD, settings=settings),
    )
