"""Tokens a second of our trainer beside `transformers.Trainer`, in one run (a script; the goal is 1.5 times).

The same model of a million parameters, the same examples of 150 to 600 tokens of which a third trains, the
same global batch. `transformers.Trainer` pads each of its batches to the longest example, once with examples
as they come and once grouped by length; padding counts for nobody. Rounds alternate and the median counts.
Processor time is given as well because the machine is rarely alone. Prints one JSON line for each figure.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import Qwen3ForCausalLM, Trainer, TrainingArguments

from orchard.pipelines.datasets.rows import TokenRow
from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.sft import trainer as ours
from orchard.pipelines.sft.processes import Processes
from orchard.pipelines.sft.settings import settings_from

ROUNDS = 3
EXAMPLES = 96
GLOBAL_BATCH = 32
VOCABULARY = 2048
GOAL = 1.5


def rows() -> list[TokenRow]:
    """Examples of the demonstration's size."""
    random = np.random.default_rng(0)
    made = []
    for number in range(EXAMPLES):
        length = int(random.integers(150, 600))
        mask = np.zeros(length, np.int8)
        for start in range(100, length, 90):
            mask[start : start + 30] = 1
        ids = random.integers(0, VOCABULARY, length).astype(np.int32)
        made.append(
            TokenRow(
                example_id=str(number),
                rollout_id=str(number),
                resolved=True,
                input_ids=ids,
                loss_mask=mask,
            )
        )
    return made


class Examples(Dataset[dict[str, list[int]]]):
    """The rows as `transformers` wants them, with -100 where nothing trains."""

    def __init__(self, examples: list[TokenRow]) -> None:
        self._items = [
            {
                "input_ids": row.input_ids.tolist(),
                "labels": np.where(row.loss_mask, row.input_ids, -100).tolist(),
                "length": len(row.input_ids),
            }
            for row in examples
        ]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._items[index]


def padded(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch, padded to its longest example."""
    longest = max(len(item["input_ids"]) for item in items)

    def filled(name: str, filler: int) -> torch.Tensor:
        return torch.tensor([item[name] + [filler] * (longest - len(item[name])) for item in items])

    ids = filled("input_ids", 0)
    lengths = torch.tensor([len(item["input_ids"]) for item in items])
    seen = (torch.arange(longest) < lengths[:, None]).long()
    return {"input_ids": ids, "labels": filled("labels", -100), "attention_mask": seen}


def model() -> Qwen3ForCausalLM:
    return new_model("tiny-1m", vocabulary=VOCABULARY, seed=0)


def run_ours(examples: list[TokenRow]) -> Callable[[], None]:
    settings = settings_from(
        {
            "dataset": "-",
            "out": "-",
            "model": "-",
            "epochs": 1,
            "global_batch": GLOBAL_BATCH,
            "context": 4096,
            "lr": 1e-3,
        }
    )
    alone = Processes(rank=0, count=1, device=torch.device("cpu"))
    trainer = ours.SftTrainer(settings, examples, model(), alone)

    def run() -> None:
        for number in range(trainer.plan.steps):
            trainer.step(number)

    return run


def run_theirs(examples: list[TokenRow], out: str, sampling: str) -> Callable[[], None]:
    arguments = TrainingArguments(
        output_dir=out,
        num_train_epochs=1,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=GLOBAL_BATCH // 8,
        learning_rate=1e-3,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        train_sampling_strategy=sampling,
        length_column_name="length",
        remove_unused_columns=False,
    )
    trainer = Trainer(model=model(), args=arguments, train_dataset=Examples(examples), data_collator=padded)

    def run() -> None:
        with redirect_stdout(sys.stderr):  # where it prints its own figures
            trainer.train()

    return run


def main() -> None:
    """Measure and print."""
    examples = rows()
    tokens = sum(len(row.input_ids) for row in examples)
    with tempfile.TemporaryDirectory() as out:
        runs = {
            "ours": run_ours(examples),
            "transformers.Trainer": run_theirs(examples, out, "random"),
            "transformers.Trainer, by length": run_theirs(examples, out, "group_by_length"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        processor: dict[str, list[float]] = {name: [] for name in runs}
        for round_number in range(ROUNDS + 1):
            for name, run in runs.items():
                wall, cpu = time.perf_counter(), time.process_time()
                run()
                if round_number:  # the first warms up
                    seconds[name].append(time.perf_counter() - wall)
                    processor[name].append(time.process_time() - cpu)
    for name in runs:
        figure(f"{name}: tokens trained", tokens / median(seconds[name]), "tokens/s")
        figure(f"{name}: tokens trained", tokens / median(processor[name]), "tokens/CPU-s")
    for name in list(runs)[1:]:
        ratio = median(seconds[name]) / median(seconds["ours"])
        figure(f"ours against {name}", ratio, "times", GOAL)
        ratio = median(processor[name]) / median(processor["ours"])
        figure(f"ours against {name}, by processor time", ratio, "times", GOAL)


def figure(name: str, value: float, unit: str, ceiling: float | None = None) -> None:
    """One JSON line."""
    ratio = value / ceiling if ceiling else None
    print(json.dumps({"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}))  # noqa: T201


if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:  # read when torch is loaded: begin again with it, as we ship it
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    main()
