"""Layouts of chat messages: Hugging Face and TRL, slime, verl, prime-rl, and TRL's stepwise
supervision, which says of each step whether it helped."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from orchard.pipelines.datasets.exporters.interface import (
    Exporter,
    Record,
    both,
    parts_of_trajectories,
    plain,
    text_only,
    written,
)
from orchard.pipelines.datasets.rows import Row
from orchard.schemas.campaigns import DEFAULT_DOMAIN

_FUNCTION = pa.struct([("name", pa.string()), ("arguments", pa.string())])
_CALL = pa.struct([("id", pa.string()), ("type", pa.string()), ("function", _FUNCTION)])
PLAIN_MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("tool_call_id", pa.string()),
        ("tool_calls", pa.list_(_CALL)),
    ]
)
_MESSAGE = pa.struct([*PLAIN_MESSAGE, pa.field("reasoning_content", pa.string())])
_MASKED = pa.struct([*_MESSAGE, pa.field("step_loss_mask", pa.int64())])


def messages_of(row: Row) -> list[dict[str, Any]]:
    """The row's messages in columns that are never null: empty text and empty lists instead."""
    return [
        {
            "role": message["role"],
            "content": written(message.get("content")),
            "tool_call_id": message.get("tool_call_id") or "",
            "tool_calls": message.get("tool_calls") or [],
            "reasoning_content": message.get("reasoning_content") or "",
        }
        for message in json.loads(row.messages)
    ]


def masked_messages(row: Row) -> list[dict[str, Any]]:
    """The messages with `step_loss_mask`: 1 on assistant messages that train, 0 on all others."""
    trained, step, found = set(row.trained_turns), -1, []
    for message in messages_of(row):
        is_assistant = message["role"] == "assistant"
        step += is_assistant
        found.append({**message, "step_loss_mask": int(is_assistant and step in trained)})
    return found


def _messages(row: Row) -> Iterator[Record]:
    yield {"messages": messages_of(row), "tools": row.tools}


def _slime(row: Row) -> Iterator[Record]:
    messages = masked_messages(row)
    if any(message["step_loss_mask"] for message in messages):  # a row that trains nothing breaks it
        yield {"messages": messages, "tools": row.tools, "metadata": plain(row)}


def _prime(row: Row) -> Iterator[Record]:
    yield {"messages": messages_of(row), "tools": row.tools, "example_id": row.example_id}


def _verl_sft(row: Row) -> Iterator[Record]:
    yield {"messages": messages_of(row), "enable_thinking": False}


def _verl_rl(row: Row) -> Iterator[Record]:
    prompt = []
    for message in messages_of(row):
        if message["role"] == "assistant":
            break
        prompt.append({"role": message["role"], "content": message["content"]})
    yield {
        "data_source": row.task_source,
        "prompt": prompt,
        "ability": DEFAULT_DOMAIN,
        "reward_model": {"style": "rule", "ground_truth": row.task_id},
        "extra_info": {"index": row.example_id, "task_id": row.task_id, "repo": row.repo},
    }


def schema_of(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


_PROMPT = pa.struct([("role", pa.string()), ("content", pa.string())])

MESSAGES = Exporter(
    name="messages",
    consumer="Hugging Face datasets, TRL SFTTrainer",
    schema=schema_of(messages=pa.list_(_MESSAGE), tools=pa.string()),
    project=_messages,
    losses=both(parts_of_trajectories, text_only),
    always=(
        "where a row came from",
        "tools as a list: they are JSON text, since Arrow would mix their keys",
        "which tokens train: give TRL `assistant_only_loss=True`, else it trains on observations too",
    ),
)
SLIME = Exporter(
    name="slime",
    consumer="slime SFT",
    schema=schema_of(
        messages=pa.list_(_MASKED), tools=pa.string(), metadata=pa.map_(pa.string(), pa.string())
    ),
    project=_slime,
    losses=text_only,
    format="jsonl",
    pictures="images",
)
PRIME = Exporter(
    name="prime-rl",
    consumer="prime-rl SFT",
    schema=schema_of(messages=pa.list_(_MESSAGE), tools=pa.string(), example_id=pa.string()),
    project=_prime,
    losses=both(parts_of_trajectories, text_only),
)
VERL_SFT = Exporter(
    name="verl-sft",
    consumer="verl multi-turn SFT",
    schema=schema_of(messages=pa.list_(_MESSAGE), enable_thinking=pa.bool_()),
    project=_verl_sft,
    losses=both(parts_of_trajectories, text_only),
    typed_tools=True,
    pictures="images",
    always=(
        "where a row came from; for rise segments give verl the `tokens` layout",
        "what alone trains: verl trains the line end behind each end mark, too",
    ),
)
VERL_RL = Exporter(
    name="verl-rl",
    consumer="verl RL",
    schema=schema_of(
        data_source=pa.string(),
        prompt=pa.list_(_PROMPT),
        ability=pa.string(),
        reward_model=pa.struct([("style", pa.string()), ("ground_truth", pa.string())]),
        extra_info=pa.struct([("index", pa.string()), ("task_id", pa.string()), ("repo", pa.string())]),
    ),
    project=_verl_rl,
    losses=text_only,
    pictures="images",
    always=("what the agent did: verl takes prompts and makes its own rollouts", "tools"),
)


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
