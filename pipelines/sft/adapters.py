"""Low-rank adapters (LoRA) in a model: made by `peft`, trained in place of the weights."""

from collections import Counter
from pathlib import Path

import torch
from transformers import PreTrainedModel

from orchard.pipelines.models.directories import ADAPTER, first_line
from orchard.pipelines.models.errors import ModelError, require_package
from orchard.pipelines.sft.settings import Lora


def add_adapter(model: PreTrainedModel, settings: Lora, *, base: str, seed: int) -> None:
    """Freeze a model and put a new adapter into it, which changes nothing yet: one of its two matrices is 0.

    `base` is the directory or Hub name of the model, which the adapter's own directory will name; `seed`
    draws the other matrix. Raises ModelError.
    """
    require_package("peft", "`lora`")
    from peft import LoraConfig

    place = Path(base)
    if (place / ADAPTER).is_file():
        raise ModelError(
            f"{base} is an adapter itself: start from the merged model, which its run writes to OUT/model at "
            "its end, or train without `lora`, which merges the adapter first"
        )
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # it is divided by the rank
        target_modules=list(settings.targets),
        target_parameters=_experts(model, base) if settings.experts else None,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model.add_adapter(config)
        except ValueError as error:
            raise ModelError(f"no adapter fits {base}, change `lora.targets`: {first_line(error)}") from error
    if tied := _tied(model):
        raise ModelError(
            f"{base} uses the weights of {' and '.join(tied)} in another place too, which merging "
            "the adapter into them would change: take them out of `lora.targets`"
        )
    # `add_adapter` names what the model was loaded from, which may be relative to where this process runs.
    model.peft_config["default"].base_model_name_or_path = str(place.absolute()) if place.is_dir() else base


def _experts(model: PreTrainedModel, base: str) -> list[str]:
    """Last parts of the names of the matrices of experts, which are stacked. Raises ModelError."""
    names = [name for name, weight in model.named_parameters() if ".experts." in name and weight.ndim == 3]
    if not names:
        raise ModelError(f"{base} has no experts: leave `lora.experts` out")
    return sorted({f"experts.{name.rpartition('.experts.')[2]}" for name in names})


def _tied(model: PreTrainedModel) -> list[str]:
    """Layers with an adapter whose own weights the model uses elsewhere, too."""
    places = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    return [
        name.removesuffix(".base_layer")
        for name, module in model.named_modules()
        if name.endswith(".base_layer") and any(places[id(w)] > 1 for w in module.parameters(recurse=False))
    ]
