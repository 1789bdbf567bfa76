"""The funnel over 292,092 synthetic intents, as many as the paper's pool has (a script).

Prints one JSON line for each figure: seconds of wall clock and of processor, and the most memory.
`--distinct` makes every intent its own, which is the worst case of the last stage: nothing is a duplicate.
"""

import argparse
import asyncio
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from orchard.pipelines.domains.gui.funnel.encoders import HashingEncoder
from orchard.pipelines.domains.gui.funnel.run import Funnel
from orchard.pipelines.domains.gui.funnel.stages import Intent, Rules, normal

POOL = 292_092
BENCHMARK, CHILDREN, WEBVOYAGER, LONG_TAIL, DUPLICATES = 0.047, 0.084, 0.0015, 0.449, 0.889
"""Shares that the paper's stages drop, each of what the stage before has left."""
POPULAR = 600
_WORDS = 40_000
_FORMS = (
    "Find the {} {} with a {} below {} dollars on the site",
    "Look up when the {} {} was last {} and name the {}",
    "Compare the {} {} with the {} {} and say which is cheaper",
    "Add a {} {} in {} to the cart and go to the {}",
)


def figure(name: str, value: float, unit: str, goal: float | None = None) -> None:
    """One line, beside its goal."""
    ratio = value / goal if goal else None
    row = {"name": name, "value": round(value, 3), "unit": unit, "ceiling": goal, "ratio": ratio}
    print(json.dumps(row), flush=True)  # noqa: T201


def word(dice: random.Random) -> str:
    """One of many made-up words, the same for the same number."""
    own = random.Random(dice.randrange(_WORDS))
    return "".join(own.choice("bcdfghklmnprstvz") + own.choice("aeiou") for _ in range(own.randint(2, 4)))


def pool(size: int, *, distinct: bool) -> Iterator[Intent]:
    """Intents with the shares of the paper; near duplicates differ in form, or in a last word."""
    dice = random.Random(292092)
    texts: list[str] = []
    for number in range(size):
        draw = dice.random()
        if texts and not distinct and draw < DUPLICATES:
            base = texts[dice.randrange(len(texts))]
            text = dice.choice((base.upper(), f"{base}.", f"  {base}!", f"{base} x"))
        else:
            text = dice.choice(_FORMS).format(*(word(dice) for _ in range(4)))
            texts.append(text)
        if distinct:
            yield Intent(id=str(number), text=text, site="popular-1.test", split="kept")
            continue
        popular = dice.random() >= LONG_TAIL
        yield Intent(
            id=str(number),
            text=f"voyage {number}" if dice.random() < WEBVOYAGER else text,
            site=f"popular-{dice.randrange(POPULAR)}.test"
            if popular
            else f"tail-{dice.randrange(60_000)}.test",
            split="benchmark" if dice.random() < BENCHMARK else "kept",
            parent="p" if dice.random() < CHILDREN else "",
        )


def main() -> None:
    """Make the pool, run the funnel twice (the second time resumes), print the figures."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--size", type=int, default=POOL)
    arguments.add_argument("--distinct", action="store_true")
    given = arguments.parse_args()
    everything = list(pool(given.size, distinct=given.distinct))
    rules = Rules(
        splits=frozenset({"kept"}),
        webvoyager=frozenset(normal(one.text) for one in everything if one.text.startswith("voyage")),
        sites=frozenset(f"popular-{number}.test" for number in range(POPULAR)),
    )
    with tempfile.TemporaryDirectory() as folder:
        funnel = Funnel(rules, HashingEncoder(), Path(folder))
        for what in ("whole", "resumed"):
            wall, cpu = time.perf_counter(), time.process_time()
            found = asyncio.run(funnel.run(everything))
            figure(f"{what}, wall clock", time.perf_counter() - wall, "s", 600.0)
            figure(f"{what}, processor", time.process_time() - cpu, "s")
        for passed in found:
            for step in passed.steps:
                figure(f"{passed.purpose}: after {step.stage}", step.after, "intents")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figure("most memory, the pool included", peak, "GiB", 4.0)


if __name__ == "__main__":
    main()
