"""`python -m tests.benchmarks.distillation --store DIR`: what is a teacher's token worth, in whose states?

Each seed is a run of `examples/distill.toml`: one student, then fine-tuning on its teacher's rollouts,
on-policy distillation and takeover, each with as many of a teacher's tokens. Results are kept by seed, so a
later session goes on; of a seed that was stopped, nothing is made twice while its store is there. The
statistics are over seeds, pairs by seed. The page is written anew after each seed.
"""

import argparse
import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from examples.run import example, run
from orchard.pipelines.campaigns.scores import Score
from tests.benchmarks.over_seeds import over_seeds, paired_over_seeds

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
ARMS = {
    "before": "the student before",
    "imitated": "fine-tuned on the teacher's rollouts",
    "distilled": "scored by the teacher",
    "taken_over": "fine-tuned after takeovers by the oracle",
}
"""Arms and what they are called on the page; the first two are what others are compared with."""
TITLE = "# On-policy distillation and takeover against fine-tuning"
_COLUMNS = ("against before, points", "against fine-tuning, points")
BESIDE = """\
## Looked at on other seeds

A start that solves nothing teaches little about a teacher in the student's own states, so other starts were
tried, one seed each (100 and above, none of which counts above; 28 November 2026):

| the oracle's tokens at the start | passes | held-out pass rate, % |
|---:|---:|---:|
| 12,000; 24,000; 28,000 | 16 | 0; 0; 0 |
| 32,958, all that there are | 12 | 2.5 |
| 32,958 | 16 | 85.0, more than the teacher |

So this student goes from nothing to nearly all within a fifth of the steps, and no start between was found.
On-policy distillation reads each of its tokens once, in 8 steps; fine-tuning 16 times, in some 220.
With 64 updates in place of 8, of three times the learning rate, the policy left its teacher (the divergence
rose from 2.8 to 10.3 nats a token) and still solved nothing.
"""
"""What was seen on seeds that are not of the experiment, and so chose nothing in it."""
SHARED = ("1.", "2.", "3.", "4.")
"""Beginnings of the titles of the steps that all seeds of a store share."""


class SeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """All arms of one seed."""

    seed: int
    settings: dict[str, Any]
    teacher: Score
    scores: dict[str, Score]
    """Score of each arm. Its interval is over tasks: of this policy, not of the arm."""
    tokens: dict[str, int]
    """Tokens of a teacher that trained, by arm."""
    read_tokens: int
    """Tokens that the teacher read to score the student's."""
    seconds: dict[str, float]
    """Seconds of each step of the example."""
    measured: str


async def measured(store: Path, seed: int, changes: dict[str, str]) -> SeedResult:
    """Run one seed to its end."""
    made, values = example("distill", str(store), seed=seed, **changes)
    settings = {name: value for name, value in values.items() if name not in ("store", "directory")}
    values = await run(made, values)
    return SeedResult(
        seed=seed,
        settings=settings,
        teacher=values["teacher"],
        scores={arm: values[arm] for arm in ARMS},
        tokens={
            "imitated": values["imitation_tokens"],
            "distilled": values["scored"],
            "taken_over": values["takeover_tokens"],
        },
        read_tokens=values["read"],
        seconds=made.seconds,
        measured=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def page(results: Sequence[SeedResult]) -> str:
    """The page of these seeds in Markdown."""
    if not results:
        return (
            f"{TITLE}\n\nNo seed has been run yet: `python -m tests.benchmarks.distillation --store DIR`.\n"
        )
    rates = {arm: {one.seed: 100 * one.scores[arm].value for one in results} for arm in ARMS}
    tasks = results[0].scores["before"].tasks
    lines = [
        TITLE,
        "",
        "Written by `python -m tests.benchmarks.distillation --store DIR` from `distillation.json`. A seed",
        "is a run of `examples/distill.toml`: a student begins with a few of the oracle's rollouts and goes",
        "on in three ways, each with as many tokens of a teacher, which is a larger tiny model, and in the",
        f"takeovers the oracle. Each policy tries each of {tasks} held-out tasks once, greedily.",
        "Intervals are 95 % (Student's), and their unit is the seed. The differences are not corrected for",
        "their number.",
        "",
        f"| arm | held-out pass rate, % | {' | '.join(_COLUMNS)} | teacher's tokens |",
        "|---|---:|---:|---:|---:|",
    ]
    for arm, words in ARMS.items():
        cells = [over_seeds(list(rates[arm].values())).shown()]
        for base in ("before", "imitated"):
            apart = arm not in ("before", base)
            cells.append(paired_over_seeds(rates[base], rates[arm]).shown(signed=True) if apart else "")
        tokens = [one.tokens[arm] for one in results if arm in one.tokens]
        cells.append(f"{fmean(tokens):,.0f}" if tokens else "")
        lines.append(f"| {words} | {' | '.join(cells)} |")
    own = [sum(s for title, s in one.seconds.items() if not title.startswith(SHARED)) for one in results]
    days = [one.measured for one in results]
    lines += [
        "",
        f"- Seeds: {', '.join(str(one.seed) for one in results)}, measured {min(days)} to {max(days)}.",
        f"- The teacher solves {100 * results[0].teacher.value:.1f} % of the held-out tasks; seeds share it.",
        "- A teacher's token is one that it said, or one of the student's that it scored. To score them it",
        f"  read {fmean(one.read_tokens for one in results):,.0f} tokens a seed, their contexts included.",
        f"- A seed took {fmean(own) / 60:.1f} minutes beside what all share.",
        "",
        BESIDE,
    ]
    return "\n".join(lines)


def main() -> None:
    """Do what is missing, keep it, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="made, or gone on with")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--most", type=int, help="seeds of this run, so that long ones can be cut in slices")
    parser.add_argument("--results", type=Path, default=RESULTS / "distillation.json")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of a setting of the example")
    options = parser.parse_args()
    found = options.results.read_bytes() if options.results.exists() else b"[]"
    done = msgspec.json.decode(found, type=list[SeedResult])
    missing = [seed for seed in range(options.seeds) if seed not in {one.seed for one in done}]
    _keep(options.results, done)
    for seed in missing[: options.most]:
        changes = dict(change.split("=", 1) for change in options.set)
        done.append(asyncio.run(measured(options.store, seed, changes)))
        done.sort(key=lambda one: one.seed)
        _keep(options.results, done)


def _keep(file: Path, done: list[SeedResult]) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(done), indent=1))
    file.with_suffix(".md").write_text(page(done), encoding="utf-8")


if __name__ == "__main__":
    main()
