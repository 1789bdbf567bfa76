"""Steps of fine-tuning and of reinforcement learning on GPUs: tokens a second, MFU and memory (a script).

    python -m tests.benchmarks.gpu                                   # one GPU
    torchrun --nproc-per-node 8 -m tests.benchmarks.gpu              # FSDP2
    python -m tests.benchmarks.gpu --size tiny                       # whether the script works; on a CPU, too

A random model of Qwen3-0.6B's shape in bfloat16, packs of 32K tokens, examples of 2K to 16K tokens of which a
third trains, activation checkpointing. MFU counts forward and backward pass of what is read and the logits of
what trains; activations that are computed again do not count. Prints one JSON line for each figure, in the
first process.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from orchard.pipelines.datasets.rows import TokenRow
from orchard.pipelines.models.tiny import SHAPES, ModelShape, new_model
from orchard.pipelines.rl.learner import Learner, Trained
from orchard.pipelines.rl.sequences import TokenSequence
from orchard.pipelines.rl.settings import RlSettings
from orchard.pipelines.sft.processes import Processes, joined
from orchard.pipelines.sft.settings import Precision, SftSettings
from orchard.pipelines.sft.trainer import SftTrainer

QWEN3_06B = ModelShape(
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40_960,
    rope_theta=1_000_000.0,
)
PEAKS = {"H100": 989e12, "H200": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12}
"""Dense bfloat16 operations a second, by a part of the device's name, as its maker says."""


class Size:
    """What a run trains: the real thing, or one that a CPU does in seconds."""

    def __init__(self, tiny: bool, processes: int) -> None:
        self.shape = SHAPES["tiny-test"] if tiny else QWEN3_06B
        self.vocabulary = 2048 if tiny else 151_936
        self.context = 512 if tiny else 32_768
        self.lengths = (40, 250) if tiny else (2_048, 16_384)
        self.examples = 8 * processes if tiny else 16 * processes

    def flops(self, lengths: list[int], trained: int) -> float:
        """Of a forward and a backward pass over examples of these lengths."""
        shape = self.shape
        heads, width = shape.num_attention_heads * shape.head_dim, shape.hidden_size
        keys = shape.num_key_value_heads * shape.head_dim
        layer = width * (2 * heads + 2 * keys) + 3 * width * shape.intermediate_size
        read = 2 * shape.num_hidden_layers * layer * sum(lengths)
        seen = (
            2 * shape.num_hidden_layers * heads * sum(length**2 for length in lengths)
        )  # half a square, twice
        said = 2 * width * self.vocabulary * trained
        return 3.0 * (read + seen + said)


def rows_of(size: Size, seed: int) -> list[TokenRow]:
    """Examples in turns: a third of each trains."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(size.examples):
        length = int(random.integers(*size.lengths))
        mask = (np.arange(length) % 30 >= 20).astype(np.int8)
        ids = random.integers(0, size.vocabulary, length).astype(np.int32)
        name = f"{seed}-{number}"
        found.append(TokenRow(example_id=name, rollout_id=name, resolved=True, input_ids=ids, loss_mask=mask))
    return found


def rollouts_of(rows: list[TokenRow]) -> list[Trained]:
    """The same tokens as groups of four rollouts."""
    found = []
    for number, row in enumerate(rows):
        mask = row.loss_mask.tolist()
        sequence = TokenSequence(
            row.input_ids.tolist(), mask, [-12.0 * m for m in mask], [m - 1 for m in mask]
        )
        found.append(
            Trained(row.rollout_id, f"g{number // 4}", (-1.0) ** number, number % 2 == 0, [sequence])
        )
    return found


Run = tuple[Callable[[int], Any], Callable[[int], list[int]]]
"""Does a step, and says how long its examples are."""


def fine_tuning(size: Size, processes: Processes, steps: int) -> Run:
    """Of the trainer of `orchard sft`."""
    settings = SftSettings(
        dataset="",
        out="",
        shape="",
        epochs=1,
        global_batch=size.examples,
        context=size.context,
        precision=Precision.BFLOAT16,
        activation_checkpointing=True,
    )
    rows = [row for number in range(steps) for row in rows_of(size, number)]
    model = new_model(size.shape, vocabulary=size.vocabulary, seed=0)
    trainer = SftTrainer(settings, rows, model, processes)
    return trainer.step, lambda number: [len(rows[at].input_ids) for at in trainer.plan.batch(number)]


def reinforcement(size: Size, processes: Processes, steps: int) -> Run:
    """Of the learner of `orchard rl`."""
    settings = RlSettings(
        run="gpu",
        model="",
        out="",
        steps=steps,
        context=size.context,
        precision=Precision.BFLOAT16,
        activation_checkpointing=True,
    )
    learner = Learner(settings, new_model(size.shape, vocabulary=size.vocabulary, seed=0), processes)
    rows = [rows_of(size, number) for number in range(steps)]
    batches = [rollouts_of(each) for each in rows]
    return (
        lambda number: learner.step(number, batches[number]),
        lambda number: [len(row.input_ids) for row in rows[number]],
    )


def peak_of(processes: Processes) -> float | None:
    """Operations a second of one device; None where they are not known."""
    if processes.device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(processes.device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def measured(what: str, size: Size, processes: Processes, steps: int) -> dict[str, Any]:
    """Figures over all steps but the first, which warms up."""
    cuda = processes.device.type == "cuda"
    make = fine_tuning if what == "sft" else reinforcement
    step, lengths = make(size, processes, steps)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    tokens, flops, seconds = 0, 0.0, 0.0
    for number in range(steps):
        started = time.perf_counter()
        fact = step(number)
        if cuda:
            torch.cuda.synchronize()
        if not number:
            continue
        seconds += time.perf_counter() - started
        tokens += fact.tokens
        flops += size.flops(lengths(number), fact.trained_tokens)
    peak = peak_of(processes)
    return {
        "what": what,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "processes": processes.count,
        "context": size.context,
        "tokens_per_second": tokens / seconds,
        "mfu": flops / seconds / (peak * processes.count) if peak else None,
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9 if cuda else None,
        "seconds_per_step": seconds / (steps - 1),
    }


def main() -> None:
    """Both, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=("0.6b", "tiny"), default="0.6b")
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    with joined(0) as processes:
        size = Size(given.size == "tiny", processes.count)
        for what in ("sft", "rl"):
            found = measured(what, size, processes, given.steps)
            if processes.first:
                sys.stdout.write(json.dumps(found) + "\n")
            if processes.device.type == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
