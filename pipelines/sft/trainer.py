"""The fine-tuning run: steps over packed examples, from a dataset directory to a model directory."""

import math
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import msgspec
import torch
from transformers import PreTrainedModel

from orchard.pipelines.datasets.manifest import read_manifest
from orchard.pipelines.datasets.rows import TokenRow, read_tokens
from orchard.pipelines.models.directories import load_model, save_model
from orchard.pipelines.models.tiny import parameters
from orchard.pipelines.sft.adapters import add_adapter
from orchard.pipelines.sft.attention import use_packed_attention
from orchard.pipelines.sft.checkpoints import Checkpoints, TrainingPosition, same_run, whole_weights
from orchard.pipelines.sft.layers import compiles, prepare_layers
from orchard.pipelines.sft.loss import make_pack, summed_loss, trained_tokens
from orchard.pipelines.sft.metrics import JsonLines, Sink, plot_steps, read_steps
from orchard.pipelines.sft.picture_packs import Eyes, eyes_of
from orchard.pipelines.sft.preferences import preference_pairs, summed_dpo_loss
from orchard.pipelines.sft.preparation import (
    check_objective,
    check_rows,
    freeze,
    make_optimizers,
    parameters_sha256,
    set_rate,
    starting_point,
    weights_sha256,
)
from orchard.pipelines.sft.processes import Processes, clipped, joined, last_backward, shard
from orchard.pipelines.sft.schedule import BatchSchedule, process_packs
from orchard.pipelines.sft.settings import SftSettings, TrainingError, settings_hash
from orchard.schemas.training import TrainingFinished, TrainingStarted, TrainingStep
from orchard.storage.blobs import BlobStore
from orchard.storage.durable import write_whole


class RunInterrupted(TrainingError):
    """A run that SIGTERM or SIGINT ended; its newest checkpoint has all of its steps."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class StopSignals:
    """Remembers SIGTERM and SIGINT while it is open; a second one has its default effect.

    A context manager. Python delivers signals to the main thread alone: opened in another, it hears
    none.
    """

    def __init__(self) -> None:
        self.heard = 0
        """Number of the first signal; 0: none."""
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._before:
                signal.signal(number, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _: FrameType | None) -> None:
        self.heard = self.heard or number
        signal.signal(number, self._before[signal.Signals(number)])


METRICS = "metrics.jsonl"
PLOT = "loss.png"
MODEL = "model"
ADAPTED = "adapter"
CHECKPOINTS = "checkpoints"
FINISHED = "finished.json"
"""Position of the training whose model is there."""


class SftTrainer:
    """Model, optimizers and data of a run, and what one step does to them."""

    def __init__(
        self,
        settings: SftSettings,
        rows: Sequence[TokenRow],
        model: PreTrainedModel,
        processes: Processes,
        eyes: Eyes | None = None,
        reference: PreTrainedModel | None = None,
    ) -> None:
        """`model` is put on the device, prepared for packs and sharded, and so is `reference`, the model that
        the run started from: `dpo` needs it, but for an adapter. `eyes` find the pictures of rows. Raises
        TrainingError, ModelError."""
        vocabulary = model.config.get_text_config().vocab_size
        check_rows(rows, context=settings.context, vocabulary=vocabulary, sees=eyes is not None)
        self.settings, self.rows, self.processes, self.model = settings, rows, processes, model
        self._eyes, self._reference = eyes, reference
        self.examples: Sequence[tuple[TokenRow, ...]] = (
            [(row,) for row in rows] if settings.dpo is None else preference_pairs(rows)
        )
        """What a batch consists of: single rows, or pairs."""
        self.plan = BatchSchedule(
            examples=len(self.examples),
            global_batch=settings.global_batch,
            epochs=settings.epochs,
            seed=settings.seed,
            max_steps=settings.max_steps,
        )
        model.train()
        if settings.packing:
            use_packed_attention(model)
        prepare_layers(
            model,
            checkpointing=settings.activation_checkpointing,
            compiled=compiles(settings, processes.device),
        )
        if reference is not None:
            reference.eval().requires_grad_(False)
            if settings.packing:
                use_packed_attention(reference)
            shard(reference, processes, settings.precision)
        self._frozen = freeze(model, settings.freeze)
        self.frozen_sha256 = self._frozen_sha256(dict(model.named_parameters()))
        """Digest of the frozen weights at the start; None where everything trains."""
        self._passes = shard(model, processes, settings.precision)
        self.optimizers = make_optimizers(model, settings, processes.count)

    def check_frozen(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Raise TrainingError where a frozen weight changed; `weights` are whole, by name."""
        if self._frozen_sha256(weights) != self.frozen_sha256:
            raise TrainingError(
                f"weights that {list(self.settings.freeze)} freezes are not what they were at the start: "
                "delete the run's checkpoints, and start it again"
            )

    def _frozen_sha256(self, weights: Mapping[str, torch.Tensor]) -> str | None:
        return parameters_sha256(weights, self._frozen) if self._frozen else None

    def step(self, number: int) -> TrainingStep:
        """Do step `number`, counted from 0: forward and backward over its packs, then one update.

        Raises TrainingError, with the weights unchanged, where the gradient is not finite.
        """
        started = time.monotonic()
        settings, processes = self.settings, self.processes
        examples = [self.examples[index] for index in self.plan.batch(number)]
        rows = [row for example in examples for row in example]
        trained = sum(trained_tokens(row) for row in rows)
        divisor = trained if settings.dpo is None else len(examples)
        lr = set_rate(self.optimizers, number, self.plan.steps, settings)
        summed = self.backward(examples, divisor)
        norm = clipped(self.model, settings.clip)
        if not math.isfinite(norm):
            raise TrainingError(
                f"the gradient of step {number + 1} is not finite: lower `lr` or lengthen `warmup`, "
                "and start again from the newest checkpoint"
            )
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return TrainingStep(
            run=settings.run,
            step=number + 1,
            loss=processes.summed(summed) / divisor,
            lr=lr,
            grad_norm=norm,
            tokens=sum(len(row.input_ids) for row in rows),
            trained_tokens=trained,
            seconds=time.monotonic() - started,
            epoch=self.plan.epoch(number + 1),
            examples=len(examples),
            memory_bytes=torch.cuda.max_memory_allocated() if processes.device.type == "cuda" else 0,
        )

    def backward(self, examples: Sequence[tuple[TokenRow, ...]], divisor: int) -> float:
        """Add the gradient of the whole batch's loss over `divisor`, its trained tokens or pairs.

        Returns the loss summed over this process's packs, in nats.
        """
        processes, settings = self.processes, self.settings
        lengths = [sum(len(row.input_ids) for row in example) for example in examples]
        capacity = (settings.pack_tokens or settings.context) if settings.packing else None
        mine = process_packs(examples, lengths, capacity, processes.count, processes.rank)
        losses = []
        with self._passes():
            for place, members in enumerate(mine):
                last_backward(self.model, place == len(mine) - 1)
                loss = self._loss(members)
                # Sharded gradients are averaged over the processes, but the batch has one mean over all.
                (loss * (processes.count / divisor)).backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach())
        # Read at the end alone: a GPU's queue stays full meanwhile.
        return sum(loss.item() for loss in losses)

    def _loss(self, examples: Sequence[tuple[TokenRow, ...]]) -> torch.Tensor:
        rows = [row for example in examples for row in example]
        pack = make_pack(rows, self.processes.device, self._eyes)
        if self.settings.dpo is None:
            return summed_loss(self.model, pack)
        return summed_dpo_loss(self.model, self._reference, pack, examples, self.settings.dpo.beta)


def train(
    settings: SftSettings,
    *,
    sinks: Callable[[], Sequence[Sink]] = tuple,
    code_version: str = "",
) -> Path:
    """Run or resume the training and return its model directory, `<out>/model`; one that is finished is
    returned as it is.

    `sinks` is called once, in the process that reports. Raises TrainingError, of which RunInterrupted
    is one, ModelError, DatasetError.
    """
    out = Path(settings.out)
    with joined(settings.threads) as processes, StopSignals() as stop:
        manifest = read_manifest(Path(settings.dataset))
        check_objective(manifest, settings)
        position = TrainingPosition(settings_hash=settings_hash(settings), dataset_sha256=manifest.sha256)
        if _finished(out, position):
            return out / MODEL
        rows = list(read_tokens(Path(settings.dataset)))
        model, tokenizer, processor = starting_point(settings)
        size = parameters(model)
        if settings.lora is not None:
            add_adapter(model, settings.lora, base=settings.model or "", seed=settings.seed)
        blobs = BlobStore(settings.dataset)
        apart = settings.dpo is not None and settings.lora is None
        reference = load_model(settings.model) if apart and settings.model else None
        eyes = eyes_of(model, processor, blobs.read)
        trainer = SftTrainer(settings, rows, model, processes, eyes, reference)
        out.mkdir(parents=True, exist_ok=True)
        checkpoints = Checkpoints(out / CHECKPOINTS, processes, settings.keep_checkpoints, TrainingPosition)
        if (newest := checkpoints.newest()) is not None:
            same_run(newest, position, out)
            checkpoints.load(model, trainer.optimizers)
            position = newest
        if processes.first:
            (out / FINISHED).unlink(missing_ok=True)
        reports = [JsonLines(out / METRICS, position.step), *sinks()] if processes.first else []
        for sink in reports:
            sink.put(
                TrainingStarted(
                    run=settings.run,
                    config_hash=position.settings_hash,
                    dataset_sha256=manifest.sha256,
                    model=settings.model or f"qwen3-{settings.shape}",
                    parameters=size,
                    steps=trainer.plan.steps,
                    code_version=code_version,
                    device=str(processes.device),
                    dtype=settings.precision,
                    world_size=processes.count,
                    global_batch=settings.global_batch,
                    context=settings.context,
                    seed=settings.seed,
                    resumed_step=position.step,
                    frozen_sha256=trainer.frozen_sha256,
                )
            )
        started = time.monotonic()
        for number in range(position.step, trainer.plan.steps):
            fact = trainer.step(number)
            position = position.after(fact)
            for sink in reports:
                sink.put(fact)
            # Processes of one run hear of a signal at different steps, and must end after the same one.
            signal = int(processes.largest(stop.heard)) if fact.step < trainer.plan.steps else 0
            if signal or (settings.checkpoint_every and fact.step % settings.checkpoint_every == 0):
                checkpoints.save(model, trainer.optimizers, position)
            if signal:
                raise RunInterrupted(
                    f"the run {settings.run} was interrupted after step {fact.step} of {trainer.plan.steps}: "
                    f"start the same command again to resume it from {out / CHECKPOINTS}",
                    signal,
                )
        state = whole_weights(model, processes)
        if processes.first:
            trainer.check_frozen(state or dict(model.named_parameters()))
            if settings.lora is not None:
                save_model(model, out / ADAPTED, tokenizer=tokenizer, processor=processor, state=state)
                model, state = load_model(out / ADAPTED), None
            save_model(model, out / MODEL, tokenizer=tokenizer, processor=processor, state=state)
            steps = read_steps(out / METRICS)
            plot_steps(
                steps, out / PLOT, f"{settings.run}: {len(rows):,} examples, {position.tokens:,} tokens"
            )
            finished = TrainingFinished(
                run=settings.run,
                checkpoint=MODEL,
                checkpoint_sha256=weights_sha256(out / MODEL),
                steps=position.step,
                tokens=position.tokens,
                trained_tokens=position.trained_tokens,
                seconds=time.monotonic() - started,
                final_loss=steps[-1].loss,
                frozen_sha256=trainer.frozen_sha256,
            )
            for sink in reports:
                sink.put(finished)
            write_whole(out, FINISHED, msgspec.json.encode(position))
        processes.wait()
    return out / MODEL


def _finished(out: Path, wanted: TrainingPosition) -> bool:
    """Whether the directory holds the model of this training."""
    try:
        position = msgspec.json.decode((out / FINISHED).read_bytes(), type=TrainingPosition)
    except FileNotFoundError:
        return False
    same = (position.settings_hash, position.dataset_sha256) == (wanted.settings_hash, wanted.dataset_sha256)
    return same and (out / MODEL).is_dir()
