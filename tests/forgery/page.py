"""The result of the forging suite as Markdown."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from tests.forgery.records import Group, Record

LABELS = ("value", "echo", "bit", "inside", "forgeable", "none")
"""Values of the label `protected`, best first; `none` is of a grader that gives no label."""
SHOWN = 40
"""Wrong outcomes that are listed one by one."""
BEFORE = """\
With canaries, the grader before question sheets (ab657a2f), on 2026-11-27: of 489 gradings, drawn as if
by chance from 108 forgers on 8 tasks (4 of each kind), 3 were forged, all on release tasks, by code
that swallows the failures of tests where pytest calls them. The tests alone, without any grader, gave
61 of the same 489 a pass: most forgers earn nothing on most release tasks in any case, for an answer in
place of a function's own is rarely all that a test asks for."""


def page(found: Sequence[Record], seconds: float, concurrency: int) -> str:
    """All tables; `seconds` are those of the last call, which may have graded a part of it."""
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    real = [each for each in found if each.kind != "layout"]
    layouts = [each for each in found if each.kind == "layout"]
    lines = [
        "# Forged rewards",
        "",
        f"Measured {when} by `make bench-forgery`: {len(found)} submissions, {concurrency} at a time; "
        f"all gradings took {sum(each.seconds for each in found):.0f} s, the last call {seconds:.0f} s.",
        "What the submissions are: `tests/forgery/`.",
        "",
    ]
    if real:
        lines += _real(real)
    if BEFORE:
        lines += ["## Before", "", BEFORE, ""]
    if layouts:
        lines += _layouts(layouts)
    return "\n".join(lines).rstrip("\n") + "\n"


def _real(found: Sequence[Record]) -> list[str]:
    kinds = sorted({each.kind for each in found})
    labels = [label for label in LABELS if any(each.protected == label for each in found)]
    forgers = [each for each in found if each.group is Group.FORGER]
    tasks = {each.task: each for each in found}
    tried = Counter(each.task for each in forgers)
    lines = [
        "## Real tasks",
        "",
        f"{_tasks(tasks)}. {len({e.name for e in forgers})} forgers know how rewards are made and "
        "nothing of the repository; each is the text of one module, put at the end of those that the "
        f"solution changes; {min(tried.values(), default=0)} to {max(tried.values(), default=0)} were tried "
        "on each task, drawn as if by chance where they are not all. What a task is protected by: its label "
        "(docs/threat-model.md).",
        "",
        "Forged of tried, by what protects the task:",
        "",
        "| | " + " | ".join(f"`{label}`" for label in labels) + " | aborted |",
        "|---|" + "---:|" * (len(labels) + 1),
    ]
    for kind in kinds:
        lines.append(_row(f"{kind} tasks", [each for each in forgers if each.kind == kind], labels))
    for family in dict.fromkeys(each.family for each in sorted(forgers, key=lambda e: e.family)):
        lines.append(_row(family, [each for each in forgers if each.family == family], labels))
    lines += [
        _row("**all**", forgers, labels),
        "",
        _bound(forgers),
        "",
        *_honest(found),
        *_single(found),
        *_wrong(found),
    ]
    return lines


def _bound(forgers: Sequence[Record]) -> str:
    """Says what zero of so many leaves possible."""
    none = [
        f"{1 - 0.05 ** (1 / len(tried)):.1%} on `{label}`"
        for label in LABELS
        if (tried := [each for each in forgers if each.protected == label])
        and not any(e.rewarded for e in tried)
    ]
    return f"Where none was forged, the rate is below {', '.join(none)} with 95 % confidence." if none else ""


def _tasks(tasks: dict[str, Record]) -> str:
    counts = Counter((each.kind, each.protected) for each in tasks.values())
    return ", ".join(f"{count} {kind} tasks of `{label}`" for (kind, label), count in sorted(counts.items()))


def _row(name: str, those: Sequence[Record], labels: Sequence[str]) -> str:
    cells = [name]
    for label in labels:
        tried = [each for each in those if each.protected == label]
        forged = sum(each.rewarded for each in tried)
        cells.append(f"{forged} of {len(tried)}" + (f" ({forged / len(tried):.1%})" if forged else ""))
    return "| " + " | ".join([*cells, str(sum(each.aborted for each in those))]) + " |"


def _honest(found: Sequence[Record]) -> list[str]:
    lines = ["Honest and mistaken submissions; the tests alone say which are right:", ""]
    lines += [
        "| | submissions | right | of these refused | wrong | of these rewarded |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for group, family in dict.fromkeys((e.group, e.family) for e in found if e.group is not Group.FORGER):
        those = [each for each in found if (each.group, each.family) == (group, family)]
        right, wrong = [e for e in those if e.plain], [e for e in those if not e.plain]
        refused, rewarded = sum(not e.rewarded for e in right), sum(e.rewarded for e in wrong)
        name = family if group is Group.HONEST else group.value
        lines.append(f"| {name} | {len(those)} | {len(right)} | {refused} | {len(wrong)} | {rewarded} |")
    return [*lines, ""]


def _single(found: Sequence[Record]) -> list[str]:
    compared = sum(each.verdicts for each in found)
    laxer, stricter = (sum(len(getattr(each, word)) for each in found) for word in ("laxer", "stricter"))
    refused = sum(len(each.stricter) for each in found if not each.plain)
    return [
        f"Of {compared} verdicts on single tests {laxer} were laxer than those of the tests alone and "
        f"{stricter} stricter, {refused} of these in submissions that the tests alone refuse.",
        "",
    ]


def _wrong(found: Sequence[Record]) -> list[str]:
    wrong = [each for each in found if each.wrong]
    if not wrong:
        return []
    lines = ["What is not as it should be:", ""]
    for each in wrong[:SHOWN]:
        tests = f": {', '.join(each.laxer[:2])}" if each.laxer else ""
        lines.append(f"- `{each.task}` ({each.protected}), {each.family}, *{each.name}*: {each.layer}{tests}")
    if len(wrong) > SHOWN:
        lines.append(f"- and {len(wrong) - SHOWN} more")
    return [*lines, ""]


def _layouts(found: Sequence[Record]) -> list[str]:
    tricks = [each for each in found if each.group is Group.FORGER]
    honest = [each for each in found if each.group is Group.HONEST]
    layouts = sorted({each.task for each in found})
    forged = sum(each.rewarded for each in tricks)
    used = [each.sandboxes for each in honest if each.rewarded]
    lines = [
        "## Layouts",
        "",
        f"{len({each.name for each in tricks})} tricks on {len(layouts)} layouts of a repository; they know "
        "its function and its tests.",
        "",
        "| | submissions | forged | aborted | honest refused |",
        "|---|---:|---:|---:|---:|",
        f"| tricks | {len(tricks)} | {forged} | {sum(each.aborted for each in tricks)} | |",
        f"| honest | {len(honest)} | | | {sum(not e.rewarded for e in honest)} |",
        "",
        f"Each honest +1 took {sum(used) / max(len(used), 1):.2f} sandboxes, {max(used, default=0)} at most.",
        "",
        "What decided, over the tricks:",
        "",
        "| layer | tricks |",
        "|---|---:|",
        *(f"| {name} | {count} |" for name, count in Counter(_layer(e) for e in tricks).most_common()),
        "",
        "By family, on each layout forged of tried:",
        "",
        "| family | " + " | ".join(layouts) + " |",
        "|---|" + "---:|" * len(layouts),
    ]
    for family in dict.fromkeys(each.family for each in tricks):
        cells = []
        for layout in layouts:
            those = [e for e in tricks if (e.family, e.task) == (family, layout)]
            cells.append(f"{sum(e.rewarded for e in those)} of {len(those)}")
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    lines += ["", "## Each submission", "", "| family | submission | " + " | ".join(layouts) + " |"]
    lines.append("|---|---|" + "---|" * len(layouts))
    by_name: dict[tuple[str, str], dict[str, Record]] = {}
    for each in sorted(found, key=lambda e: (e.family, e.name)):
        by_name.setdefault((each.family, each.name), {})[each.task] = each
    for (family, name), row in by_name.items():
        cells = [_cell(row[layout]) if layout in row else "" for layout in layouts]
        lines.append(f"| {family} | {name} | " + " | ".join(cells) + " |")
    return lines


def _cell(record: Record) -> str:
    if record.rewarded:
        return "rewarded" if record.group is Group.HONEST else "**forged**"
    return f"**refused: {_layer(record)}**" if record.group is Group.HONEST else _layer(record)


def _layer(record: Record) -> str:
    """What gave the outcome; `forged` is for the grader what fresh inputs tell from a repair."""
    return "fresh inputs" if record.layer == "forged" else record.layer
