"""Takes one optimizer step on whole groups: rollouts in, new weights and figures out."""

import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from transformers import PreTrainedModel

from orchard.pipelines.datasets.rows import TokenRow
from orchard.pipelines.models.routers import Choices, Routers
from orchard.pipelines.rl.baselines import advantages, shaped
from orchard.pipelines.rl.distillation import token_advantages
from orchard.pipelines.rl.logprobs import trained_logprobs
from orchard.pipelines.rl.losses import LossFigures, Tokens, get_loss, rollout_weights
from orchard.pipelines.rl.replay import RolloutExperts
from orchard.pipelines.rl.sequences import NotSampled, TokenSequence
from orchard.pipelines.rl.settings import RlSettings, RouterReplay
from orchard.pipelines.rl.turn_rewards import turn_advantages
from orchard.pipelines.sft.adapters import add_adapter
from orchard.pipelines.sft.attention import use_packed_attention
from orchard.pipelines.sft.layers import compiles, prepare_layers
from orchard.pipelines.sft.loss import Pack, make_pack
from orchard.pipelines.sft.picture_packs import Eyes
from orchard.pipelines.sft.preparation import adam, set_rate
from orchard.pipelines.sft.processes import Processes, clipped, finite, last_backward, shard
from orchard.pipelines.sft.schedule import process_packs
from orchard.pipelines.vision.places import Misplaced
from orchard.pipelines.vision.reading import BadPicture
from orchard.storage.errors import BlobCorrupt, BlobMissing


@dataclass(frozen=True)
class Trained:
    """One rollout of a batch, with its sequences."""

    rollout_id: str
    group: str
    reward: float
    resolved: bool
    sequences: Rows[TokenSequence]
    turn_rewards: Rows[float] = ()
    """Rewards of its turns by a rubric; empty where it was not scored."""
    teacher: Rows[np.ndarray] = ()
    """Log-probabilities of the trained tokens of each sequence by a teacher; empty without one."""

    @property
    def tokens(self) -> int:
        """Number of tokens that train."""
        return sum(sum(sequence.mask[1:]) for sequence in self.sequences)


@dataclass(frozen=True)
class _Row:
    """One sequence, ready to be packed. Arrays have one entry for each trained token."""

    row: TokenRow
    sampled: np.ndarray
    advantages: np.ndarray
    weight: float
    experts: Rows[bytes]
    """Of all tokens, as in TokenSequence."""


class _Before(NamedTuple):
    """What the weights before a step make of a pack: log-probabilities, and the experts that they choose, if
    these are recorded."""

    logprobs: torch.Tensor
    choices: Choices


class StepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one step: means over its trained tokens where nothing else is said."""

    loss: float
    lr: float
    grad_norm: float
    """Norm of the last update's gradient, before clipping."""
    tokens: int
    """Tokens read, context included."""
    trained_tokens: int
    entropy: float
    """Entropy of the policy at the sampled positions, in nats."""
    clipped: float
    ratio: float
    kl: float
    importance: float
    truncated: float
    """Share of tokens whose importance weight was at its limit, or outside its range."""
    masked: float
    """Share of tokens in sequences that were masked as off-policy."""
    reference_kl: float
    seconds: float


class NotFinite(ArithmeticError):
    """Loss, gradient, weights or figures of a step are not finite: it makes no policy."""

    def __init__(self, what: str, *, changed: bool) -> None:
        super().__init__(what)
        self.changed = changed
        """Whether weights were changed: the model must be loaded again."""


class Learner:
    """Model and optimizer of a run. All processes of it call the same methods with the same batches."""

    def __init__(
        self,
        settings: RlSettings,
        model: PreTrainedModel,
        processes: Processes,
        reference: PreTrainedModel | None = None,
        eyes: Eyes | None = None,
    ) -> None:
        """`model` is put on the device, prepared for packs and sharded, and so is `reference`, the policy
        that the run started from: `loss.kl` needs it, but for an adapter, without which the model is that
        policy. `eyes` find the pictures of sequences. Raises ModelError, TrainingError."""
        self.settings, self.model, self.processes = settings, model, processes
        self._loss = get_loss(settings.loss)
        self._eyes = eyes
        if settings.lora is not None:
            add_adapter(model, settings.lora, base=settings.model, seed=settings.seed)
        self._reference = reference
        if reference is not None:
            reference.eval().requires_grad_(False)
            use_packed_attention(reference)
            shard(reference, processes, settings.precision)
        model.eval()  # dropout would make the trained policy another one than the sampled
        use_packed_attention(model)
        prepare_layers(
            model,
            checkpointing=settings.activation_checkpointing,
            compiled=compiles(settings, processes.device, replays=settings.router_replay is not None),
        )
        self._routers = Routers(model) if settings.router_replay else None
        self._experts: RolloutExperts | None = None
        if settings.router_replay is RouterReplay.ROLLOUT:
            self._experts = RolloutExperts(model)
        self._passes = shard(model, processes, settings.precision)
        self.optimizer = adam(model.parameters(), settings)

    def check_experts(self, sequence: TokenSequence) -> None:
        """Raises NotSampled for a sequence without the experts of its rollout, where they are replayed."""
        if self._experts is not None:
            self._experts.check(sequence)

    def step(self, number: int, batch: Rows[Trained]) -> StepFigures:
        """Do step `number`, counted from 0, on whole groups: `settings.updates` updates of equal size.

        Raises NotFinite, in all processes alike.
        """
        started = time.monotonic()
        settings = self.settings
        lr = set_rate([self.optimizer], number, settings.steps, settings)
        found = self._outcomes(batch)
        by_turn = self._by_turn(batch, found)
        size = -(-len(batch) // settings.updates)
        parts = [slice(start, start + size) for start in range(0, len(batch), size)]
        prepared = [self._rows(batch[part], found[part], by_turn[part]) for part in parts]
        old: Rows[list[_Before] | None] = [None]
        if len(parts) > 1:
            with self._passes():
                old = [self._before(rows) for rows in prepared]
        losses, norm, entropy = 0.0, 0.0, 0.0
        sums: list[LossFigures] = []
        for place, (rows, before) in enumerate(zip(prepared, old, strict=True)):
            with self._passes():
                loss, figures, spread = self._update(rows, before)
            norm = clipped(self.model, settings.clip)
            whole = self.processes.summed(loss)
            if not (math.isfinite(whole) and math.isfinite(norm)):
                self.optimizer.zero_grad()
                raise NotFinite(f"the loss is {whole}, the gradient's norm {norm}", changed=place > 0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.processes.summed(float(not finite(self.model))):
                raise NotFinite("the optimizer made a weight that is not finite", changed=True)
            losses += loss
            entropy += spread
            sums += figures
        trained = self.processes.summed(float(sum(figure.tokens for figure in sums)))

        def mean(name: str) -> float:
            return self.processes.summed(sum(getattr(figure, name) for figure in sums)) / max(trained, 1.0)

        done = StepFigures(
            loss=self.processes.summed(losses) / len(parts),
            lr=lr,
            grad_norm=norm,
            tokens=sum(len(sequence.ids) for rollout in batch for sequence in rollout.sequences),
            trained_tokens=sum(rollout.tokens for rollout in batch),
            entropy=self.processes.summed(entropy) / max(trained, 1.0),
            clipped=mean("clipped"),
            ratio=mean("ratio"),
            kl=mean("kl"),
            importance=mean("importance"),
            truncated=mean("truncated"),
            masked=mean("masked"),
            reference_kl=mean("reference_kl"),
            seconds=time.monotonic() - started,
        )
        # A checkpoint could not hold it: JSON has no such number.
        for name, value in msgspec.structs.asdict(done).items():
            if not math.isfinite(value):
                raise NotFinite(f"the step's `{name}` is {value}", changed=True)
        return done

    def _outcomes(self, batch: Rows[Trained]) -> list[float]:
        """The advantage of each rollout by its outcome, with the weight that it has beside a teacher's."""
        settings = self.settings
        if not settings.outcome_weight:
            return [0.0] * len(batch)
        found = advantages(
            [shaped(rollout.reward, rollout.tokens, settings.overlong) for rollout in batch],
            [rollout.group for rollout in batch],
            settings.loss.baseline,
        )
        return [settings.outcome_weight * advantage for advantage in found]

    def _rows(self, batch: Rows[Trained], found: Rows[float], by_turn: Rows[Rows[float]]) -> list[_Row]:
        """Every sequence of a part of the batch with the advantages of its rollout and of its turns, and its
        weight."""
        weights = rollout_weights([rollout.tokens for rollout in batch], self.settings.loss)
        rows = []
        for rollout, advantage, turns, weight in zip(batch, found, by_turn, weights, strict=True):
            for number, sequence in enumerate(rollout.sequences):
                row = as_row(sequence, rollout.rollout_id, resolved=rollout.resolved)
                trains = row.loss_mask == 1
                sampled = np.asarray(sequence.logprobs, dtype=np.float32)[trains]
                own = np.full(len(sampled), advantage, dtype=np.float32)
                if turns:
                    of_token = np.asarray(sequence.turns)[trains]
                    scored = (of_token >= 0) & (of_token < len(turns))
                    own[scored] = np.asarray(turns, dtype=np.float32)[of_token[scored]]
                if rollout.teacher:
                    own += token_advantages(rollout.teacher[number], sampled)
                rows.append(_Row(row, sampled, own, weight, sequence.experts))
        return rows

    def _by_turn(self, batch: Rows[Trained], found: Rows[float]) -> list[list[float]]:
        """Advantages of the scored turns of each rollout; the batch has whole groups, whose means count."""
        process = self.settings.process
        if process is None:
            return [[] for _ in batch]
        groups = [rollout.group for rollout in batch]
        return turn_advantages(found, groups, [rollout.turn_rewards for rollout in batch], process)

    def _update(
        self, rows: list[_Row], before: list[_Before] | None
    ) -> tuple[float, list[LossFigures], float]:
        """Add the gradient of the loss of `rows`; this process's part of the loss, its figures, entropy."""
        mine = self._packs(rows)
        total, entropy, sums = 0.0, 0.0, []
        for place, members in enumerate(mine):
            last_backward(self.model, place == len(mine) - 1)
            pack = self._pack(members)
            known = None if before is None else before[place]
            reference = self._by_reference(pack) if self.settings.loss.kl else None
            with self._routed(members, known):
                logprobs, spread = trained_logprobs(self.model, pack, self.settings.temperature)
                tokens = self._tokens(members, logprobs, None if known is None else known.logprobs, reference)
                if self.settings.loss.entropy:
                    tokens = msgspec.structs.replace(tokens, entropies=spread)
                loss, figures = self._loss(tokens, self.settings.loss)
                # Sharded gradients are averaged over the processes, but the batch has one sum.
                (loss * self.processes.count).backward()  # type: ignore[no-untyped-call]
            total += loss.item()
            entropy += spread.sum().item()
            sums.append(figures)
        return total, sums, entropy

    @torch.no_grad()
    def _before(self, rows: list[_Row]) -> list[_Before]:
        """What the current weights make of this process's packs of `rows`."""
        found = []
        for members in self._packs(rows):
            pack = self._pack(members)
            recording: AbstractContextManager[Choices] = nullcontext([])
            if self._routers is not None and self._experts is None:
                recording = self._routers.recording()
            with recording as choices, self._routed(members, None):
                logprobs, _ = trained_logprobs(self.model, pack, self.settings.temperature)
            found.append(_Before(logprobs, choices))
        return found

    def _routed(self, members: list[_Row], before: _Before | None) -> AbstractContextManager[None]:
        """Chooses experts as the engine did at the rollout, or as the weights before the step did, where the
        settings ask for that."""
        if self._routers is None:
            return nullcontext()
        if self._experts is not None:
            told = [(row.experts, len(row.row.input_ids)) for row in members]
            return self._routers.replaying(self._experts.choices(told, self.processes.device))
        return nullcontext() if before is None else self._routers.replaying(before.choices)

    @torch.no_grad()
    def _by_reference(self, pack: Pack) -> torch.Tensor:
        """Log-probabilities of the pack's trained tokens by the policy that the run started from."""
        if self._reference is not None:
            return trained_logprobs(self._reference, pack, self.settings.temperature)[0]
        self.model.disable_adapters()
        try:
            return trained_logprobs(self.model, pack, self.settings.temperature)[0]
        finally:
            self.model.enable_adapters()

    def _tokens(
        self,
        members: list[_Row],
        logprobs: torch.Tensor,
        old: torch.Tensor | None,
        reference: torch.Tensor | None,
    ) -> Tokens:
        device, counts = (
            logprobs.device,
            torch.tensor([len(row.sampled) for row in members], dtype=torch.int64),
        )

        def spread(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32).repeat_interleave(counts).to(device)

        none = np.zeros(0, dtype=np.float32)
        sampled = np.concatenate([row.sampled for row in members] or [none])
        found = np.concatenate([row.advantages for row in members] or [none])
        return Tokens(
            logprobs=logprobs,
            old=logprobs.detach() if old is None else old,
            sampled=torch.from_numpy(sampled).to(device),
            advantages=torch.from_numpy(found).to(device),
            weights=spread([row.weight for row in members]),
            sequence=torch.arange(len(members)).repeat_interleave(counts).to(device),
            reference=reference,
        )

    def _pack(self, members: list[_Row]) -> Pack:
        return make_pack([row.row for row in members], self.processes.device, self._eyes)

    def _packs(self, rows: list[_Row]) -> list[list[_Row]]:
        lengths = [len(row.row.input_ids) for row in rows]
        capacity, processes = self.settings.pack_tokens or self.settings.context, self.processes
        return process_packs(rows, lengths, capacity, processes.count, processes.rank)


def as_row(sequence: TokenSequence, name: str, *, resolved: bool = False) -> TokenRow:
    """Make a dataset row of a sequence, under the name of its rollout."""
    mask = np.asarray(sequence.mask, dtype=np.int8)
    mask[0] = 0
    return TokenRow(
        example_id=name,
        rollout_id=name,
        resolved=resolved,
        input_ids=np.asarray(sequence.ids, dtype=np.int32),
        loss_mask=mask,
        images=tuple(sequence.images),
    )


def sees(eyes: Eyes | None) -> Callable[[TokenSequence], None]:
    """A check that raises NotSampled for a sequence whose pictures cannot be read, or whose tokens are
    not theirs."""

    def check(sequence: TokenSequence) -> None:
        if eyes is None:
            if sequence.images:
                raise NotSampled(
                    "a sequence has pictures, and the model reads text alone: train a vision-language model"
                )
            return
        try:
            eyes.positions(as_row(sequence, "sampled"))
        except (Misplaced, BadPicture, BlobMissing, BlobCorrupt) as error:
            raise NotSampled(str(error)) from error

    return check
