"""Configuration of a fine-tuning run, with the recipes of domains as presets; importable without torch."""

import tomllib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from orchard.pipelines.domain import presets
from orchard.schemas.faults import fault_sentence, not_finite
from orchard.schemas.identity import digest
from orchard.schemas.quantities import Unit
from orchard.schemas.toml_text import parsed_toml

Count = Annotated[int, msgspec.Meta(ge=1)]
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Tokens = Annotated[Count, Unit("tokens")]


class TrainingError(ValueError):
    """A run cannot start or continue; the message is one sentence that names the fix."""


class Precision(StrEnum):
    """dtype of a step's forward and backward passes; the weights that the optimizer updates, the sum of
    gradients, and losses are float32 in both."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Optimizer(StrEnum):
    """The optimization algorithm."""

    ADAMW = "adamw"
    MUON = "muon"
    """Orthogonalized momentum for the matrices of the layers, AdamW for all else, at one learning rate:
    https://kellerjordan.github.io/posts/muon. For models from scratch; in one process."""


class Lora(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A low-rank adapter that trains in place of the weights: https://arxiv.org/abs/2106.09685, by `peft`."""

    rank: Count = 16
    """Rank of the two matrices whose product is added to a matrix of the model."""
    alpha: Positive = 32.0
    """The product is scaled by alpha / rank."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Last parts of the names of the layers that get an adapter."""
    experts: bool = False
    """Whether the experts of a mixture of experts get one, too: one for each of them."""


class Dpo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Preferences in place of imitation: a resolved trajectory over an unresolved one of the same task."""

    beta: Positive = 0.1
    """Weight of the log-ratio to the model that the run started from."""


class Optimization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that every training run has: its optimizer and its machine."""

    lr: Positive = 1e-5
    """Peak learning rate."""
    min_lr: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Learning rate at the end; it falls along a cosine."""
    warmup: Fraction = 0.0
    """Share of the steps over which the learning rate rises from zero, linearly."""
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Weight decay of matrices; norms and biases never decay."""
    beta1: Fraction = 0.9
    """Decay of the mean of the gradient in AdamW."""
    beta2: Fraction = 0.999
    """Decay of the mean of the squared gradient in AdamW."""
    epsilon: Positive = 1e-8
    """Constant in AdamW's denominator, against division by zero."""
    clip: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """Maximum norm of the gradient; 0: no clipping."""
    context: Tokens = 65_536
    """Maximum tokens of one sequence. A longer example is refused: shorten it in the dataset build. A
    longer rollout is dropped with a reason."""
    pack_tokens: Tokens | None = None
    """Maximum tokens of the examples that share one forward and backward pass; a longer example has one
    of its own. Lower it where memory runs out: the gradients of a step's passes are summed. None:
    `context`."""
    precision: Precision = Precision.FLOAT32
    """dtype of a step's forward and backward passes; the optimizer's weights and losses are float32."""
    compile: bool | None = None
    """Compile the model's layers, with `torch.compile`. None: on a GPU, where there is a C compiler, without
    `router_replay` and `lora.experts`."""
    seed: int = 0
    """Seed of weights from scratch and of the order of examples or prompts."""
    threads: Annotated[int, msgspec.Meta(ge=0)] = 0
    """CPU threads of each process that trains; 0: torch decides."""
    keep_checkpoints: Count = 2
    """Number of newest checkpoints that are kept."""
    lora: Lora | None = None
    """Train an adapter instead of the weights; `{}` takes the defaults."""


class SftSettings(Optimization, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one fine-tuning run. Exactly one of `model` and `shape` says what is trained."""

    run: str = "sft"
    """Name in metrics and events."""
    dataset: NonEmpty
    """Directory that `orchard dataset build` wrote."""
    out: NonEmpty
    """Directory of checkpoints, metrics and the result, `<out>/model`."""
    model: str | None = None
    """Hugging Face directory or Hub name to start from."""
    shape: str | None = None
    """Preset of `pipelines/models/tiny.py`: a model from scratch, of the tokenizer's vocabulary."""
    tokenizer: str | None = None
    """Directory or Hub name that is saved beside the weights; default: the model's own."""

    epochs: Count = 5
    """Passes over the dataset."""
    max_steps: Count | None = None
    """Maximum optimizer steps; the schedule ends there."""
    global_batch: Annotated[Count, Unit("examples")] = 128
    """Examples in one optimizer step, over all processes."""
    packing: bool = True
    """Put several examples into one forward pass. False: one each, for architectures whose layers mix
    packed examples."""

    dpo: Dpo | None = None
    """Learn from pairs of a dataset that was built with `selection.preferences`; `global_batch` counts pairs.
    `{}` takes the defaults; None: imitate every example."""

    optimizer: Optimizer = Optimizer.ADAMW
    """Optimization algorithm; `muon` is for small models from scratch."""
    freeze: tuple[str, ...] = ()
    """Patterns over the names of parameters that do not train, such as `*visual*`."""

    activation_checkpointing: bool = False
    """Compute activations again in the backward pass, to save memory."""
    checkpoint_every: Annotated[int, msgspec.Meta(ge=0)] = 100
    """Optimizer steps between checkpoints; 0: no checkpoints."""


S = TypeVar("S", bound=Optimization)


def told_lora(settings: Lora | None) -> dict[str, Any] | None:
    """The adapter in a run's hash; settings younger than stored runs only where they are not the default."""
    told: dict[str, Any] | None = msgspec.to_builtins(settings)
    if told is not None and not told["experts"]:
        del told["experts"]
    return told


def over_preset(tree: dict[str, Any], presets: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Decoded TOML over the preset it names, nested tables key by key. Raises TrainingError."""
    given = dict(tree)
    preset = given.pop("preset", None)
    if preset not in (None, *presets):
        raise TrainingError(f"no preset is named {preset!r}: choose one of {', '.join(presets)}")
    under = presets.get(preset, {})
    for name, value in given.items():
        if isinstance(value, dict) and isinstance(under.get(name), dict):
            given[name] = under[name] | value
    return under | given


def converted(tree: dict[str, Any], kind: type[S]) -> S:
    """Convert a whole tree to settings of a kind. Raises TrainingError."""
    if key := not_finite(tree):
        raise TrainingError(f"{key}: this number is not finite: write one that is")
    try:
        settings = msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        said = fault_sentence(tree, kind, error)
        raise TrainingError(f"{said}; docs/training.md explains every key") from error
    if settings.min_lr > settings.lr:
        raise TrainingError(f"min_lr {settings.min_lr:g} is above lr {settings.lr:g}: lower it")
    return settings


def settings_from(tree: dict[str, Any]) -> SftSettings:
    """Settings from decoded TOML, over the preset it names. Raises TrainingError."""
    settings = converted(over_preset(tree, presets(lambda domain: domain.sft_preset)), SftSettings)
    if (settings.model is None) == (settings.shape is None):
        raise TrainingError(
            "say what is trained: either `model` (a directory to start from) or `shape` (from scratch)"
        )
    if settings.shape is not None and settings.tokenizer is None:
        raise TrainingError("a model from scratch needs `tokenizer`: its vocabulary sets the model's")
    if settings.shape is not None and settings.lora is not None:
        raise TrainingError("`lora` adapts a model that there is: name one in `model`, or leave `lora` out")
    if settings.shape is not None and settings.dpo is not None:
        raise TrainingError("`dpo` compares with the model it starts from: name one in `model`")
    if settings.dpo is not None and not settings.packing:
        raise TrainingError("`dpo` puts the two examples of a pair into one pass: leave `packing` out")
    return settings


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file. Raises TrainingError."""
    try:
        return parsed_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TrainingError(f"{path} does not exist: write the run's configuration there") from None
    except OSError as error:
        raise TrainingError(f"{path} cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TrainingError(f"{path} is not valid TOML: {error}") from error


def read_settings(path: Path) -> SftSettings:
    """Settings from a TOML file; paths in it are relative to the working directory. Raises TrainingError."""
    return of_file(path, settings_from)


def of_file(path: Path, make: Callable[[dict[str, Any]], S]) -> S:
    """Settings that `make` makes of a TOML file. Raises TrainingError, which names the file."""
    tree = read_toml(path)
    try:
        return make(tree)
    except TrainingError as error:
        raise TrainingError(f"{path}: {error}") from error


_RUNTIME = ("out", "threads", "checkpoint_every", "keep_checkpoints", "run")


def settings_hash(settings: SftSettings) -> str:
    """Hash that is equal for settings that make the same weights: output paths do not count."""
    fields = msgspec.to_builtins(settings) | {"lora": told_lora(settings.lora)}
    # Settings that are younger than stored runs count only where they are set.
    left_out = (
        *_RUNTIME,
        *(name for name in ("lora", "pack_tokens", "dpo", "compile") if getattr(settings, name) is None),
    )
    return digest({name: value for name, value in fields.items() if name not in left_out})
