"""Small datasets with pictures, and models of the real vision-language classes to train on them."""

import io
from pathlib import Path

import numpy as np
from PIL import Image
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from orchard.pipelines.datasets.rows import TokenRow
from orchard.pipelines.models.directories import load_tokenizer
from orchard.pipelines.models.picture_tokens import PICTURE_TOKENS
from orchard.pipelines.vision.reading import PictureReader
from orchard.storage.blobs import BlobStore
from tests.pipelines.sft.small_runs import VOCABULARY, write_dataset, write_tokenizer

SEEING = ["tiny-vision-test", "tiny-vision-test-2.5"]


def picture(seed: int, width: int, height: int) -> bytes:
    """A PNG of noise in large squares."""
    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (4, 4, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((width, height), Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def seeing_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """A tokenizer of VOCABULARY words and the tokens of pictures."""
    tokenizer = load_tokenizer(write_tokenizer(directory))
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in PICTURE_TOKENS])
    tokenizer.save_pretrained(directory)
    return tokenizer


def pictured_rows(
    count: int, reader: PictureReader, blobs: BlobStore, token: int, *, seed: int = 1
) -> list[TokenRow]:
    """Rows of random tokens with none to three pictures of different sizes before what trains."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        parts, images = [], []
        for place in range(number % 4):
            width, height = (int(side) for side in random.integers(20, 60, 2))
            images.append(blobs.put(picture(10 * number + place, width, height)).sha256)
            parts.append(random.integers(0, VOCABULARY, int(random.integers(1, 5))))
            parts.append(np.full(reader.tokens(width, height), token))
        parts.append(random.integers(0, VOCABULARY, 6))
        ids = np.concatenate(parts).astype(np.int32)
        mask = np.zeros(len(ids), np.int8)
        mask[-4:] = 1
        rows.append(
            TokenRow(
                example_id=f"r{number}.1.0",
                rollout_id=f"r{number}",
                resolved=True,
                input_ids=ids,
                loss_mask=mask,
                images=tuple(images),
            )
        )
    return rows


def pictured_dataset(directory: Path, reader: PictureReader, token: int, count: int = 12) -> Path:
    """A finished dataset directory with pictures among its blobs."""
    rows = pictured_rows(count, reader, BlobStore(directory), token)
    return write_dataset(directory, rows)
