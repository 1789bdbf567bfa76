"""The start of a run: checked rows, weights, tokenizer, and optimizers over what trains."""

import fnmatch
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from orchard.pipelines.datasets.manifest import Manifest
from orchard.pipelines.datasets.rows import TokenRow
from orchard.pipelines.models.directories import load_model, load_tokenizer, processor_of
from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.models.tiny_vision import SIGHTS, new_vision_model
from orchard.pipelines.sft.loss import trained_tokens
from orchard.pipelines.sft.schedule import learning_rate
from orchard.pipelines.sft.settings import Optimization, Optimizer, SftSettings, TrainingError


class Start(NamedTuple):
    model: PreTrainedModel
    """The model in float32."""
    tokenizer: PreTrainedTokenizerBase
    processor: Any = None
    """Image processor, for a model that sees pictures."""


def starting_point(settings: SftSettings) -> Start:
    """Model, tokenizer and image processor of a run. Raises ModelError."""
    if settings.shape is not None:
        assert settings.tokenizer is not None
        tokenizer = load_tokenizer(settings.tokenizer)
        if settings.shape in SIGHTS:
            seeing, processor = new_vision_model(settings.shape, tokenizer=tokenizer, seed=settings.seed)
            return Start(seeing, tokenizer, processor)
        model = new_model(settings.shape, vocabulary=len(tokenizer), seed=settings.seed, tokenizer=tokenizer)
        return Start(model, tokenizer)
    assert settings.model is not None
    loaded = load_model(settings.model)
    return Start(
        loaded, load_tokenizer(settings.tokenizer or settings.model), processor_of(loaded, settings.model)
    )


def check_rows(rows: Sequence[TokenRow], *, context: int, vocabulary: int, sees: bool = False) -> None:
    """Raise TrainingError for rows that cannot train unchanged: none is cut, skipped or made up. `sees`
    says whether the model takes pictures."""
    if not rows:
        raise TrainingError("the dataset has no rows: build it from a campaign with finished rollouts")
    for row in rows:
        if len(row.input_ids) > context:
            raise TrainingError(
                f"example {row.example_id} has {len(row.input_ids)} tokens and the context is {context}: "
                "raise `context`, or build the dataset with a lower limit"
            )
        if row.images and not sees:
            raise TrainingError(
                f"example {row.example_id} has pictures and the model reads text alone: train a "
                "vision-language model such as Qwen3-VL"
            )
        if trained_tokens(row) == 0:
            raise TrainingError(
                f"example {row.example_id} has no token that trains: build the dataset again, which leaves "
                "such examples out"
            )
        if int(row.input_ids.max()) >= vocabulary or int(row.input_ids.min()) < 0:
            raise TrainingError(
                f"example {row.example_id} has token {int(row.input_ids.max())} and the model knows "
                f"{vocabulary} tokens: the dataset was built with another tokenizer"
            )


def check_objective(manifest: Manifest, settings: SftSettings) -> None:
    """Raise TrainingError for a dataset of preferences that would be imitated, failures and all, and where
    `dpo` would hold the good turns of failures, which other datasets train, for the worse ones."""
    preferences = msgspec.json.decode(manifest.config).get("selection", {}).get("preferences")
    if preferences and settings.dpo is None:
        raise TrainingError(
            f"the dataset {manifest.name} has failures to be told from successes, and nothing would tell "
            "them apart: set `dpo = {}`, or build a dataset without `selection.preferences`"
        )
    if settings.dpo is not None and not preferences:
        raise TrainingError(
            f"`dpo` needs a dataset of preferences and {manifest.name} is none, the turns of failures that "
            "train in it are their good ones: build it with `selection = { preferences = 4 }`, or leave out "
            "`dpo`"
        )


def freeze(model: torch.nn.Module, patterns: Sequence[str]) -> list[str]:
    """Exclude parameters whose names match a pattern from training; returns their names."""
    found = []
    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
            found.append(name)
    return found


def parameters_sha256(weights: Mapping[str, torch.Tensor], names: Iterable[str]) -> str:
    """64 hexadecimal digits over the names, types, shapes and bytes of some weights, in the order of their
    names."""
    whole = hashlib.sha256()
    for name in sorted(names):
        weight = weights[name].detach().cpu().contiguous()
        whole.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        whole.update(weight.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


def make_optimizers(
    model: PreTrainedModel, settings: SftSettings, processes: int
) -> list[torch.optim.Optimizer]:
    """Optimizers that share the parameters that are not frozen. Raises TrainingError when nothing would
    train."""
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not trained:
        raise TrainingError(f"every parameter is frozen by {list(settings.freeze)}: narrow the patterns")
    optimizers: list[torch.optim.Optimizer] = []
    if settings.optimizer is Optimizer.MUON:
        if processes > 1:
            raise TrainingError(
                'optimizer "muon" runs in one process: start it without torchrun, or use "adamw"'
            )
        head: Any = model.get_output_embeddings()
        tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
        ends = {id(end.weight) for end in (*tables, head) if end is not None}
        inner = {name for name, each in trained.items() if each.ndim == 2 and id(each) not in ends}
        matrices = [trained.pop(name) for name in sorted(inner)]
        if matrices:
            optimizers.append(
                torch.optim.Muon(
                    matrices,
                    lr=settings.lr,
                    weight_decay=settings.weight_decay,
                    adjust_lr_fn="match_rms_adamw",  # so that one learning rate serves both
                )
            )
    if trained:
        optimizers.append(adam(trained.values(), settings))
    return optimizers


def adam(parameters: Iterable[torch.nn.Parameter], settings: Optimization) -> torch.optim.AdamW:
    """AdamW over the parameters that train; only those of two dimensions and more decay."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )


def set_rate(
    optimizers: Iterable[torch.optim.Optimizer], number: int, steps: int, settings: Optimization
) -> float:
    """Set the optimizers' learning rate for step `number` of `steps`, counted from 0; returns it."""
    lr = learning_rate(number, steps=steps, peak=settings.lr, floor=settings.min_lr, warmup=settings.warmup)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
    return lr


def weights_sha256(directory: Path) -> str:
    """64 hexadecimal digits over a model directory's weight files, in the order of their names."""
    whole = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            while part := file.read(1 << 24):
                whole.update(part)
    return whole.hexdigest()
