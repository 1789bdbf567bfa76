"""The table of the paper's recipes in docs/training.md: each preset and each default is what it says, and a
number of the paper is the preset's."""

import re
import tomllib
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.pipelines.datasets.settings import read_settings as read_dataset
from orchard.pipelines.domain import domains
from orchard.pipelines.rl.loss_settings import CLIPS, Ratio
from orchard.pipelines.rl.settings import settings_from as rl_settings
from orchard.pipelines.sft.settings import settings_from as sft_settings

PAGE = Path(__file__).parents[3] / "docs" / "training.md"
LEAST = {"run": "r", "model": "m", "out": "o"}


def lines() -> Iterator[tuple[str, str, str, str, str, str]]:
    """Kind of run, recipe, key, value by the preset, default, what the paper says."""
    text = PAGE.read_text(encoding="utf-8")
    for kind, start in (
        ("sft", "\nFine-tuning ("),
        ("dataset", "\nDatasets ("),
        ("rl", "\nReinforcement learning (sec"),
    ):
        table = text[text.index(start) :].split("\n\n")[1]
        for row in table.splitlines()[2:]:
            recipe, key, paper, preset, default, _ = (cell.strip() for cell in row.strip("|").split("|"))
            yield kind, recipe, key.strip("`"), preset, default, paper


def told(kind: str, preset: str | None, folder: Path) -> dict[str, Any]:
    chosen = {"preset": preset} if preset else {}
    if kind == "dataset":
        file = folder / "d.toml"
        file.write_text(
            "".join(f'{k} = "{v}"\n' for k, v in (chosen | {"name": "d", "tokenizer": "t"}).items())
        )
        made: Any = read_dataset(file)
    elif kind == "sft":
        made = sft_settings(chosen | {"dataset": "d", "out": "o", "model": "m"})
    else:
        made = rl_settings(chosen | LEAST)
    built: dict[str, Any] = msgspec.to_builtins(made)
    return built


def value(cell: str) -> Any:
    return None if cell == "none" else tomllib.loads(f"x = {cell.strip('`')}")["x"]


def found(tree: Any, key: str) -> Any:
    """The value of a dotted key, None below a table that is not there. Raises KeyError for an unknown key."""
    value = reduce(lambda at, name: None if at is None else at[name], key.split("."), tree)
    return list(value) if isinstance(value, tuple) else value


def numbers(cell: str) -> list[float]:
    """The numbers of the paper's column: K are 1,024."""
    units = {"K": 1024.0, " %": 0.01, "": 1.0}
    return [float(one) * units[unit] for one, unit in re.findall(r"(\d[\d.]*(?:e-\d+)?)(K| %|)", cell)]


@pytest.mark.parametrize(("kind", "recipe"), sorted({row[:2] for row in lines()}))
def test_a_preset_is_the_papers_table_line_by_line(kind: str, recipe: str, tmp_path: Path) -> None:
    preset, default = told(kind, recipe, tmp_path), told(kind, None, tmp_path)
    for _, _, key, by_preset, by_default, paper in [row for row in lines() if row[:2] == (kind, recipe)]:
        for tree, cell in ((preset, by_preset), (default, by_default)):
            there, said = found(tree, key), value(cell)
            assert (type(there), there) == (type(said), said), f"{recipe} {key}"
        there = found(preset, key)
        if there is None and key.startswith("loss.clip"):
            there = dict(zip(("loss.clip_low", "loss.clip_high"), CLIPS[Ratio.TOKEN], strict=True))[key]
        if not isinstance(there, str | bool) and (said := numbers(paper)):
            assert ([*there] if isinstance(there, list) else [there]) == pytest.approx(said), (
                f"{recipe} {key}"
            )


def test_every_key_of_a_preset_is_in_the_table_once() -> None:
    rows = [row[:3] for row in lines()]
    assert sorted(rows) == sorted(set(rows))
    for name, domain in domains().items():
        presets = {"sft": domain.sft_preset, "rl": domain.rl_preset, "dataset": domain.dataset_preset}
        for kind, tree in presets.items():
            assert {key for key in _keys(tree) if (kind, name, key) not in rows} == set(), f"{kind} {name}"


def _keys(tree: Any, above: str = "") -> Iterator[str]:
    for name, each in tree.items():
        if isinstance(each, dict):
            yield from _keys(each, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def test_paper_is_the_recipe_of_software_agents() -> None:
    assert rl_settings(LEAST | {"preset": "paper"}) == rl_settings(LEAST | {"preset": "swe"})


def test_names_in_the_table_are_plain() -> None:
    assert all(re.fullmatch(r"[a-z_]+(\.[a-z_]+)?", row[2]) for row in lines())
