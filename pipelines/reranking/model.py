"""The value model: an average of embedded features and a linear head. Trains in seconds on one core.

It learns from pairs of attempts at one task, so that what makes a task hard does not help it, and from each
attempt alone, so that its score is a chance.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import nn
from torch.nn import functional

from orchard.pipelines.reranking.attempts import BUCKETS
from orchard.pipelines.reranking.errors import RerankError
from orchard.schemas.identity import canonical
from orchard.schemas.positions import PlainPosition
from orchard.storage.durable import write_whole

MANIFEST, WEIGHTS = "reranker.json", "weights.safetensors"
VERSION = "1"
"""Version of the features and of the model: another is refused."""
WIDTH = 16
STEPS, RATE, DECAY = 150, 0.02, 1e-3
MARGIN = 0.25
"""Least difference of the targets of a pair."""


@dataclass(frozen=True)
class Labelled:
    """An attempt, or the beginning of one, and the chance that it resolves its task."""

    task_id: str
    features: np.ndarray
    target: float


class PairCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How well a model orders attempts at tasks that it was not trained on."""

    tasks: int
    pairs: int
    ordered: float | None
    """Share of pairs, each task counting once, in which the better attempt has the higher score; None
    without pairs."""


class RerankManifest(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    labels: str
    """`outcomes` or `measured`."""
    seed: int
    campaigns: tuple[str, ...]
    as_of: PlainPosition
    """Last sequence of the log that it was trained from, or those of all event streams."""
    tasks: tuple[str, ...]
    """Ids of the tasks that it was trained on: their attempts are not to be reranked by it."""
    examples: int
    pairs: int
    held_out: PairCounts
    """Over the tasks that were kept from training."""
    weights_sha256: str
    digest: str = ""
    """SHA-256 of the manifest without this field."""


class ValueModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(BUCKETS, WIDTH, mode="mean")
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, features: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Log-odds, [attempts], of attempts whose features begin at `offsets`."""
        scores: torch.Tensor = self.head(torch.tanh(self.embedding(features, offsets))).squeeze(-1)
        return scores

    def scores(self, attempts: Sequence[np.ndarray]) -> list[float]:
        """Chance of each attempt to have resolved its task, in [0, 1]."""
        with torch.no_grad(), one_thread():
            found: list[float] = torch.sigmoid(self(*_bags(attempts))).tolist()
        return found


def _bags(attempts: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    starts = np.cumsum([0, *(len(one) for one in attempts)])[:-1]
    return torch.from_numpy(np.concatenate(attempts)), torch.from_numpy(starts)


def held_out_tasks(tasks: Sequence[str], share: float, seed: int) -> set[str]:
    """The tasks that a hash of seed and id keeps from training."""
    lots = {task: hashlib.sha256(f"{seed} {task}".encode()).digest() for task in tasks}
    return set(sorted(lots, key=lambda task: lots[task])[: round(share * len(lots))])


def pairs_of(examples: Sequence[Labelled]) -> dict[str, list[tuple[int, int]]]:
    """Pairs of a better and a worse example of one task, as places in `examples`, by task."""
    by_task: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(examples):
        by_task[one.task_id].append(place)
    found = {
        task: [(i, j) for i in at for j in at if examples[i].target - examples[j].target >= MARGIN]
        for task, at in by_task.items()
    }
    return {task: pairs for task, pairs in found.items() if pairs}


def train(examples: Sequence[Labelled], seed: int) -> ValueModel:
    """The model of these examples; the same for the same seed. Raises RerankError without contrast."""
    pairs = pairs_of(examples)
    if not pairs:
        raise RerankError(
            f"no task has attempts of different worth among the {len(examples)} examples, so there is "
            "nothing to tell apart: sample more rollouts of tasks that are solved sometimes"
        )
    with one_thread():
        return _trained(examples, pairs, seed)


@contextmanager
def one_thread() -> Iterator[None]:
    """Computes on one thread during the block: so small a model is slower on several, and the order of sums,
    which the weights depend on, is the same on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _trained(
    examples: Sequence[Labelled], pairs: Mapping[str, list[tuple[int, int]]], seed: int
) -> ValueModel:
    generator = torch.Generator().manual_seed(seed)
    model = ValueModel()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.1, generator=generator)
    bags = _bags([one.features for one in examples])
    targets = torch.tensor([one.target for one in examples])
    better, worse, weights = _flat(pairs)
    tasks = {one.task_id for one in examples}
    sizes = {task: sum(one.task_id == task for one in examples) for task in tasks}
    alone = torch.tensor([1 / (len(tasks) * sizes[one.task_id]) for one in examples])
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    for _ in range(STEPS):
        scores = model(*bags)
        apart = (functional.softplus(scores[worse] - scores[better]) * weights).sum()
        each = functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
        loss = apart + (each * alone).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def _flat(pairs: Mapping[str, list[tuple[int, int]]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Places of better and worse examples, and the weight of each pair: all tasks count alike."""
    flat = [(i, j, 1 / (len(pairs) * len(of_task))) for of_task in pairs.values() for i, j in of_task]
    better, worse, weights = zip(*flat, strict=True)
    return torch.tensor(better), torch.tensor(worse), torch.tensor(weights)


def judged(model: ValueModel, examples: Sequence[Labelled]) -> PairCounts:
    """How well the model orders the examples of each task."""
    pairs = pairs_of(examples)
    if not pairs:
        return PairCounts(tasks=0, pairs=0, ordered=None)
    scores = model.scores([one.features for one in examples])
    shares = [
        sum((scores[i] > scores[j]) + (scores[i] == scores[j]) / 2 for i, j in of_task) / len(of_task)
        for of_task in pairs.values()
    ]
    return PairCounts(
        tasks=len(pairs), pairs=sum(map(len, pairs.values())), ordered=sum(shares) / len(shares)
    )


def save_reranker(model: ValueModel, manifest: RerankManifest, out: Path) -> RerankManifest:
    """Write the model into a directory; returns its manifest, with the digests."""
    weights = save({name: tensor.contiguous() for name, tensor in model.state_dict().items()})
    manifest = msgspec.structs.replace(
        manifest, weights_sha256=hashlib.sha256(weights).hexdigest(), digest=""
    )
    whole = msgspec.structs.replace(manifest, digest=hashlib.sha256(canonical(manifest)).hexdigest())
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out, WEIGHTS, weights)
    write_whole(out, MANIFEST, msgspec.json.format(msgspec.json.encode(whole), indent=1))
    return whole


def load_reranker(directory: Path) -> tuple[ValueModel, RerankManifest]:
    """Raises RerankError for a directory that holds none, or another's weights."""
    try:
        manifest = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=RerankManifest)
        weights = (directory / WEIGHTS).read_bytes()
    except (OSError, msgspec.DecodeError) as error:
        raise RerankError(
            f"{directory} holds no value model ({error}): `orchard values train {directory}` makes one"
        ) from error
    if manifest.version != VERSION:
        raise RerankError(
            f"the value model in {directory} is of version {manifest.version}, and {VERSION} is "
            "read here: train it again"
        )
    bare = msgspec.structs.replace(manifest, digest="")
    intact = hashlib.sha256(canonical(bare)).hexdigest() == manifest.digest
    if not intact or hashlib.sha256(weights).hexdigest() != manifest.weights_sha256:
        raise RerankError(f"the value model in {directory} was changed since it was trained: train it again")
    model = ValueModel()
    model.load_state_dict(load_file(directory / WEIGHTS))
    return model, manifest
