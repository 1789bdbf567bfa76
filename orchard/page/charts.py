"""Draws small, printable charts as SVG without scripts and inline styles. Colours and strokes are classes
of the style sheet, so that they follow its theme.

Colours and strokes are classes of the page's style sheet, so that they follow its theme.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from orchard.page.figures import short
from orchard.page.rollouts import Distribution
from orchard.pipelines.evaluation.results import CellComparison


class BarPart(NamedTuple):
    kind: str
    """CSS class."""
    value: float
    title: str


def bar(parts: Sequence[BarPart], *, total: float | None = None, height: int = 8) -> Markup:
    """Stacks parts of a whole in a bar of 100 % width."""
    whole = total or sum(part.value for part in parts)
    pieces, at = [], 0.0
    for part in parts:
        width = 100 * part.value / whole if whole else 0.0
        if width > 0:
            pieces.append(
                Markup(
                    '<rect class="f-{}" x="{:.3f}%" y="0" width="{:.3f}%" height="{}">'
                    "<title>{}</title></rect>"
                ).format(part.kind, at, width, height, part.title)
            )
        at += width
    label = ", ".join(part.title for part in parts if part.value) or "nothing yet"
    return Markup(
        '<svg class="bar" role="img" aria-label="{}" width="100%" height="{}">'
        '<rect class="f-rest" width="100%" height="{}"/>{}</svg>'
    ).format(label, height, height, Markup("").join(pieces))


def interval(pair: CellComparison, said: str) -> Markup:
    """Draws a difference between -1 and 1 with its interval. It is grey if the pair does not differ
    significantly.

    It is grey where the pair is not shown to differ.
    """
    score = pair.difference
    low, value, high = (50 + 50 * max(-1.0, min(each, 1.0)) for each in (score.low, score.value, score.high))
    kind = ("good" if score.value > 0 else "bad") if pair.differs else "ink"
    return Markup(
        '<svg class="bar" role="img" aria-label="{}" width="100%" height="14">'
        '<line class="grid" x1="0" x2="100%" y1="7" y2="7"/>'
        '<line class="grid" x1="50%" x2="50%" y1="0" y2="14"/>'
        '<rect class="f-{}" x="{:.2f}%" y="5.5" width="{:.2f}%" height="3"/>'
        '<circle class="f-{}" cx="{:.2f}%" cy="7" r="4"/></svg>'
    ).format(said, kind, low, max(high - low, 0.3), kind, value)


WIDTH, HEIGHT = 240, 56


def histogram(shown: Distribution) -> Markup:
    """Draws a histogram whose columns link to the rows of their bin."""
    if not shown.bins:
        return Markup('<p class="quiet">no values</p>')
    most = max(each.rows for each in shown.bins) or 1
    width = WIDTH / len(shown.bins)
    columns = []
    for index, each in enumerate(shown.bins):
        tall = max(HEIGHT * each.rows / most, 1.5 if each.rows else 0)
        title = f"{short(each.low)} to {short(each.high)}: {each.rows:,} rollouts"
        rect = Markup(
            '<rect class="hit" x="{:.2f}" y="0" width="{:.2f}" height="{}"/>'
            '<rect class="f-ink" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" rx="0.8"/>'
        ).format(
            index * width, width, HEIGHT, index * width + 0.6, HEIGHT - tall, max(width - 1.2, 0.8), tall
        )
        columns.append(
            Markup('<a href="{}" aria-label="{} {}"><title>{}</title>{}</a>').format(
                each.address, shown.name, title, title, rect
            )
            if each.rows
            else rect
        )
    return Markup(
        '<svg class="histogram" viewBox="0 0 {} {}" preserveAspectRatio="none" role="group" '
        'aria-label="distribution of {}">{}</svg><p class="axis"><span>{}</span><span>{}</span></p>'
    ).format(
        WIDTH,
        HEIGHT,
        shown.name,
        Markup("").join(columns),
        short(shown.low),
        short(shown.high),
    )


def curve(values: Sequence[float], rises: Sequence[Sequence[int]], of: str) -> Markup:
    """Draws a value curve from 0 to 1 over steps, with shaded rise segments; `values` begins before step
    0."""
    wide, tall = 720.0, 120.0
    steps = max(len(values) - 1, 1)

    def x(step: float) -> float:
        return wide * step / steps

    shades = [
        Markup(
            '<rect class="f-rise" x="{:.1f}" y="0" width="{:.1f}" height="{:.0f}"><title>{}</title></rect>'
        ).format(
            x(segment[0]),
            max(x(segment[-1] + 1) - x(segment[0]), 2.0),
            tall,
            f"rise: steps {segment[0] + 1} to {segment[-1] + 1}",
        )
        for segment in rises
        if segment
    ]
    points = " ".join(f"{x(step):.1f},{tall * (1 - value):.1f}" for step, value in enumerate(values))
    grid = [
        Markup('<line class="grid" x1="0" x2="{:.0f}" y1="{:.0f}" y2="{:.0f}"/>').format(
            wide, tall * at, tall * at
        )
        for at in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    return Markup(
        '<svg class="curve" viewBox="0 -4 {:.0f} {:.0f}" preserveAspectRatio="none" role="img" '
        'aria-label="value curve of {}">{}{}<polyline class="line" points="{}"/></svg>'
    ).format(wide, tall + 8, of, Markup("").join(grid), Markup("").join(shades), points)


class TurnTime(NamedTuple):
    """Seconds of one turn, by what used them."""

    turn: int
    address: str
    model: float
    command: float
    wait: float


COLUMNS = 240


def strip(turns: Sequence[TurnTime]) -> Markup:
    """Draws all turns of a rollout as columns that link to their turns; in long rollouts several turns
    share a column."""
    if not turns:
        return Markup("")
    each = -(-len(turns) // COLUMNS)
    groups = [turns[at : at + each] for at in range(0, len(turns), each)]
    sums = [tuple(sum(getattr(t, k) for t in g) for k in ("model", "command", "wait")) for g in groups]
    most = max(sum(parts) for parts in sums) or 1.0
    width, tall = 1000 / max(len(groups), 24), 44.0
    columns = []
    for index, (group, parts) in enumerate(zip(groups, sums, strict=True)):
        y, pieces = tall, []
        for kind, value in zip(("model", "command", "wait"), parts, strict=True):
            high = (tall - 2) * value / most
            y -= high
            pieces.append(
                Markup('<rect class="f-{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>').format(
                    kind, index * width + 0.5, y, max(width - 1, 0.5), high
                )
            )
        turn = f"turn {group[0].turn}" + (f" to {group[-1].turn}" if len(group) > 1 else "")
        title = "{}: model {:.1f} s, commands {:.1f} s, waiting {:.1f} s".format(turn, *parts)
        columns.append(
            Markup(
                '<a href="{}" aria-label="{}"><title>{}</title>'
                '<rect class="hit" x="{:.2f}" y="0" width="{:.2f}" height="{:.0f}"/>{}</a>'
            ).format(group[0].address, title, title, index * width, width, tall, Markup("").join(pieces))
        )
    return Markup(
        '<svg class="strip" viewBox="0 0 1000 {:.0f}" preserveAspectRatio="none" role="group" '
        'aria-label="seconds of each turn">{}</svg>'
    ).format(tall, Markup("").join(columns))


def lines(curves: Mapping[str, Sequence[tuple[float, float]]], of: str) -> Markup:
    """Draws one figure of several runs over their steps, each run as a line with its own CSS class."""
    points = [point for line in curves.values() for point in line]
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        return Markup('<p class="quiet">no values</p>')
    left, right = min(x for x, _ in finite), max(x for x, _ in finite)
    low, high = min(y for _, y in finite), max(y for _, y in finite)
    wide, tall = 480.0, 150.0
    spread, span = (high - low) or abs(high) or 1.0, (right - left) or 1.0
    drawn = []
    for number, line in enumerate(curves.values()):
        known = [point for point in line if math.isfinite(point[1])]
        path = " ".join(f"{wide * (x - left) / span:.1f},{tall * (high - y) / spread:.1f}" for x, y in known)
        if len(known) == 1:
            path += " " + path
        drawn.append(Markup('<polyline class="line l{}" points="{}"/>').format(number % 6, path))
    grid = [
        Markup('<line class="grid" x1="0" x2="{:.0f}" y1="{:.0f}" y2="{:.0f}"/>').format(wide, y, y)
        for y in (0.0, tall / 2, tall)
    ]
    said = f"{of}: from {short(low)} to {short(high)}, steps {short(left)} to {short(right)}"
    return Markup(
        '<div class="plot"><p class="scale"><span>{}</span><span>{}</span></p>'
        '<svg viewBox="0 -3 {:.0f} {:.0f}" preserveAspectRatio="none" role="img" aria-label="{}">{}{}</svg>'
        "</div>"
        '<p class="axis"><span>step {}</span><span>{}</span></p>'
    ).format(
        short(high),
        short(low),
        wide,
        tall + 6,
        said,
        Markup("").join(grid),
        Markup("").join(drawn),
        short(left),
        short(right),
    )
