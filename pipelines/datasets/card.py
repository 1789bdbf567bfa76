"""A dataset's card: Markdown with tables and plots of what is in it, made from its rows."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from orchard.pipelines.datasets.manifest import Manifest, read_manifest
from orchard.pipelines.datasets.rows import read_rows
from orchard.schemas.positions import Position

CARD = "README.md"
_SHOWN = 12


@dataclass
class Summary:
    tokens: list[int] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)
    """Share of tokens that train."""
    turns: list[int] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    """Positions of the first steps of rise segments in the kept part, from 0 to 1."""
    lengths: list[int] = field(default_factory=list)
    tables: dict[str, Counter[str]] = field(default_factory=dict)
    resolved: Counter[str] = field(default_factory=Counter)


_GROUPS = ("task_source", "repo", "harness", "model", "model_kind", "annotator", "exit_status", "protected")


def summarize(directory: Path) -> Summary:
    found = Summary(tables={name: Counter() for name in _GROUPS})
    for row in read_rows(directory):
        found.tokens.append(row.tokens)
        found.trained.append(row.trained_tokens / row.tokens)
        found.turns.append(row.turns)
        found.resolved[row.task_source] += row.resolved
        for segment in row.segments:
            found.starts.append(segment.first / row.turns)
            found.lengths.append(segment.last - segment.first + 1)
        for name in _GROUPS:
            found.tables[name][getattr(row, name) or "(none)"] += 1
    return found


def write_card(directory: Path) -> Path:
    """Write README.md and the plots it shows into the dataset's directory; the card's path."""
    manifest, found = read_manifest(directory), summarize(directory)
    plots = [
        _plot(directory, "tokens", "tokens of an example", found.tokens),
        _plot(directory, "turns", "turns of an example", found.turns),
        _plot(directory, "trained", "share of tokens that train", found.trained),
    ]
    if found.lengths:
        plots.append(_plot(directory, "segments", "actions in a rise segment", found.lengths))
        plots.append(_plot(directory, "starts", "where a rise segment begins", found.starts))
    path = directory / CARD
    path.write_text(_text(manifest, found, plots), encoding="utf-8")
    return path


def _text(manifest: Manifest, found: Summary, plots: Sequence[str]) -> str:
    lines = [
        f"# {manifest.name}",
        "",
        f"{manifest.rows:,} examples, {manifest.resolved:,} from resolved trajectories and "
        f"{manifest.rows - manifest.resolved:,} from rise segments of unresolved ones; "
        f"{manifest.tokens:,} tokens, of which {manifest.trained_tokens:,} train.",
        "",
        "## How it was made",
        "",
        *_table(
            ("fact", "value"),
            [
                ("SHA-256 of the rows", manifest.sha256),
                ("events of the log", f"{manifest.range.first} to {Position.of(manifest.range.last)}"),
                ("code", manifest.code_version),
                ("configuration", manifest.config_hash),
                ("tokenizer", f"{manifest.tokenizer} ({manifest.tokenizer_sha256[:12]})"),
            ],
        ),
        "",
        "The same log, code and configuration give the same rows on any machine.",
        "",
        "```json",
        json.dumps(json.loads(manifest.config), indent=1),
        "```",
        "",
        "## What was left out",
        "",
        *_table(
            ("count", "trajectories"), [(name, f"{number:,}") for name, number in manifest.counts.items()]
        ),
    ]
    if "oracle" in found.tables["model_kind"]:
        lines += [
            "",
            "**Trajectories of kind `oracle` were played from gold patches: they are no model's work.**",
        ]
    for name, counter in found.tables.items():
        rest = len(counter) - _SHOWN
        rows = [(_cell(value), f"{number:,}") for value, number in counter.most_common(_SHOWN)]
        lines += ["", f"## By {name.replace('_', ' ')}", "", *_table((name, "examples"), rows)]
        lines += ["", f"... and {rest} more."] if rest > 0 else []
    shares = [
        (_cell(source), f"{found.resolved[source] / number:.1%}")
        for source, number in found.tables["task_source"].most_common(_SHOWN)
    ]
    lines += ["", "## Resolved share", "", *_table(("task_source", "resolved"), shares)]
    lines += ["", "## Distributions", "", *[f"![{plot}]({plot})" for plot in plots]]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A value as a table can show it: models and repositories name themselves."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")[:80]


def _table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> list[str]:
    return [f"| {head[0]} | {head[1]} |", "|---|---:|", *[f"| {left} | {right} |" for left, right in rows]]


def _plot(directory: Path, name: str, title: str, values: Sequence[float]) -> str:
    figure = Figure(figsize=(5, 2.4), layout="constrained")
    FigureCanvasAgg(figure)  # there is no display
    axes = figure.subplots()
    axes.hist(values, bins=min(40, max(len(set(values)), 1)), color="#3b6ea5")
    axes.set_xlabel(title)
    axes.set_ylabel("examples" if name not in ("segments", "starts") else "segments")
    file = f"card-{name}.png"
    figure.savefig(directory / file, dpi=110, metadata={"Software": None})
    return file
