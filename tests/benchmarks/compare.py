"""`make bench-compare ARGS="A B"`: what moved between the results of two commits, beyond their spread.

A and B are git revisions whose docs/benchmarks/results are compared; `.` is the working tree. Ratios to
ceilings of the same run are compared, and values where there is no ceiling. A figure has moved where the
ranges of its rounds do not meet; one that was measured once has no range, and is shown apart where it differs
by a tenth or more.
"""

import argparse
import subprocess
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from tests.benchmarks.run import Figure, Range, Result, git, number, read_results

DIFFERS = 0.1
"""Share from which a figure without a range is shown."""


class Move(NamedTuple):
    benchmark: str
    figure: str
    before: Figure
    after: Figure
    sure: bool
    """Whether the ranges of the rounds are known, and do not meet."""

    @property
    def share(self) -> float:
        before = self.before.compared
        return self.after.compared / before - 1 if before else float("inf")


def results_at(revision: str) -> dict[str, Result]:
    """Results by benchmark. Raises ValueError for a revision that has none."""
    if revision == ".":
        found = read_results()
    else:
        try:
            files = git("ls-tree", "--name-only", revision, "docs/benchmarks/results/").split()
        except subprocess.CalledProcessError as error:
            raise ValueError(
                f"{revision!r} is no revision of this repository: {error.stderr.strip()}"
            ) from None
        found = [
            msgspec.json.decode(git("show", f"{revision}:{file}"), type=Result)
            for file in files
            if file.endswith(".json")
        ]
    if not found:
        raise ValueError(f"{revision} has no docs/benchmarks/results: choose a commit after `make bench`")
    return {result.benchmark: result for result in found}


def moves(before: Mapping[str, Result], after: Mapping[str, Result]) -> Iterator[Move]:
    """Yields the figures of both that moved, or may have."""
    for name, new in after.items():
        olds = {figure.key: figure for figure in before[name].figures} if name in before else {}
        for figure in new.figures:
            old = olds.get(figure.key)
            if old is None or (old.ratio is None) != (figure.ratio is None):
                continue
            sure = old.spread is not None and figure.spread is not None
            move = Move(name, figure.name, old, figure, sure)
            if not _meet(_range(old), _range(figure)) if sure else abs(move.share) >= DIFFERS:
                yield move


def _range(figure: Figure) -> Range:
    return figure.spread or Range(figure.compared, figure.compared)


def _meet(one: Range, other: Range) -> bool:
    return one.least <= other.most and other.least <= one.most


def main() -> None:
    """Print the figures that moved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", help="revision, as HEAD~10")
    parser.add_argument("after", help="revision, or `.` for the working tree")
    given = parser.parse_args()
    try:
        found = list(moves(results_at(given.before), results_at(given.after)))
    except ValueError as error:
        parser.error(str(error))
    console = Console()
    for sure, title in (
        (True, "moved beyond the spread"),
        (False, "differ, measured once (run with --rounds 3)"),
    ):
        table = Table("benchmark", "figure", "compared", given.before, given.after, "change", title=title)
        for move in found:
            if move.sure == sure:
                kind = move.before.unit if move.before.ratio is None else "ratio"
                sides = [number(figure.compared) for figure in (move.before, move.after)]
                table.add_row(move.benchmark, move.figure, kind, *sides, f"{move.share:+.0%}")
        console.print(table if table.row_count else f"{title}: none")


if __name__ == "__main__":
    main()
