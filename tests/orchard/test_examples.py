"""Examples: steps can be done, with what their functions take and with names that stand for something."""

import inspect
import re
import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

from examples import steps
from examples.domains.judging import drawn_steps, told_choices
from examples.run import FOLDER, OWN, do_step, example, filled
from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.pipelines.datasets.settings import DatasetSettings
from orchard.pipelines.evaluation.suite import read_suite
from orchard.pipelines.rl import settings as rl
from orchard.pipelines.sft import settings as sft
from orchard.workers.discovery import load

FILES = sorted(file.stem for file in FOLDER.glob("*.toml"))
OPEN = {
    "rl",
    "suite",
    "dataset",
    "sft",
    "oracle",
    "examples.domains.distilling:distilled",
    "examples.domains.swe:reinforced",
    "examples.domains.swe:taught",
}
"""Steps that hand further keys on to a command's file, or to a campaign."""
WRITING = {
    "sft",
    "rl",
    "suite",
    "examples.domains.distilling:distilled",
    "examples.domains.swe:reinforced",
    "examples.domains.swe:taught",
}
"""Steps that write the file of a command."""
NAME = re.compile(r"\{(\w+)")


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHARD_CONFIG", "")
    (tmp_path / "demo-sft" / "run" / "model").mkdir(parents=True)


def texts(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [text for each in inner for text in texts(each)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("name", FILES)
def test_each_step_is_a_function_that_takes_its_keys_and_names_that_are_known(
    name: str, tmp_path: Path
) -> None:
    made, values = example(name, str(tmp_path))
    known = {*values, "each"}
    for step in made.steps:
        function = load(step["do"] if ":" in step["do"] else f"examples.steps:{step['do']}")
        taken = inspect.signature(function).parameters
        given = {key for key in step if key not in OWN}
        needed = {n for n, p in taken.items() if p.default is p.empty and p.kind is p.KEYWORD_ONLY}
        assert needed <= given, step
        if all(p.kind is not p.VAR_KEYWORD for p in taken.values()):
            assert given <= {*taken}, step
        assert {n for text in texts(step) for n in NAME.findall(text)} <= known, step
        kept = step.get("as", [])
        known |= {kept} if isinstance(kept, str) else set(kept)
    assert {n for text in texts(made.report) for n in NAME.findall(text)} <= known


@pytest.mark.parametrize("name", FILES)
def test_each_setting_is_used_and_explained(name: str) -> None:
    text = (FOLDER / f"{name}.toml").read_text()
    described = tomllib.loads(text)
    source = "".join(file.read_text() for file in FOLDER.rglob("*.py"))
    for setting in described["settings"]:
        assert re.search(rf"^{setting} = .+  # .+", text, re.M), setting
        assert f"{{{setting}" in text or f'"{setting}"' in source, setting


MADE = {
    **{key: ["a-task"] for key in ("ids", "measured", "prompted", "further")},
    **dict.fromkeys(("base", "newest", "tokenizer"), "somewhere"),
    "models": {"one": "somewhere"},
}
"""What earlier steps would have made."""
READERS = {"sft": sft.read_settings, "rl": rl.read_settings, "eval": read_suite}


@pytest.mark.parametrize("name", FILES)
async def test_each_file_that_a_step_writes_is_one_that_its_command_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, values = example(name, str(tmp_path))
    read = []

    async def command(verb: str, file: str, *_: str) -> None:
        read.append(READERS[verb](Path(file)))

    monkeypatch.setattr(made, "command", command)
    monkeypatch.setattr(made, "serving", lambda *_: nullcontext())
    monkeypatch.setattr(steps, "read_results", lambda *_: None)
    monkeypatch.setattr(steps, "show_results", lambda _: None)
    monkeypatch.setattr(steps, "open_tables", lambda _: nullcontext())
    for step in made.steps:
        if step["do"] in WRITING:
            await do_step(made, step, MADE | values | {"tokenizer": "somewhere"})
        elif step["do"] == "dataset":
            settings = filled(
                {key: step[key] for key in step if key not in {*OWN, "out"}}, MADE | values | {"each": "x"}
            )
            msgspec.convert(settings, DatasetSettings)
    assert len(read) == sum(step["do"] in WRITING for step in made.steps) + (name == "matrix")


def test_a_choice_has_a_score_for_each_seed_or_one_for_all() -> None:
    found = {"random": ["20%", "20%", "20%"], "rerank": ["30%", "40%", "30%"]}
    assert told_choices(found, "of 90 tasks") == "random: 20%; rerank: 30%, 40%, 30%; of 90 tasks"


def test_steps_to_measure_are_the_same_whatever_other_rollouts_there_are() -> None:
    drawn = {name: drawn_steps(f"0:{name}", 8, 3) for name in ("a", "b", "c")}
    assert drawn == {name: drawn_steps(f"0:{name}", 8, 3) for name in ("c", "a", "b")}
    assert all(len({*steps}) == 3 and max(steps) < 7 for steps in drawn.values())
    assert drawn_steps("0:a", 2, 3) == [0]


async def test_an_endpoint_that_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    made, values = example("rubric", str(tmp_path), endpoint="mine")
    made.session = Session(made.config)
    first = made.steps[0]
    with pytest.raises(ConfigError, match="no endpoint is named 'mine': choose one of policy, rules"):
        await do_step(made, first, values)
    await do_step(made, first, values | {"endpoint": "rules"})


def test_placeholders() -> None:
    values = {"tasks": 3, "share": 0.25, "found": {"a": [1]}}
    given = {"n": "{tasks}", "text": "of-{share:g}", "deep": [{"x": "{found}"}], "plain": True}
    assert filled(given, values) == {"n": 3, "text": "of-0.25", "deep": [{"x": {"a": [1]}}], "plain": True}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"taks": 3}, "no setting 'taks'"),
        ({"tasks": "many"}, "tasks cannot be 'many'"),
        ({"tasks": "-1"}, "it must be 0 or more"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        example("sft", str(tmp_path), **given)


def test_reinforcement_learning_starts_from_the_policy_of_fine_tuning(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `make demo-sft` first"):
        example("rl", str(tmp_path / "empty"))


async def test_a_file_overrides_the_settings_for_tiny_models() -> None:
    written: dict[str, Any] = {}

    async def command_with(*given: Any) -> None:
        written.update(given[-1])

    step_of: Any = SimpleNamespace(command_with=command_with)
    await steps.sft(step_of, out="o", lr=0.1, warmup=0.5)
    assert (written["warmup"], written["lr"], written["optimizer"]) == (0.5, 0.1, "muon")
