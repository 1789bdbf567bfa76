"""`python -m tests.pipelines.datasets.with_verl DATASET TOKENIZER`: `verl-sft` rows read by verl.

    pip install --no-deps --target DIR verl tensordict ray omegaconf msgpack protobuf pyvers cloudpickle \\
        codetiming hydra-core antlr4-python3-runtime==4.9.3
    PYTHONPATH=DIR python -m tests.pipelines.datasets.with_verl DATASET TOKENIZER

Its tokens must be those of the dataset's rows, and what it trains the assistant's own words in all turns, end
marks included. One thing more trains there: the line end that the template writes behind each end mark.
"""

import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
from transformers import AutoTokenizer

from orchard.pipelines.datasets.exporters.write import export
from orchard.pipelines.datasets.rows import read_rows


def main(dataset: Path, tokenizer: str) -> None:
    """Assertions; a line when they hold."""
    vision = ModuleType("verl.models.transformers.qwen2_vl")  # of another release of transformers
    vision.get_rope_index = None  # type: ignore[attr-defined]
    sys.modules[vision.__name__] = vision
    from verl import __version__
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    rows = list(read_rows(dataset))
    with tempfile.TemporaryDirectory() as place:
        file = export(dataset, "verl-sft", Path(place)).file
        chat = AutoTokenizer.from_pretrained(tokenizer)
        found = MultiTurnSFTDataset(
            [str(file)], chat, {"max_length": 10**6, "pad_mode": "no_padding", "truncation": "error"}
        )
        assert len(found) == len(rows) > 0
        for row, theirs in zip(rows, found, strict=True):
            ids, mask = theirs["input_ids"].numpy(), theirs["loss_mask"].numpy()
            assert np.array_equal(ids[: row.tokens], row.input_ids), row.example_id
            ours = np.zeros_like(mask)
            ours[: row.tokens] = row.loss_mask
            assert not np.any((ours == 1) & (mask == 0)), row.example_id
            more = np.flatnonzero(mask > ours)
            assert {chat.decode([token]) for token in ids[more]} <= {"\n"}, row.example_id
            assert all(ids[more - 1] == chat.eos_token_id), row.example_id
    trained = sum(row.trained_tokens for row in rows)
    sys.stdout.write(f"verl {__version__} reads {len(rows)} rows, {trained} trained tokens\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
