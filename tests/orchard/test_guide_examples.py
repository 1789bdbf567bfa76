"""What docs/extending.md names can be imported, and its examples of a loss and a world work."""

import asyncio
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from orchard import plugins
from orchard.pipelines.rl.loss_settings import LossSettings
from orchard.pipelines.rl.losses import Tokens
from orchard.schemas.campaigns import Budget
from orchard.schemas.messages import ToolCall
from orchard.schemas.outcomes import ExitStatus

GUIDE = (Path(__file__).parent.parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
ROWS = [line for line in GUIDE.splitlines() if line.startswith("|")]
CLASS = re.compile(r"`([A-Z][a-z]+\w*)`")
MODULE = re.compile(r"`(orchard\.[a-z_]+\.[a-z_.]+)`")


@pytest.mark.parametrize("row", [row for row in ROWS if CLASS.search(row)])
def test_a_class_of_the_tables_can_be_imported(row: str) -> None:
    modules = [plugins, *(import_module(name) for name in MODULE.findall(row))]
    assert [name for name in CLASS.findall(row) if not any(hasattr(one, name) for one in modules)] == []


def test_everything_that_plugins_exports_is_there() -> None:
    assert [name for name in plugins.__all__ if not hasattr(plugins, name)] == []


def example(title: str) -> dict[str, Any]:
    """Runs the Python block of a section and returns its names."""
    block = re.search(rf"^## {title}\n.*?```python\n(.*?)```", GUIDE, re.DOTALL | re.MULTILINE)
    assert block is not None
    names: dict[str, Any] = {"__name__": "example"}
    exec(block[1], names)
    return names


def test_the_loss_raises_what_was_better_than_expected() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    still = logprobs.detach()
    batch = Tokens(
        logprobs=logprobs,
        old=still,
        sampled=None,
        advantages=torch.tensor([1.0, -1.0]),
        weights=torch.tensor([0.5, 0.5]),
        sequence=torch.tensor([0, 1]),
    )
    loss, figures = example("A loss")["reinforce"](batch, LossSettings())
    loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-0.5, 0.5]
    assert figures.tokens == 2


def test_the_world_counts() -> None:
    world = example("A world")["Counter"]()

    async def play() -> str:
        async with world.open(world.settings(start=4), None) as opened:
            assert opened.bounded(Budget()) == Budget()
            _, told = await opened.call(ToolCall(id="1", name="count", arguments="{}"))
            assert told == "It is 5."
            handed: str = await opened.hand_in(ExitStatus.FINISHED, [])
            return handed

    assert asyncio.run(play()) == "5"
