"""The layers of a model: what is sharded, compiled and computed again as one."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.sft.settings import Optimization, TrainingError

COMPILER: dict[str, Any] = {"backend": "inductor", "options": {"deterministic": True}}
"""Which of torch's compilers; what it would choose by measuring might round otherwise in a resumed run."""


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of a model of `transformers`, of its vision tower, too."""
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in kinds]


def prepare_layers(model: torch.nn.Module, *, checkpointing: bool, compiled: bool) -> None:
    """Compile each layer, and have the backward pass compute its activations again. Raises ModelError.

    Layers share what is compiled. Lengths are symbols in it, so that no pack needs a version of its own.
    """
    layers = layers_of(model)
    if not layers and (checkpointing or compiled):
        raise ModelError(
            f"{type(model).__name__} does not say what its layers are: set `compile = false` and "
            "`activation_checkpointing = false`"
        )
    for layer in layers:
        forward: Callable[..., Any] = layer.forward
        if compiled:
            forward = torch.compile(forward, dynamic=True, **COMPILER)
        if checkpointing:
            forward = partial(checkpoint, forward, use_reentrant=False)
        layer.forward = forward


def compiles(settings: Optimization, device: torch.device, *, replays: bool = False) -> bool:
    """Whether a run compiles layers: as it is set, else on a GPU where it can. `replays` is whether routers
    are told what to choose. Raises TrainingError where it is set and cannot."""
    obstacle = None
    if replays or (settings.lora is not None and settings.lora.experts):
        # Hooks and adapters are put into these layers for each pass, and each would be compiled anew.
        obstacle = "`router_replay`" if replays else "`lora.experts`"
    elif not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        obstacle = "a machine without a C compiler"
    if settings.compile is None:
        return device.type == "cuda" and obstacle is None
    if settings.compile and obstacle:
        raise TrainingError(f"`compile` does not work with {obstacle}: leave it out")
    return settings.compile
