"""Whether tests that pass tell right answers from wrong ones, asked before any +1 (decision 22)."""

import asyncio
import random
from collections.abc import Mapping, Sequence

import msgspec

from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.canaries.mutants import MutantCopies, MutantSite, copies
from orchard.workers.domains.swe.testing import Answers, Count, RunnerPlan
from orchard.workers.episode.machine import FileTooLarge, Machine

MOST_COPIES, LEAST_COPIES = 32, 8
"""Copies of a test that must come to pass: a guess at the right constant has one chance in so many."""

SECONDS = 30.0
"""Aim for all copies of the tests that must come to pass, and as much for those that must stay, by the time
that the task's own run took: slow tests have fewer copies, and of tests that must stay a sample."""

LEAST_SAMPLE, MOST_SAMPLE, SAMPLE_COPIES = 8, 64, 4
"""Tests that must stay, of which copies are made, and of each how many."""

LIMIT, SHARE = 1200.0, 0.5
"""Seconds, and share of the time left, for a submission's copies at most; the gold patch has half of it."""

TOLERATED = 0.2
"""An assertion that can only be turned around may be answered wrongly in so many of its copies, for the sake
of tests that are not quite steady; who guesses is wrong in half."""


class Canaries(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of the tests that a solution must make pass, and of a sample of those that it must not break."""

    texts: dict[str, tuple[str, ...]]
    """By the file whose copies they are."""
    sites: dict[str, MutantSite]
    """By name, over all files; `test` is the task's id of it without parameters."""
    without: tuple[str, ...]
    """Ids of tests that must come to pass in which nothing can be changed."""


def number_of_copies(seconds: float) -> int:
    """Of a test that must come to pass, where the run of all takes `seconds` as the task has it."""
    return max(LEAST_COPIES, min(MOST_COPIES, int(SECONDS / max(seconds, 0.1))))


def size_of_sample(seconds: float, tests: int) -> int:
    """How many of so many tests that must stay are asked, where the run of all takes `seconds`."""
    affordable = int(tests * SECONDS / (SAMPLE_COPIES * max(seconds, 0.1)))
    return min(tests, max(LEAST_SAMPLE, min(MOST_SAMPLE, affordable)))


async def canaries_of(
    grading: SWETests, plan: RunnerPlan, machine: Machine, task: Task, seconds: float
) -> Canaries:
    """Copies made of the tests as they lie in a machine where no submitted code has run yet.

    Raises the machine's InfrastructureError.
    """
    dice = random.SystemRandom()
    kept = sorted({(plan.names[test].file, plan.names[test].qualified) for test in grading.pass_to_pass})
    must = {(plan.names[test].file, plan.names[test].qualified) for test in grading.fail_to_pass}
    wanted: dict[str, dict[str, int]] = {}
    for file, test in dice.sample(kept, size_of_sample(seconds, len(kept))):
        wanted.setdefault(file, {})[test] = SAMPLE_COPIES
    for file, test in sorted(must):
        wanted.setdefault(file, {})[test] = number_of_copies(seconds)
    texts: dict[str, tuple[str, ...]] = {}
    sites: dict[str, MutantSite] = {}
    lost: set[tuple[str, str]] = set()
    for file, tests in sorted(wanted.items()):
        try:
            source = (await machine.read(f"{task.workdir}/{file}")).decode()
        except (FileNotFoundError, FileTooLarge, UnicodeDecodeError):
            made: MutantCopies | None = None
        else:
            made = await asyncio.to_thread(copies, source, tests, dice)
        lost |= {(file, test) for test in (tests if made is None else made.without)}
        if made is not None and made.sites:
            texts[file] = made.texts
            sites |= {
                name: msgspec.structs.replace(site, test=f"{file}::{site.test}")
                for name, site in made.sites.items()
            }
    without = tuple(
        test for test in grading.fail_to_pass if (plan.names[test].file, plan.names[test].qualified) in lost
    )
    return Canaries(texts=texts, sites=sites, without=without)


def evidence(sites: Mapping[str, MutantSite], submitted: Answers, gold: Answers) -> set[str]:
    """Sites at which the submission does not tell right from wrong, though the gold patch does, in all that
    it had time for: half of what the submission had, so that one that is no slower answers as much."""
    found = set()
    for name, site in sites.items():
        asked = [at for at in range(len(site.right)) if (name, at) in gold.counts]
        if not asked or (gold.ended and len(asked) < len(site.right)):
            continue
        right = not _is_suspicious(name, site, gold.counts, asked)
        if right and _is_suspicious(name, site, submitted.counts, asked):
            found.add(name)
    return found


def suspicious(sites: Mapping[str, MutantSite], answers: Answers) -> set[str]:
    """Sites at which the tested code does not tell right from wrong: it disagrees with the right constant, or
    agrees with a wrong one."""
    return {
        name
        for name, site in sites.items()
        if _is_suspicious(name, site, answers.counts, range(len(site.right)))
    }


def _is_suspicious(
    name: str, site: MutantSite, counts: Mapping[tuple[str, int], Count], asked: Sequence[int]
) -> bool:
    wrong = [at for at in asked if not _is_right(counts.get((name, at)), site.right[at], site.rows)]
    return len(wrong) > (TOLERATED * len(asked) if site.halves else 0)


def _is_right(count: Count | None, right: int, rows: int) -> bool:
    """Whether so many of the rows held; where none should, it need not have been met."""
    if count is None or not count.hits:
        return right == 0
    return count.hits * rows == right * (count.hits + count.misses)
