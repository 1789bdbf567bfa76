"""Training and generation on a GPU in one table: tokens a second, MFU, memory, kernels (in 8 minutes).

    python -m tests.benchmarks.gpu                                   # one GPU
    torchrun --nproc-per-node 8 -m tests.benchmarks.gpu              # FSDP2: fine-tuning and RL alone
    python -m tests.benchmarks.gpu --size tiny --cpu                 # whether the script works

Needs torch, transformers, numpy, pyarrow, msgspec and aiohttp; peft for the row with LoRA, accelerate for
that of transformers.Trainer. Random models of the shapes of Qwen3-0.6B and 4B in bfloat16, packs of 32K
tokens, examples of 2K to 16K tokens of which a third trains, activation checkpointing. MFU counts forward and
backward pass of what is read and the logits of what trains; activations that are computed again do not count.
Kernels, and the seconds in which the device is busy, are of one more step, by torch's profiler.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

from orchard.pipelines.datasets.rows import TokenRow
from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.models.tiny import SHAPES, ModelShape, new_model
from orchard.pipelines.rl.learner import Learner, Trained
from orchard.pipelines.rl.sequences import TokenSequence
from orchard.pipelines.rl.settings import RlSettings
from orchard.pipelines.sft.adapters import add_adapter
from orchard.pipelines.sft.processes import Processes, joined
from orchard.pipelines.sft.settings import Lora, Precision, SftSettings
from orchard.pipelines.sft.trainer import SftTrainer
from tests.benchmarks import gpu_generation
from tests.benchmarks.gpu_generation import Work

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
QWEN3_4B = msgspec.structs.replace(
    QWEN3_06B,
    hidden_size=2560,
    intermediate_size=9728,
    num_hidden_layers=36,
    num_attention_heads=32,
)
PEAKS = {"H100": 989e12, "H200": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12}
"""Dense bfloat16 operations a second, by a part of the device's name, as its maker says."""


class Size:
    """What a run trains: the real thing, or one that a CPU does in seconds."""

    def __init__(self, tiny: bool, processes: int, *, large: bool = False) -> None:
        self.shape = SHAPES["tiny-test"] if tiny else QWEN3_4B if large else QWEN3_06B
        self.vocabulary = 2048 if tiny else 151_936
        self.context = 512 if tiny else 32_768
        self.lengths = (40, 250) if tiny else (2_048, 16_384)
        self.examples = 8 * processes if tiny else 16 * processes
        self.prompt, self.answer = (16, 8) if tiny else (256, 128)
        """Tokens of a request for generation."""
        self.slots = (1, 8) if tiny else (1, 8, 32, 128)

    def work(self, requests: int) -> Work:
        return Work(requests, self.vocabulary, self.prompt, self.answer)

    def flops(self, lengths: list[int], trained: int, *, frozen: bool) -> float:
        """Of forward and backward passes over examples of these lengths; `frozen` weights get no gradient."""
        shape = self.shape
        heads, width = shape.num_attention_heads * shape.head_dim, shape.hidden_size
        keys = shape.num_key_value_heads * shape.head_dim
        layer = width * (2 * heads + 2 * keys) + 3 * width * shape.intermediate_size
        read = 2 * shape.num_hidden_layers * layer * sum(lengths)
        seen = (
            2 * shape.num_hidden_layers * heads * sum(length**2 for length in lengths)
        )  # half a square, twice
        said = 2 * width * self.vocabulary * trained
        return (2.0 if frozen else 3.0) * (read + said) + 3.0 * seen

    def model(self, device: torch.device) -> PreTrainedModel:
        with device:
            return new_model(self.shape, vocabulary=self.vocabulary, seed=0)

    def half(self, device: torch.device) -> PreTrainedModel:
        return self.model(device).to(torch.bfloat16)


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


class Run(NamedTuple):
    step: Callable[[int], Any]
    lengths: Callable[[int], list[int]]
    """Tokens of the examples of a step."""
    frozen: bool = False


def fine_tuning(
    size: Size, processes: Processes, steps: int, *, lora: Lora | None = None, **changes: Any
) -> Run:
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
        lora=lora,
    )
    rows = [row for number in range(steps) for row in rows_of(size, number)]
    model = size.model(processes.device)
    if lora is not None:
        add_adapter(model, lora, base="random", seed=0)
    trainer = SftTrainer(msgspec.structs.replace(settings, **changes), rows, model, processes)
    return Run(
        trainer.step,
        lambda number: [len(rows[at].input_ids) for at in trainer.plan.batch(number)],
        lora is not None,
    )


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
    learner = Learner(settings, size.model(processes.device), processes)
    rows = [rows_of(size, number) for number in range(steps)]
    batches = [rollouts_of(each) for each in rows]
    return Run(
        lambda number: learner.step(number, batches[number]),
        lambda number: [len(row.input_ids) for row in rows[number]],
    )


def peak_of(processes: Processes) -> float | None:
    """Operations a second of one device; None where they are not known."""
    if processes.device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(processes.device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


class Figures(NamedTuple):
    """A row of the table; None: not measured."""

    tokens_per_second: float
    mfu: float | None = None
    memory_gb: float | None = None
    seconds: float | None = None
    """Of a step."""
    kernels: int | None = None
    busy: float | None = None
    """Seconds of a step in which the device computes."""


def measured(size: Size, processes: Processes, steps: int, make: Callable[..., Run], **given: Any) -> Figures:
    """Figures over all steps but the first, which warms up, and the last, which is profiled."""
    cuda = processes.device.type == "cuda"
    run = make(size, processes, steps, **given)
    tokens, flops, seconds = 0, 0.0, 0.0
    for number in range(steps - 1):
        started = time.perf_counter()
        fact = run.step(number)
        settle(processes.device)
        if not number:
            continue
        seconds += time.perf_counter() - started
        tokens += fact.tokens
        flops += size.flops(run.lengths(number), fact.trained_tokens, frozen=run.frozen)
    peak, memory = peak_of(processes), gigabytes(processes.device)
    kernels, busy = profiled(lambda: run.step(steps - 1)) if cuda else (None, None)
    return Figures(
        tokens / seconds,
        flops / seconds / (peak * processes.count) if peak else None,
        memory,
        seconds / (steps - 2),
        kernels,
        busy,
    )


def profiled(step: Callable[[], Any]) -> tuple[int, float]:
    """Number of a step's kernels, and the seconds that they take."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    averages = seen.key_averages()
    return sum(each.count for each in averages if each.self_device_time_total), sum(
        each.self_device_time_total for each in averages
    ) / 1e6


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def gigabytes(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None


def theirs(size: Size, processes: Processes) -> Figures:
    """transformers.Trainer on the rows of a step, an example a pass; its second run counts."""
    from transformers import Trainer, TrainingArguments

    from tests.benchmarks.bench_sft import Examples, padded

    rows = rows_of(size, 0)
    seconds = 0.0
    with tempfile.TemporaryDirectory() as out, redirect_stdout(sys.stderr):
        arguments = TrainingArguments(
            output_dir=out,
            max_steps=1,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=len(rows),
            gradient_checkpointing=True,
            bf16=True,
            use_cpu=processes.device.type == "cpu",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            remove_unused_columns=False,
        )
        model = size.model(processes.device)
        trainer = Trainer(model=model, args=arguments, train_dataset=Examples(rows), data_collator=padded)
        for _ in range(2):
            started = time.perf_counter()
            trainer.train()
            settle(processes.device)
            seconds = time.perf_counter() - started
    tokens = sum(len(row.input_ids) for row in rows)
    return Figures(tokens / seconds, None, gigabytes(processes.device), seconds)


def generation(size: Size, processes: Processes, slots: int, *, graphs: bool) -> Figures:
    """Of the policy server's engine, all slots busy."""
    work = size.work(slots)
    with gpu_generation.ours(size.half(processes.device), work, graphs=graphs) as ask:
        return generated(processes, work, gpu_generation.seconds(ask, work))


def continuous_batching(size: Size, processes: Processes, slots: int) -> Figures:
    """Of `transformers`."""
    work = size.work(slots)
    with gpu_generation.theirs(size.half(processes.device), work) as ask:
        return generated(processes, work, gpu_generation.seconds(ask, work))


def generated(processes: Processes, work: Work, seconds: float) -> Figures:
    tokens = work.requests * work.answer
    return Figures(tokens / seconds, None, gigabytes(processes.device), seconds / work.answer)


def exactness(size: Size, processes: Processes) -> str:
    """The loss of two examples in bfloat16, as trained, beside float32."""
    rows = sorted(rows_of(size, 0), key=lambda row: len(row.input_ids))[:2]
    found = []
    for precision in Precision:
        settings = SftSettings(dataset="", out="", shape="", context=size.context, precision=precision)
        trainer = SftTrainer(settings, rows, size.model(processes.device), processes)
        found.append(trainer.backward([(row,) for row in rows], 1))
        del trainer
        free()
    exact, rounded = found
    off = rounded / exact - 1
    return f"loss of two examples: {rounded:.6g} in bfloat16, {exact:.6g} in float32, {off:+.1e}"


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def measures(tiny: bool, processes: Processes, steps: int) -> Iterator[tuple[str, Callable[[], Figures]]]:
    """Names of the table's rows, and what measures each."""
    size, large = Size(tiny, processes.count), Size(tiny, processes.count, large=True)
    yield "fine-tuning", lambda: measured(size, processes, steps, fine_tuning)
    yield "reinforcement learning", lambda: measured(size, processes, steps, reinforcement)
    if processes.count > 1:
        return
    yield "fine-tuning, not compiled", lambda: measured(size, processes, steps, fine_tuning, compile=False)
    yield "transformers.Trainer, the same rows", lambda: theirs(size, processes)
    yield "fine-tuning at 4B, LoRA", lambda: measured(large, processes, steps, fine_tuning, lora=Lora())
    for slots in size.slots:
        for what, graphs in (("", True), (" without graphs", False)):
            yield (
                f"generation{what}, {slots} at once",
                partial(generation, size, processes, slots, graphs=graphs),
            )
        yield (
            f"continuous batching of transformers, {slots} at once",
            partial(continuous_batching, size, processes, slots),
        )


HEADER = "| what | tokens/s | MFU | GB | s a step | kernels | s busy |\n|---|---:|---:|---:|---:|---:|---:|\n"
FORMS = ("{:,.0f}", "{:.1%}", "{:.1f}", "{:.3f}", "{:,}", "{:.3f}")


def line(what: str, figures: Figures) -> str:
    told = [form.format(each) if each is not None else "" for form, each in zip(FORMS, figures, strict=True)]
    return f"| {what} | {' | '.join(told)} |"


def main() -> None:
    """The table, a row as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=("real", "tiny"), default="real")
    parser.add_argument("--steps", type=int, default=4, help="of each row; one warms up, one is profiled")
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no row begins")
    given = parser.parse_args()
    if not (given.cpu or torch.cuda.is_available()):
        sys.exit("there is no GPU here: run this on a machine with one, or try it with `--size tiny --cpu`")
    until = time.monotonic() + 60 * given.minutes
    with joined(0) as processes:

        def say(text: str) -> None:
            if processes.first:
                sys.stdout.write(text + "\n")
                sys.stdout.flush()

        cuda = processes.device.type == "cuda"
        device = torch.cuda.get_device_name() if cuda else "CPU"
        say(f"{processes.count} x {device}, torch {torch.__version__}\n\n{HEADER.rstrip()}")
        for what, measure in measures(given.size == "tiny", processes, given.steps):
            if processes.largest(time.monotonic()) > until:
                say(f"| {what} | not measured: the {given.minutes:g} minutes are over | | | | | |")
                continue
            free()
            try:
                say(line(what, measure()))
            except (ImportError, ModelError) as error:
                say(f"| {what} | not measured: {str(error).strip().partition(chr(10))[0]} | | | | | |")
        if processes.count == 1:
            free()
            size = Size(given.size == "tiny", 1)
            say("\n" + exactness(size, processes))
            free()
            say(gpu_generation.agreement(lambda: size.half(processes.device), size.work(8)))


if __name__ == "__main__":
    main()
