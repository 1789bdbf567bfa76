"""The pictures of a pack of examples, as vision-language models of `transformers` take them. Needs torch."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from orchard.pipelines.datasets.rows import TokenRow
from orchard.pipelines.models.picture_tokens import picture_token
from orchard.pipelines.vision.places import Misplaced, positions, runs
from orchard.pipelines.vision.reading import PictureReader, Pictures, Seen


class PackedPictures(msgspec.Struct, frozen=True, kw_only=True):
    """Pictures of a pack, one after another in the order of its tokens."""

    pixels: torch.Tensor
    """[patches, values of a patch]."""
    grids: torch.Tensor
    """[pictures, 3]: frames, rows and columns of patches."""


_BLANK = ""
"""Name of the picture of a pack that has none."""


class Eyes:
    """Finds the pictures of rows, for one model."""

    def __init__(self, pictures: Pictures, token: int) -> None:
        """`token` is what a picture consists of in `input_ids`."""
        self._pictures, self._token = pictures, token

    def not_blind(self, rows: Sequence[TokenRow]) -> Sequence[TokenRow]:
        """The rows of a pack, and where none has a picture one more, of a single picture token that does
        not train. Where a model is spread over processes, all must go through its tower."""
        if any(row.images for row in rows):
            return rows
        token = np.array([self._token], np.int32)
        return [
            *rows,
            TokenRow(
                example_id=_BLANK,
                rollout_id=_BLANK,
                resolved=False,
                input_ids=token,
                loss_mask=np.zeros(1, np.int8),
                images=(_BLANK,),
            ),
        ]

    def positions(self, row: TokenRow) -> npt.NDArray[np.int64]:
        """Positions [3, tokens] of a row. Raises Misplaced, BadPicture."""
        seen = self._seen(row)
        merge = self._pictures.reader.merge
        lengths = [one.grid.tokens(merge) for one in seen]
        try:
            places = runs(row.input_ids, self._token, lengths)
        except Misplaced as error:
            raise Misplaced(f"example {row.example_id}: {error}") from error
        grids = (one.grid for one in seen)
        return positions(len(row.input_ids), zip(places, grids, strict=True), merge)

    def packed(self, rows: Sequence[TokenRow], device: torch.device) -> PackedPictures:
        """The pictures of some rows. Raises BadPicture."""
        return packed_pictures([one for row in rows for one in self._seen(row)], device)

    def _seen(self, row: TokenRow) -> list[Seen]:
        return [self._pictures.get(image) if image else self._pictures.reader.blank() for image in row.images]


def packed_pictures(seen: Sequence[Seen], device: torch.device) -> PackedPictures:
    pixels = np.concatenate([one.pixels for one in seen])
    return PackedPictures(
        pixels=torch.from_numpy(pixels).to(device, non_blocking=True),
        grids=torch.tensor([one.grid for one in seen], device=device),
    )


def eyes_of(model: PreTrainedModel, processor: Any, fetch: Callable[[str], bytes]) -> Eyes | None:
    """Finder of pictures for a model with this image processor; None where it has none. `fetch` gives the
    bytes of a picture by its SHA-256."""
    token = picture_token(model.config)
    if token is None or processor is None:
        return None
    return Eyes(Pictures(PictureReader(processor), fetch), token)
