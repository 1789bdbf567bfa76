"""The forging tables of tasks that no tests judge, as sections of one page."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.forgery import claw, gui, in_place
from tests.forgery.in_place import DeedTried

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "forgery-in-place.md"
Run = Callable[..., Awaitable[list[DeedTried]]]
SUITES: dict[str, tuple[str, Run]] = {
    "in-place": ("Checks of the sandbox's state", in_place.run),
    "claw": ("Assistants", claw.run),
    "gui": ("Browser agents on generated sites", gui.run),
}
SAFE = ("fresh", "worker")
"""Places of the verdict that an agent cannot reach."""


def try_all(names: Iterable[str], words: Sequence[str], *, concurrency: int) -> bool:
    """Runs the named suites and prints their tables; writes the page if all of all were run. Returns whether
    anything was forged in a safe place, other than by a program that the check executes, or an honest deed
    was refused."""
    chosen = list(names)
    found = {name: asyncio.run(SUITES[name][1](words, concurrency=concurrency)) for name in chosen}
    text = page(found)
    print(text)  # noqa: T201
    if len(chosen) == len(SUITES) and not words:
        PAGE.write_text(text)
    tried = [each for each in (each for suite in found.values() for each in suite) if each.wrong]
    return any(each.deed.honest or (each.place in SAFE and each.layout != "program") for each in tried)


def page(found: dict[str, list[DeedTried]]) -> str:
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    lines = [
        "# Forged rewards of tasks that no tests judge",
        "",
        f"Measured {when} by `python -m tests.forgery {' '.join(found)}`, in real sandboxes, services and "
        "browsers. What the deeds are: `tests/forgery/in_place.py`, `claw.py`, `gui.py`. Every trick knows "
        "the task and how it is judged, and does not do what it asks for; unless it acts by a browser, it is "
        "root in the agent's sandbox.",
        "",
        "Columns are where the verdict is reached: `fresh`, in a fresh sandbox over the agent's files; "
        "`stopped`, in the agent's sandbox without its processes; `agent`, in the agent's sandbox; `worker`, "
        "outside of any sandbox. **forged** is a +1; `forged` the cause of a -1 "
        "for a shell that was replaced.",
    ]
    for name, tried in found.items():
        lines += ["", *_section(SUITES[name][0], tried)]
    return "\n".join(lines) + "\n"


def _section(title: str, tried: Sequence[DeedTried]) -> list[str]:
    places = sorted({each.place for each in tried}, key=("fresh", "stopped", "agent", "worker").index)
    lines = [f"## {title}", "", "| | " + " | ".join(places) + " |", "|---|" + "---:|" * len(places)]
    rows: dict[str, Callable[[DeedTried], bool]] = {
        f"tricks on `{layout}`": lambda each, layout=layout: (  # type: ignore[misc]
            not each.deed.honest and each.layout == layout
        )
        for layout in dict.fromkeys(each.layout for each in tried)
    }
    for row, belongs in rows.items():
        counts = []
        for place in places:
            those = [each for each in tried if belongs(each) and each.place == place]
            counts.append(f"{sum(each.rewarded for each in those)} of {len(those)} forged")
        lines.append(f"| {row} | " + " | ".join(counts) + " |")
    honest = Counter((each.place, each.rewarded) for each in tried if each.deed.honest)
    refused = [f"{honest[place, False]} of {honest[place, False] + honest[place, True]}" for place in places]
    lines.append("| honest refused | " + " | ".join(refused) + " |")
    aborted = [str(sum(each.reward is None for each in tried if each.place == place)) for place in places]
    lines.append("| aborted | " + " | ".join(aborted) + " |")
    lines += ["", "| deed | layout | " + " | ".join(places) + " |", "|---|---|" + "---|" * len(places)]
    by_deed: dict[tuple[str, str, str], dict[str, DeedTried]] = {}
    for each in sorted(tried, key=lambda one: (one.deed.honest, one.deed.family, one.deed.name)):
        by_deed.setdefault((each.deed.family, each.deed.name, each.layout), {})[each.place] = each
    for (family, name, layout), row_of in by_deed.items():
        cells = [_cell(row_of[place]) if place in row_of else "" for place in places]
        lines.append(f"| {family}: {name} | {layout} | " + " | ".join(cells) + " |")
    return lines


def _cell(tried: DeedTried) -> str:
    if tried.reward is None:
        return "**aborted**"
    if tried.rewarded:
        return "rewarded" if tried.deed.honest else "**forged**"
    if tried.deed.honest:
        return "**refused**"
    return f"-1, `{tried.reward.cause}`" if tried.reward.cause else "not solved"
