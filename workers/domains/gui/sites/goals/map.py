"""Tasks on the site `map`."""

import random

from orchard.schemas.gui import ExpectedAnswer
from orchard.workers.domains.gui.sites.map import MODES, MapSite
from orchard.workers.domains.gui.sites.solving import (
    Goal,
    Maker,
    Scene,
    SolutionStep,
    View,
    click,
    done,
    pick,
    scene,
)


def _pin(which: str, place: str) -> SolutionStep:
    def there(view: View) -> bool:
        shown = view.find(f"at:{which}")
        return shown is not None and shown.value == place

    return SolutionStep(do="drag", key=f"pin:{which}", to=f"place:{place}", unless=there)


def _planned(start: str, end: str, mode: str, *steps: SolutionStep) -> tuple[Scene, ...]:
    return (
        scene(f"route:{start}:{end}:{mode}", *steps),
        scene("plan", _pin("start", start), _pin("end", end), pick(f"mode:{mode}"), click("route")),
        scene("route:*", _pin("start", start), _pin("end", end), pick(f"mode:{mode}"), click("route")),
        scene("*", click("plan")),
    )


def save(planner: MapSite, dice: random.Random) -> Goal:
    start, end = dice.sample(sorted(planner.places), 2)
    mode = dice.choice(sorted(MODES))
    return _saved(planner, f"Plan a route by {mode} from {start} to {end}, and save it.", start, end, mode)


def _saved(planner: MapSite, statement: str, start: str, end: str, mode: str) -> Goal:
    planner.saved.append({"start": start, "end": end, "mode": mode})

    def saved(view: View) -> bool:
        return planner.saved[0] in view.records.get("saved", [])

    return Goal(
        statement=statement,
        records=planner.records(),
        scenes=(
            scene("saved", click("plan", unless=saved), done("It is saved.")),
            *_planned(start, end, mode, click("save")),
        ),
    )


def minutes(planner: MapSite, dice: random.Random) -> Goal:
    start, end = dice.sample(sorted(planner.places), 2)
    mode = dice.choice(sorted(MODES))
    right = planner.minutes(start, end, mode)
    others = {str(planner.minutes(start, end, each)) for each in MODES} - {str(right)}
    return Goal(
        statement=(
            f"How many minutes does it take from {start} to {end} by {mode}? Answer with the number alone."
        ),
        records=planner.records(),
        answer=ExpectedAnswer(value=str(right), others=tuple(sorted(others))),
        scenes=_planned(start, end, mode, done(str(right))),
    )


def faster(planner: MapSite, dice: random.Random) -> Goal:
    start, end = dice.sample(sorted(planner.places), 2)
    one, two = dice.sample(sorted(MODES), 2)
    times = {each: planner.minutes(start, end, each) for each in (one, two)}
    mode = min(times, key=lambda each: (times[each], each))
    if times[one] == times[two]:
        return save(planner, dice)
    statement = f"Save the route from {start} to {end} by {one} or by {two}, whichever takes less time."
    return _saved(planner, statement, start, end, mode)


def order(planner: MapSite, dice: random.Random) -> Goal:
    stop, first = dice.choice(planner.tour[1:-1]), dice.random() < 0.5
    rest = [each for each in planner.tour if each != stop]
    beside = rest[0] if first else rest[-1]
    planner.tour = [stop, *rest] if first else [*rest, stop]
    wanted = list(planner.tour)

    def shown(view: View) -> bool:
        stops = [each for each in view.elements if each.key.startswith("stop:")]
        return [each.key for each in sorted(stops, key=lambda each: each.y)] == [
            f"stop:{each}" for each in wanted
        ]

    return Goal(
        statement=(
            f"In my tour, put {stop} {'first' if first else 'last'}; leave the others in their order. "
            "Save it."
        ),
        records=planner.records(),
        scenes=(
            scene(
                "tour",
                done("It is saved.", lambda view: view.records.get("tour") == wanted),
                SolutionStep(
                    do="drag", key=f"stop:{stop}", to=f"stop:{beside}", side=-1 if first else 1, unless=shown
                ),
                click("keep"),
            ),
            scene("*", click("tour")),
        ),
    )


MAKERS: dict[str, Maker] = {"save": save, "minutes": minutes, "faster": faster, "order": order}
