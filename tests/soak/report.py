"""The soak's record as a page for people."""

from collections.abc import Sequence

from tests.benchmarks.run import machine
from tests.soak.record import Record

GROWTH_LIMIT = 12.0
"""MiB by which a process's floor may rise in its longest life before it counts as a leak."""


def floors(record: Record) -> dict[str, tuple[float, float, int]]:
    """For each process name: the least MiB at a rest in either half of its longest life, and the rests.

    What passes through a process makes it larger and smaller again; what leaks raises what it falls back to.
    """
    lives: dict[tuple[str, float], list[float]] = {}
    for rest in record.checkpoints:
        for name, held in rest.holds.items():
            lives.setdefault((name, held["pid"]), []).append(held["resident MiB"])
    best: dict[str, list[float]] = {}
    for (name, _), sizes in lives.items():
        if len(sizes) >= max(2, len(best.get(name, []))):
            best[name] = sizes
    return {
        name: (min(sizes[: len(sizes) // 2]), min(sizes[len(sizes) // 2 :]), len(sizes))
        for name, sizes in best.items()
    }


def judge_memory(record: Record) -> None:
    """Find a process that grew over its longest life."""
    for name, (early, late, rests) in floors(record).items():
        if late - early > GROWTH_LIMIT:
            record.find(f"the floor of {name} rose from {early:.1f} to {late:.1f} MiB over {rests} rests")


def page(records: Sequence[Record], command: str, when: str) -> str:
    """Markdown."""
    lines = ["# Soak of the sandbox service", "", f"Run {when} by `{command}`.", ""]
    lines += [f"- {key}: {value}" for key, value in machine().items()]
    for record in records:
        lines += ["", *_section(record)]
    return "\n".join(lines) + "\n"


def _section(record: Record) -> list[str]:
    faults = sum(record.faults.values())
    errors = sum(record.errors.values())
    lines = [
        f"## {record.leg}: {len(record.findings)} broken promises",
        "",
        f"{record.seconds / 60:.1f} minutes, seed {record.seed}: {record.sessions:,} sessions, of which "
        f"{record.abandoned:,} vanished in the middle; {record.total:,} operations with the right answer; "
        f"{faults} faults; {errors} operations ended with a typed error that a fault explains.",
        "",
    ]
    lines += [f"- **{finding}**" for finding in record.findings]
    lines += _table("fault", "times", record.faults)
    lines += _table("operation", "right answers", record.operations)
    lines += _table("explained error", "times", record.errors)
    lines += [
        "",
        *(
            f"- Floor of the {name} in its longest life, {rests} rests: {early:.1f} MiB in the first half, "
            f"{late:.1f} in the second."
            for name, (early, late, rests) in sorted(floors(record).items())
        ),
    ]
    names = sorted({name for rest in record.checkpoints for name in rest.holds})
    lines += ["", "At rest, with all sessions over (MiB resident / descriptors; `*` a new process):", ""]
    lines += [f"| minute | operations | {' | '.join(names)} | left behind |"]
    lines += ["|---:|---:|" + "---:|" * len(names) + "---|"]
    seen: set[float] = set()
    for rest in record.checkpoints:
        cells = [f"{rest.seconds / 60:.1f}", f"{rest.operations:,}"]
        for name in names:
            held = rest.holds.get(name)
            if held is None:
                cells.append("")
                continue
            new = "" if held["pid"] in seen else " *"
            seen.add(held["pid"])
            cells.append(f"{held['resident MiB']:.1f} / {held['descriptors']:.0f}{new}")
        lines.append("| " + " | ".join([*cells, "; ".join(rest.left) or "nothing"]) + " |")
    return lines


def _table(what: str, count: str, counts: dict[str, int]) -> list[str]:
    if not counts:
        return []
    rows = [f"| {name} | {number:,} |" for name, number in sorted(counts.items(), key=lambda one: -one[1])]
    return ["", f"| {what} | {count} |", "|---|---:|", *rows]
