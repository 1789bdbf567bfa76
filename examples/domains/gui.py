"""Steps of the browser agents' example: generated sites, drawn drills, a vision model."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.example import Example
from orchard.pipelines.domains.gui.screens import screen_drills, screen_episodes, write_drills
from orchard.pipelines.domains.gui.synthesis import synthesize
from orchard.pipelines.rl.curves import plot_curves
from orchard.pipelines.tasks.registry import read_task_refs
from orchard.schemas.campaigns import TaskRef
from orchard.schemas.gui import NAME
from orchard.storage.reader import open_tables
from orchard.workers.domains.gui.sites.appearance import Split

SITE = "tiny"
_DRAWN = {"screens": screen_drills, "episodes": screen_episodes}


def shared(values: Mapping[str, Any]) -> dict[str, Any]:
    """Folder that all seeds share, and the divisor of each step's loss."""
    folder = Path(values["store"]) / "demo-gui"
    folder.mkdir(parents=True, exist_ok=True)
    tokens = values["prompts"] * values["size"] * 4 * values["answer_tokens"]
    return {"shared": str(folder), "tokens": float(tokens), "in_flight": 4 * values["size"]}


async def tasks(example: Example, *, split: Split, count: int, part: int) -> list[TaskRef]:
    """Registers tasks of the tiny family by `orchard tasks synthesize gui`."""
    options = ("--sites", SITE, "--limit", str(count), "--seed", str(part), "--layouts", split)
    await example.command("tasks", "synthesize", "gui", *options)
    await example.committed()
    wanted = {task.task_id for task in synthesize(part, count, sites=(SITE,), split=split)}
    return [ref for ref in read_task_refs(example.config.store, source=NAME) if ref.task_id in wanted]


async def drills(example: Example, *, kind: str, count: int, folder: str, harness: str) -> None:
    """Imports drills into the log as external data."""
    if (done := Path(folder) / f"{kind}-imported").exists():
        return
    file = Path(folder) / f"{kind}.parquet"
    await asyncio.to_thread(write_drills, file, _DRAWN[kind](0, count))
    name = f"demo-gui-{kind}"
    options = {"--format": "orchard-gui", "--campaign": name, "--name": name, "--harness": harness}
    await example.command(
        "dataset", "import", str(file), *(word for pair in options.items() for word in pair)
    )
    done.touch()


async def untrained(
    example: Example, *, out: str, reader: str, shape: str, tokenizer: str, seed: int
) -> None:
    """Creates an untrained vision-language model with its tokenizer and image processor."""
    from orchard.pipelines.models.directories import load_tokenizer, save_model
    from orchard.pipelines.models.tiny_vision import new_vision_model

    del example
    if Path(out).is_dir():
        return
    words = load_tokenizer(Path(tokenizer))
    model, processor = await asyncio.to_thread(new_vision_model, shape, tokenizer=words, seed=seed)
    for part in (words, processor):
        part.save_pretrained(reader)
    save_model(model, Path(out), tokenizer=words, processor=processor)


async def curves(example: Example, *, run: str) -> None:
    """Draws the curves of reinforcement learning."""
    with open_tables(example.config.store) as tables:
        plot_curves(tables, [run], example.directory / "curves.png")
