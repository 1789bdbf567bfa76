"""The model families that the policy server runs: each compared with `transformers` by
tests/pipelines/policy/test_families.py. Importable without torch."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from orchard.pipelines.models.errors import ModelError

FAMILIES = {
    "gemma3_text": "Gemma 3 (text)",
    "llama": "Llama",
    "mistral": "Mistral",
    "mixtral": "Mixtral",
    "phi3": "Phi-3",
    "qwen2": "Qwen2 and 2.5",
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3-MoE",
    "qwen3_vl": "Qwen3-VL",
    "smollm3": "SmolLM3",
}
"""Names by `model_type`."""
ROPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "mrope")
_LAYERS = ("full_attention", "sliding_attention")
_NEUTRAL = {"final_logit_softcapping": None, "use_bidirectional_attention": False}
LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Rope types whose rotation of every token depends on the length of its sequence."""


def check_directory(directory: Path) -> None:
    """Raises ModelError for a directory without a model, or with one that the policy server does not run; for
    that of an adapter, the model is the one it names, if that is a directory."""
    if (adapter := directory / "adapter_config.json").is_file():
        base = Path(_read(adapter)["base_model_name_or_path"])
        if base.is_dir():
            check_directory(base)
        return
    file = directory / "config.json"
    if not file.is_file():
        raise ModelError(
            f"{directory} holds no model (no config.json): give a directory such as `orchard sft` writes"
        )
    check_family(_read(file))


def check_family(config: Mapping[str, Any]) -> None:
    """Raises ModelError for the contents of a `config.json` whose model the policy server does not run."""
    kind, text = config.get("model_type"), config.get("text_config") or config
    if kind not in FAMILIES:
        found = f"this is {kind}"
    else:
        strange = {str(_kind(rope)) for rope in _ropes(text)} - {*ROPES}
        strange |= {*(text.get("layer_types") or ())} - {*_LAYERS}
        strange |= {name for name, value in _NEUTRAL.items() if text.get(name, value) != value}
        if not strange:
            return
        found = f"this {kind} model has {', '.join(sorted(strange))}"
    raise ModelError(
        f"the policy server runs models of {', '.join(FAMILIES.values())}, and {found}: serve it with vLLM "
        "or SGLang, whose token fields are read as well"
    )


def has_experts(directory: Path) -> bool | None:
    """Whether a directory's model is a mixture of experts; None where it does not say what it is."""
    file = directory / "config.json"
    if not file.is_file():
        return None
    config = _read(file)
    text = config.get("text_config") or config
    return any("experts" in name and number for name, number in text.items())


def longest(text: Mapping[str, Any]) -> int:
    """Maximum tokens of a sequence, by the configuration of the language model.

    Where the rotation of a token depends on the length of its sequence, this is the length up to which it
    does not: the cache keeps what was rotated when the sequence was shorter.
    """
    most: int = text["max_position_embeddings"]
    for rope in _ropes(text):
        if _kind(rope) in LENGTH_DEPENDENT:
            most = min(most, rope.get("original_max_position_embeddings") or most)
    return most


def _ropes(text: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rotation's parameters: one set, or one for each type of layers."""
    given = text.get("rope_parameters") or text.get("rope_scaling") or {}
    nested = [each for each in given.values() if isinstance(each, dict)]
    return iter(nested or [given])


def _kind(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type", "default"))


def _read(file: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ModelError(f"{file} is not the JSON of a model ({error}): restore it") from error
