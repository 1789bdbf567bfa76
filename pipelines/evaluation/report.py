"""The tables of an evaluation's results, for a terminal, Markdown and CSV; the matrix as a plot;
and `preds.json`, the patches in the format that harnesses of published benchmarks grade."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import duckdb

from orchard.pipelines.campaigns.scores import Score
from orchard.pipelines.evaluation.best_of import BestOf
from orchard.pipelines.evaluation.replicates import Mean, comparable
from orchard.pipelines.evaluation.results import Cell, Results
from orchard.schemas.blobs import BlobRef
from orchard.storage.blobs import BlobStore

CELL_COLUMNS = (
    *(
        "task_set",
        "harness",
        "model",
        "tasks",
        "requested",
        "graded",
        "resolved",
        "malformed",
        "aborted",
        "blocked",
        "open",
    ),
    *("any_resolved", "all_resolved", "turns", "tokens", "cost_usd", "seconds"),
)


class Table(NamedTuple):
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def tables_of(results: Results) -> list[Table]:
    """Tables of each task set: scores, the matrix of pass@1, costs; then the paired differences of all."""
    found: list[Table] = []
    for name in results.task_sets:
        cells = [cell for cell in results.cells if cell.task_set == name]
        found.append(_scores(name, cells, results.k))
        if any(k > 1 for k in results.k):
            found.append(_boards(name, cells, [k for k in results.k if k > 1]))
        if len(cells) > 1:
            found.append(_matrix(name, cells))
        found.append(_costs(name, cells))
    found += _over_replicates(results)
    if results.best_of:
        found.append(_choices(results.best_of))
    pairs = results.pairs()
    if pairs:
        rows = [
            (
                *(pair.task_set, " / ".join(pair.first), " / ".join(pair.second)),
                points(pair.difference),
                *(str(pair.difference.tasks), str(pair.gained), str(pair.lost), f"{pair.p:.3f}"),
                "yes" if pair.differs else "not shown",
            )
            for pair in pairs
        ]
        columns = (
            "task set",
            "baseline",
            "compared",
            "compared - baseline",
            "tasks",
            "gained",
            "lost",
            "p",
            "differ",
        )
        found.append(Table("Paired differences, in points", columns, rows))
    return found


def _scores(name: str, cells: Sequence[Cell], ks: Sequence[int]) -> Table:
    columns = ["harness", "model", "pass@1"]
    columns += [f"pass@{k}" for k in ks if k > 1] + [f"pass^{k}" for k in ks if k > 1]
    columns += ["any of all", "all of all", "tasks", "graded", "malformed", "aborted", "blocked", "open"]
    rows = []
    for cell in cells:
        scores = [cell.pass_at(1), *(cell.pass_at(k) for k in ks if k > 1)]
        scores += [cell.pass_all(k) for k in ks if k > 1]
        counts = (
            *(cell.any_resolved, cell.all_resolved, len(cell.tasks), cell.graded),
            *(cell.malformed, cell.aborted, cell.blocked, cell.open),
        )
        rows.append((cell.harness, cell.model, *map(share, scores), *(f"{count:,}" for count in counts)))
    return Table(f"{name}: resolved", tuple(columns), rows)


def _boards(name: str, cells: Sequence[Cell], ks: Sequence[int]) -> Table:
    columns = ("harness", "model", "k", "any of k", "all of k", "tasks", "short", "errored trials")
    rows = []
    for cell in cells:
        for board in map(cell.board, ks):
            shares = ("" if each is None else f"{each:.1%}" for each in (board.any_of, board.all_of))
            counts = (board.tasks, board.short, board.errored)
            rows.append((cell.harness, cell.model, str(board.k), *shares, *map(str, counts)))
    return Table(f"{name}: as leaderboards count", columns, rows)


def _matrix(name: str, cells: Sequence[Cell]) -> Table:
    harnesses = list(dict.fromkeys(cell.harness for cell in cells))
    by_place = {(cell.model, cell.harness): cell for cell in cells}
    rows = []
    for model in dict.fromkeys(cell.model for cell in cells):
        row = [by_place.get((model, harness)) for harness in harnesses]
        rows.append((model, *(share(cell.pass_at(1)) if cell else "" for cell in row)))
    return Table(f"{name}: pass@1 by model and harness", ("model", *harnesses), rows)


def _costs(name: str, cells: Sequence[Cell]) -> Table:
    columns = (
        "harness",
        "model",
        "turns",
        "tokens",
        "cost USD",
        "seconds",
        "tokens per solved task",
        "USD per solved task",
    )
    rows = []
    for cell in cells:
        ended = max(cell.requested - cell.open, 1)
        each = (f"{cell.turns / ended:,.1f}", _tokens(cell.tokens, ended), _usd(cell.cost_usd, ended))
        solve = (
            _tokens(cell.tokens, cell.resolved),
            _usd(cell.cost_usd, cell.resolved),
        )
        rows.append((cell.harness, cell.model, *each, f"{cell.seconds / max(cell.timed, 1):,.0f}", *solve))
    return Table(f"{name}: what a rollout takes", columns, rows)


def _choices(cells: Sequence[BestOf]) -> Table:
    columns = ("task set", "harness", "model", "k", "chosen by", "resolved", "over random, in points")
    rows = [
        (
            *(cell.task_set, cell.harness, cell.model, str(cell.k), choice.by, share(choice.resolved)),
            points(choice.over_random) if choice.over_random else "",
            *(str(count) for count in (cell.tasks, cell.short, cell.trained_on)),
        )
        for cell in cells
        for choice in cell.choices
    ]
    return Table("Best of k attempts", (*columns, "tasks", "short", "trained on"), rows)


def _over_replicates(results: Results) -> list[Table]:
    """Tables of intervals over seeds of training, or over samples."""
    if not results.groups:
        return []
    head = ("task set", "harness", "model or arm", "replicates", "common tasks")
    rows = [
        (
            *(group.task_set, group.harness, group.arm, group.what, f"{group.tasks:,}"),
            _hundredths(group.mean()),
            " ".join(f"{100 * value:.1f}" for value in group.scores.values()),
        )
        for group in results.groups
    ]
    found = [Table("pass@1 over replicates, in points", (*head, "mean", "each"), rows)]
    compared = [
        (
            first.task_set,
            f"{first.harness} / {first.arm}",
            f"{second.harness} / {second.arm}",
            _hundredths(difference, signed=True),
            "by policy" if first.paired_with(second) else "no",
        )
        for first, second in comparable(results.groups)
        for difference in [second.minus(first)]
    ]
    if compared:
        columns = ("task set", "baseline", "compared", "compared - baseline", "paired")
        found.append(Table("Differences over replicates, in points", columns, compared))
    return found


def _hundredths(mean: Mean, *, signed: bool = False) -> str:
    form = "{:+.1f}" if signed else "{:.1f}"
    value = form.format(100 * mean.value)
    if mean.half_width is None:
        return f"{value}, no spread"
    low, high = (form.format(100 * (mean.value + side * mean.half_width)) for side in (-1, 1))
    return f"{value} [{low}, {high}]"


def _tokens(total: int | None, by: int) -> str:
    return f"{total / by:,.0f}" if total is not None and by else ""


def _usd(total: float | None, by: int) -> str:
    return f"{total / by:.3f}" if total is not None and by else ""


def share(score: Score | None) -> str:
    """Format a score, `64.3% [60.1%, 68.2%]`; empty where there is none."""
    return "" if score is None else str(score)


def points(score: Score) -> str:
    """Format a difference in hundredths, `+7.5 [+3.1, +11.8]`."""
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * x for x in (score.value, score.low, score.high)))


def markdown(results: Results) -> str:
    """Render the whole report as Markdown."""
    parts = [f"# Evaluation {results.campaign}", _HOW]
    for table in tables_of(results):
        lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
        parts += [f"## {table.title}", "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)]
    return "\n\n".join(parts) + "\n"


_HOW = (
    "Scores are means over tasks, each task counting once, with 95 % intervals over tasks, exact below 30. "
    "Aborted rollouts are failures of infrastructure, blocked ones were kept out by their site (a captcha): "
    "both are in no score. pass@k and pass^k are the "
    "unbiased estimates that any, and that all, of k rollouts resolve a task. Differences are paired by "
    "task; p is that of an exact sign test of the tasks gained and lost: McNemar's, where a task has one "
    "rollout. Two cells differ where the interval is on one side of 0 and p is below 0.05, which is not "
    "corrected for the number of comparisons. As leaderboards count, a task with exactly k graded rollouts "
    "passes when any, or all, of them resolved it; tasks with fewer are short, and in no figure. "
    "Of k attempts, one is chosen: at random, of the most frequent submission, with the highest score of the "
    "value model, or, as an oracle would, one that resolved the task. Tasks with fewer graded rollouts, and "
    "those that the model was trained on, are in no figure."
)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def write_report(results: Results, out: Path) -> list[Path]:
    """The report in Markdown, `cells.csv` and `matrix.png` in a directory; the files."""
    out.mkdir(parents=True, exist_ok=True)
    files = [out / "report.md", out / "cells.csv", out / "matrix.png"]
    files[0].write_text(markdown(results), encoding="utf-8")
    with files[1].open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*CELL_COLUMNS, "pass_at_1", "low", "high"))
        for cell in results.cells:
            first = cell.pass_at(1)
            bounds = (first.value, first.low, first.high) if first else ("", "", "")
            values = (getattr(cell, name) for name in CELL_COLUMNS)
            writer.writerow([*(len(v) if isinstance(v, dict) else v for v in values), *bounds])
    plot_matrix(results, files[2])
    return files


def plot_matrix(results: Results, file: Path) -> None:
    """Models down, harnesses across, pass@1 as colour and figure; a panel for each task set."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # only here: it takes a second to import
    from matplotlib.figure import Figure

    models, harnesses = (_names(results, each) for each in (_model, _harness))
    wide = max(4.5, 1.6 * len(harnesses) + 2)
    figure = Figure(figsize=(wide * len(results.task_sets), 0.8 * len(models) + 2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(results.task_sets), squeeze=False)[0]
    for axes, name in zip(panels, results.task_sets, strict=True):
        scores = {
            (cell.model, cell.harness): cell.pass_at(1) for cell in results.cells if cell.task_set == name
        }
        grid = [[scores.get((model, harness)) for harness in harnesses] for model in models]
        values = [[found.value if found else float("nan") for found in row] for row in grid]
        axes.imshow(values, vmin=0, vmax=1, cmap="YlGn", aspect="auto")
        axes.set_xticks(range(len(harnesses)), harnesses, rotation=20, ha="right")
        axes.set_yticks(range(len(models)), models)
        axes.set_title(f"{name}: pass@1")
        for y, row in enumerate(grid):
            for x, found in enumerate(row):
                text = "-" if found is None else f"{found.value:.1%}\n{found.low:.0%} to {found.high:.0%}"
                axes.text(x, y, text, ha="center", va="center", fontsize=9)
    figure.savefig(file, dpi=120)


def _names(results: Results, of: Callable[[Cell], str]) -> list[str]:
    return list(dict.fromkeys(of(cell) for cell in results.cells))


def _model(cell: Cell) -> str:
    return cell.model


def _harness(cell: Cell) -> str:
    return cell.harness


_ROWS = """
select q.task_id, coalesce(r.submission, ''), r.submission_sha256
from requests q join rollouts r on r.rollout_id = q.rollout_id
where q.campaign = ? and q.harness = ? and q.model = ? and q.sample = ? and r.status <> 'aborted'
order by q.task_id
"""


def write_predictions(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, campaign: str, out: Path
) -> list[Path]:
    """A file for each harness, model and sample of the campaign, `preds/MODEL--HARNESS.N.json`; the files.

    Rollouts that aborted are left out: the harness would count an empty patch as a failure of the model.
    """
    folder = out / "preds"
    folder.mkdir(parents=True, exist_ok=True)
    arms = tables.execute(
        "select distinct harness, model, sample from requests where campaign = ? order by all", [campaign]
    ).fetchall()
    files = []
    for harness, model, sample in arms:
        name = f"{model}--{harness}"
        predictions = {
            task: {
                "instance_id": task,
                "model_name_or_path": name,
                "model_patch": _whole(blobs, patch, sha256),
            }
            for task, patch, sha256 in tables.execute(_ROWS, [campaign, harness, model, sample]).fetchall()
        }
        file = folder / f"{quote(name, safe=' ')}.{sample}.json"
        file.write_text(json.dumps(predictions, indent=1), encoding="utf-8")
        files.append(file)
    return files


def _whole(blobs: BlobStore, patch: str, sha256: str | None) -> str:
    return blobs.get(BlobRef(sha256=sha256, size=0)).decode() if sha256 else patch
