"""Draws small, printable charts as SVG without scripts and inline styles. Colours and strokes are classes
of the style sheet, so that they follow its theme.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from orchard.page.figures import short
from orchard.page.rollouts import Distribution
from orchard.pipelines.campaigns.scores import Score
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
    significantly."""
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


def rate(score: Score) -> Markup:
    """Draws a rate between 0 and 1 with its interval; the text beside it has the figures."""
    low, value, high = (100 * each for each in (score.low, score.value, score.high))
    return Markup(
        '<svg class="bar range" aria-hidden="true" width="100%" height="10">'
        '<line class="grid" x1="0" x2="100%" y1="5" y2="5"/>'
        '<rect class="f-ink" x="{:.2f}%" y="3.5" width="{:.2f}%" height="3"/>'
        '<circle class="f-good" cx="{:.2f}%" cy="5" r="3.5"/></svg>'
    ).format(low, max(high - low, 0.3), value)


def sparkline(values: Sequence[int], whole: int) -> Markup:
    """Draws how a count rose towards the whole, over equal times."""
    if not values:
        return Markup("")
    most = max(whole, values[-1]) or 1
    points = " ".join(f"{at},{20 - 19 * value / most:.1f}" for at, value in enumerate((0, *values)))
    return Markup(
        '<svg class="spark" viewBox="0 0 {} 20" preserveAspectRatio="none" aria-hidden="true">'
        '<polyline class="line" points="{}"/></svg>'
    ).format(len(values), points)


class ScatterPoint(NamedTuple):
    """A score at a place of the horizontal axis."""

    x: float
    score: Score
    title: str
    address: str
    kind: int
    """Number of its colour."""


RATIO = 30
"""Ratio of the largest and the least value above which the horizontal axis is logarithmic."""


def scatter(points: Sequence[ScatterPoint], of: str, unit: str = "") -> Markup:
    """Draws scores with their intervals over a measure; each point links to its rollouts."""
    known = [point for point in points if math.isfinite(point.x)]
    if not known:
        return Markup('<p class="quiet">no values</p>')
    most, least = max(point.x for point in known), min(point.x for point in known)
    logarithmic = least > 0 and most / least > RATIO
    start = least / 2 if logarithmic else 0.0

    def across(x: float) -> float:
        share = math.log(x / start) / math.log(most / start) if logarithmic else x / (most or 1.0)
        return 2 + 94 * share

    drawn = [
        Markup(
            '<a class="k{}" href="{}" aria-label="{}"><title>{}</title>'
            '<line x1="{:.2f}%" x2="{:.2f}%" y1="{:.2f}%" y2="{:.2f}%"/>'
            '<circle cx="{:.2f}%" cy="{:.2f}%" r="5"/></a>'
        ).format(
            point.kind % 6,
            point.address,
            said := f"{point.title}: {point.score}, {of} {unit}{short(point.x)}",
            said,
            at := across(point.x),
            at,
            100 - 100 * point.score.low,
            100 - 100 * point.score.high,
            at,
            100 - 100 * point.score.value,
        )
        for point in known
    ]
    grid = [
        Markup('<line class="grid" x1="0" x2="100%" y1="{}%" y2="{}%"/>').format(y, y)
        for y in (0, 25, 50, 75, 100)
    ]
    return Markup(
        '<div class="plot"><p class="scale"><span>100 %</span><span>50 %</span><span>0 %</span></p>'
        '<svg class="scatter" role="group" aria-label="pass rate over {}">{}{}</svg></div>'
        '<p class="axis"><span>{}{}</span>{}<span>{}{}</span></p>'
    ).format(
        of,
        Markup("").join(grid),
        Markup("").join(drawn),
        unit,
        short(start),
        Markup("<span>logarithmic</span>") if logarithmic else "",
        unit,
        short(most),
    )


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


Band = Sequence[tuple[float, float, float]]
"""Step, lower and upper bound of each point of a curve."""


def lines(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    of: str,
    bands: Mapping[str, Band] | None = None,
    address: Callable[[float, float], str] | None = None,
) -> Markup:
    """Draws one figure of several runs over their steps, each run as a line with its own CSS class, with the
    bands of their intervals. Columns link to the `address` of their first and last step."""
    points = [point for line in curves.values() for point in line]
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        return Markup('<p class="quiet">no values</p>')
    left, right = min(x for x, _ in finite), max(x for x, _ in finite)
    around = [bound for band in (bands or {}).values() for _, *both in band for bound in both]
    low, high = min([*around, *(y for _, y in finite)]), max([*around, *(y for _, y in finite)])
    wide, tall = 480.0, 150.0
    spread, span = (high - low) or abs(high) or 1.0, (right - left) or 1.0

    def path_of(some: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{wide * (x - left) / span:.1f},{tall * (high - y) / spread:.1f}" for x, y in some)

    drawn = []
    for number, (run, line) in enumerate(curves.items()):
        known = [point for point in line if math.isfinite(point[1])]
        band = (bands or {}).get(run, ())
        edge = [(x, top) for x, _, top in band] + [(x, bottom) for x, bottom, _ in reversed(band)]
        if edge:
            drawn.append(Markup('<polygon class="band l{}" points="{}"/>').format(number % 6, path_of(edge)))
        path = path_of(known)
        if len(known) == 1:
            path += " " + path
        drawn.append(Markup('<polyline class="line l{}" points="{}"/>').format(number % 6, path))
    grid = [
        Markup('<line class="grid" x1="0" x2="{:.0f}" y1="{:.0f}" y2="{:.0f}"/>').format(wide, y, y)
        for y in (0.0, tall / 2, tall)
    ]
    first = next(iter(curves.values()))
    if address is not None and len(first) > 1:
        drawn[:0] = _columns(first, lambda x: wide * (x - left) / span, tall, of, address)
    said = f"{of}: from {short(low)} to {short(high)}, steps {short(left)} to {short(right)}"
    return Markup(
        '<div class="plot"><p class="scale"><span>{}</span><span>{}</span></p>'
        '<svg viewBox="0 -3 {:.0f} {:.0f}" preserveAspectRatio="none" role="group" aria-label="{}">{}{}</svg>'
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


STEPS = 60
"""Maximum columns of links over a curve."""


def _columns(
    line: Sequence[tuple[float, float]],
    across: Callable[[float], float],
    tall: float,
    of: str,
    address: Callable[[float, float], str],
) -> list[Markup]:
    """Draws invisible columns that link to the steps below them. They are for the mouse: the table of groups
    has a field for the steps."""
    each = -(-len(line) // STEPS)
    found = []
    for at in range(0, len(line), each):
        some = line[at : at + each]
        begin, end = across(some[0][0]), across(line[min(at + each, len(line) - 1)][0])
        steps = f"step {some[0][0]:.0f}" + (f" to {some[-1][0]:.0f}" if len(some) > 1 else "")
        title = f"{steps}: {of} {short(some[0][1])}; its groups"
        found.append(
            Markup(
                '<a href="{}" tabindex="-1" aria-label="{}"><title>{}</title>'
                '<rect class="hit" x="{:.1f}" y="0" width="{:.1f}" height="{:.0f}"/></a>'
            ).format(address(some[0][0], some[-1][0]), title, title, begin, max(end - begin, 3.0), tall)
        )
    return found
