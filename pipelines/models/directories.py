"""Hugging Face model directories: loaded by `transformers`, written so that everything else loads them."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from orchard.pipelines.models.errors import ModelError, require_package

ADAPTER = "adapter_config.json"
"""File of a directory that holds an adapter, as `peft` writes it, and no weights."""


def load_model(name: str | Path, *, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The causal model in a directory, or of that name on the Hub, with its vision tower if it has one; where
    the directory holds an adapter, the model that it names with the adapter merged into its weights. Raises
    ModelError when there is none."""
    transformers_logging.disable_progress_bar()
    if (Path(name) / ADAPTER).is_file():
        return _merged(Path(name), dtype)
    try:
        sees = hasattr(AutoConfig.from_pretrained(str(name)), "vision_config")
        kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        model: PreTrainedModel = kind.from_pretrained(str(name), dtype=dtype)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"no causal language model can be loaded from {name}: {first_line(error)}"
        ) from error
    return model


def _merged(directory: Path, dtype: torch.dtype) -> PreTrainedModel:
    require_package("peft", f"the adapter in {directory}")
    from peft import PeftModel

    told: dict[str, Any] = msgspec.json.decode((directory / ADAPTER).read_bytes())
    model = load_model(told["base_model_name_or_path"], dtype=dtype)
    merged: PreTrainedModel = PeftModel.from_pretrained(model, str(directory)).merge_and_unload()
    return merged


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a directory, or of that name on the Hub. Raises ModelError when there is none."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(name))
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"no tokenizer can be loaded from {name}: {first_line(error)}") from error
    return tokenizer


def load_processor(name: str | Path) -> Any:
    """The image processor in a directory, or of that name on the Hub. Raises ModelError for one that is none
    of Qwen's family, and where there is none."""
    try:
        processor = AutoImageProcessor.from_pretrained(str(name), backend="pil")
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(
            f"no image processor can be loaded from {name}, which pictures need: {first_line(error)}"
        ) from error
    if not hasattr(processor, "merge_size"):
        raise ModelError(
            f"the image processor of {name} ({type(processor).__name__}) is not one of Qwen's family: "
            "choose a model such as Qwen3-VL or Qwen2.5-VL"
        )
    return processor


def processor_of(model: PreTrainedModel, name: str | Path) -> Any:
    """The image processor of a model that was loaded from `name`; None where it sees no pictures. Raises
    ModelError."""
    return load_processor(name) if hasattr(model.config, "vision_config") else None


def save_model(
    model: PreTrainedModel,
    directory: Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    processor: Any = None,
    state: dict[str, Any] | None = None,
) -> None:
    """Write a model, and its tokenizer and image processor when given, atomically as a directory.

    `state` replaces the model's own weights, where these are sharded over processes. Of a model with
    an adapter, the adapter is written.
    """
    temporary = directory.with_name(f".{directory.name}.partial")
    temporary.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(temporary, state_dict=state)
    for part in (tokenizer, processor):
        if part is not None:
            part.save_pretrained(temporary)
    replace_directory(temporary, directory)


def replace_directory(new: Path, place: Path) -> None:
    """Put the directory `new` where `place` is; what was there before is deleted afterwards."""
    old = place.with_name(f".{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def first_line(error: Exception) -> str:
    """The first sentence of an error of `transformers`, which writes several."""
    return str(error).strip().partition("\n")[0]
