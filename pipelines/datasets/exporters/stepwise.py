"""TRL stepwise supervision from value curves: each step of a trajectory with whether it helped."""

import json
from collections.abc import Iterator

import pyarrow as pa

from orchard.pipelines.datasets.exporters.interface import Exporter, Record, text_only, written
from orchard.pipelines.datasets.rows import Row


def _stepwise(row: Row) -> Iterator[Record]:
    """A step's label is whether it trains: in a resolved trajectory all do, in others those that rise."""
    prompt: list[str] = []
    steps: list[list[str]] = []
    for message in json.loads(row.messages):
        text = written(message.get("content"))
        if message["role"] == "assistant":
            calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
            steps.append(["\n".join([message.get("reasoning_content") or "", text, *calls]).strip()])
        elif steps:
            steps[-1].append(text)
        else:
            prompt.append(text)
    yield {
        "prompt": "\n\n".join(prompt),
        "completions": ["\n\n".join(filter(None, step)) for step in steps],
        "labels": [step in row.trained_turns for step in range(len(steps))],
    }


def _coarse(row: Row) -> Iterator[str]:
    yield from text_only(row)
    if not row.resolved:
        yield "how much a step rises: a label is only whether it does"
        yield "steps after the last rise: the dataset has cut them off"


STEPWISE = Exporter(
    name="trl-stepwise",
    consumer="TRL PRMTrainer (stepwise supervision)",
    schema=pa.schema(
        [
            ("prompt", pa.string()),
            ("completions", pa.list_(pa.string())),
            ("labels", pa.list_(pa.bool_())),
        ]
    ),
    project=_stepwise,
    losses=_coarse,
    always=("roles, tools and the border between an action and its result",),
)
