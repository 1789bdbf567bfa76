"""`python -m examples.run examples/sft.toml --seed 1`: an example, step by step.

A file has `settings`, which options of the command line replace, and `steps`. The `do` of a step names a
function of `examples.steps`, or of a domain as `module:function`; its other keys are the function's
arguments, in which `{name}` stands for a setting or for what an earlier step is kept `as`. `if` leaves a step
out, `each` repeats it. Every step does only what is not done yet, so that a run that was stopped goes on.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from examples.example import Example
from orchard.configuration.config import ConfigError
from orchard.pipelines.models.errors import require_torch
from orchard.processes.pipeline import pipeline
from orchard.terminal.console import console
from orchard.terminal.errors import run_told
from orchard.terminal.tables import rows_table
from orchard.workers.discovery import load

FOLDER = Path(__file__).parent
OWN = frozenset({"do", "as", "title", "if", "each"})
"""Keys of a step that are not arguments of its function."""
_COMMENT = re.compile(r"^(\w+) = .*?# (.+)$", re.MULTILINE)


def example(name: str, store: str, **settings: object) -> tuple[Example, dict[str, Any]]:
    """Reads the example of a file in this folder, and the values of its placeholders. Raises ConfigError
    for unknown or mistyped settings, and for those that the example's own check refuses."""
    described = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    known = described["settings"]
    for setting, value in settings.items():
        if setting not in known:
            raise ConfigError(f"{name}.toml has no setting {setting!r}: it has {', '.join(known)}")
        try:
            known[setting] = msgspec.convert(value, type(known[setting]), strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{setting} cannot be {value!r}: {error}") from error
        if isinstance(known[setting], int | float) and known[setting] < 0:
            raise ConfigError(f"{setting} is {value}: it must be 0 or more")
    values: dict[str, Any] = {"store": str(Path(store).absolute()), **known}
    if prepare := described.get("prepare"):
        values |= load(prepare)(values)
        described["settings"] = {name: values[name] for name in known}
    steps, report = described.pop("steps"), described.pop("report")
    made = Example(store, filled(described, values), steps, report)
    return made, values | {"directory": str(made.directory)}


async def run(made: Example, values: dict[str, Any]) -> dict[str, Any]:
    """Runs all steps and returns the values that they keep. Raises what their commands raise."""
    async with made.watching_memory(), pipeline(made.config, console.print) as made.session:
        for title, group in _titled(made.steps).items():
            with made.step(title):
                for step in group:
                    await do_step(made, step, values)
    return values


async def do_step(made: Example, step: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Runs one step and adds its result to the values."""
    if not filled(step.get("if", True), values):
        return
    name = step["do"]
    function = load(name if ":" in name else f"examples.steps:{name}")
    for each in filled(step.get("each", [""]), values):
        given = {key: filled(value, values | {"each": each}) for key, value in step.items() if key not in OWN}
        found = await function(made, **given)
    if isinstance(kept := step.get("as"), list):
        values |= dict(zip(kept, found, strict=True))
    elif kept:
        values[kept] = found


def _titled(steps: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Groups the steps by title; a step without one belongs to the step before."""
    found: dict[str, list[dict[str, Any]]] = {}
    title = ""
    for step in steps:
        title = step.get("title", title)
        found.setdefault(title, []).append(step)
    return found


def filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Fills in the placeholders of a value. A text that is one placeholder becomes the placeholder's
    value."""
    if isinstance(value, dict):
        return {key: filled(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, values) for each in value]
    if not isinstance(value, str):
        return value
    alone = re.fullmatch(r"\{(\w+)\}", value)
    return values[alone[1]] if alone else value.format_map(values)


def show(made: Example, values: Mapping[str, Any]) -> None:
    """Formats the file's report and the time of each step."""
    seconds = made.seconds
    rows: list[tuple[str, str]] = [(*filled(row, values),) for row in made.report]
    rows += [(title, f"{took:.0f} s") for title, took in seconds.items()]
    rows += [("all", f"{sum(seconds.values()) / 60:.1f} min")]
    rows += [("most memory of all processes", f"{made.peak_bytes / 2**30:.1f} GiB")]
    console.print(rows_table([made.directory.name, ""], rows))


def main() -> None:
    """Runs the example that the command line names."""
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "--help")
    if not file.is_file():
        sys.exit(f"{__doc__}\nFiles: {', '.join(sorted(each.name for each in FOLDER.glob('*.toml')))}")
    text = file.read_text(encoding="utf-8")
    described, meanings = tomllib.loads(text), dict(_COMMENT.findall(text))
    parser = argparse.ArgumentParser(
        prog=f"python -m examples.run {file}",
        description=described["about"],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--store",
        default=described.get("store", ".orchard"),
        help="Directory of all it makes. Default: %(default)s",
    )
    for name, value in described["settings"].items():
        if not isinstance(value, list | dict):
            option = f"--{name.replace('_', '-')}"
            parser.add_argument(option, default=value, help=f"{meanings.get(name, '')} Default: {value}")
    given = vars(parser.parse_args(sys.argv[2:]))
    store = filled(given.pop("store"), given)
    run_told(partial(_run, file.stem, store, given))


def _run(name: str, store: str, settings: Mapping[str, Any]) -> None:
    require_torch(f"examples/{name}.toml")
    made, values = example(name, store, **settings)
    show(made, uvloop.run(run(made, values)))


if __name__ == "__main__":
    main()
