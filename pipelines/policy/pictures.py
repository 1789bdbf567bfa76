"""The pictures of a prompt, and the vision tower that turns them into vectors."""

import asyncio
import base64
import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from orchard.pipelines.vision.places import Grid, positions, runs
from orchard.pipelines.vision.reading import BadPicture, PictureReader, Seen

MOST_PICTURES = 64
"""Maximum pictures of one request."""
_KEPT_PICTURES = 256
_KEPT_BYTES = 2**28
_DATA_URL = re.compile(r"data:image/[a-z+.-]+;base64,", re.I)


class Shown(NamedTuple):
    """A picture in a prompt."""

    sha256: str
    """SHA-256 of its bytes: equal pictures have equal vectors."""
    seen: Seen


class RequestPictures:
    """Reads the pictures of requests, each once."""

    def __init__(self, reader: PictureReader | None, *, blind: bool = False) -> None:
        """`reader` is the model's; None where it reads text alone. `blind` makes every picture black."""
        self._reader, self._blind = reader, blind
        self._known: OrderedDict[str, Seen] = OrderedDict()

    async def pictures(self, urls: Sequence[str]) -> list[Shown]:
        """The pictures of a request. Raises BadPicture."""
        if len(urls) > MOST_PICTURES:
            raise BadPicture(f"the messages have {len(urls)} pictures: send at most {MOST_PICTURES}")
        if urls and self._reader is None:
            raise BadPicture("the model reads text alone: send no pictures, or serve a model that sees")
        return [await self._picture(url) for url in urls]

    def tokens(self, pictures: Sequence[Shown]) -> list[int]:
        reader = self._reader
        return [picture.seen.grid.tokens(reader.merge) for picture in pictures] if reader else []

    async def _picture(self, url: str) -> Shown:
        assert self._reader is not None
        data = of_url(url)
        name = hashlib.sha256(data).hexdigest()
        if (seen := self._known.get(name)) is None:
            read = self._reader.read_black if self._blind else self._reader.read
            seen = await asyncio.to_thread(read, data)
            self._known[name] = seen
            while len(self._known) > _KEPT_PICTURES:
                self._known.popitem(last=False)
        return Shown(name, seen)


def of_url(url: object) -> bytes:
    """The bytes of a `data:` URL. Raises BadPicture."""
    found = _DATA_URL.match(url) if isinstance(url, str) else None
    if not isinstance(url, str) or found is None:
        raise BadPicture(
            "a picture is sent as its bytes, in a URL `data:image/png;base64,...`: no other is read"
        )
    try:
        return base64.b64decode(url[found.end() :], validate=True)
    except ValueError as error:
        raise BadPicture(f"the picture's bytes are not written in base64: {error}") from error


class Features(NamedTuple):
    """A picture, or some of its tokens, as vectors for the language model."""

    rows: torch.Tensor
    """[tokens, size]: replaces the embeddings of its tokens."""
    deep: tuple[torch.Tensor, ...]
    """[tokens, size] each: added after the first layers; empty in models without."""

    def part(self, first: int, end: int) -> "Features":
        """The vectors of the tokens from `first` to before `end`."""
        return Features(self.rows[first:end], tuple(layer[first:end] for layer in self.deep))


class Placed(NamedTuple):
    first: int
    end: int
    shown: Shown


class Layout(NamedTuple):
    """A prompt with its pictures, in the form that an engine reads."""

    pictures: list[Placed]
    keys: list[int]
    """Token ids, and for a picture's tokens a number below 0 that identifies the picture."""
    positions: torch.Tensor
    """[3, tokens]: three positions of each token."""
    shift: int
    """Difference from a later token's number to its position: 0 or less."""


class Tower:
    """The vision tower of a model. Caches the vectors of pictures as long as its weights stay."""

    def __init__(self, visual: Any, config: Any) -> None:
        """`visual` is the module of `transformers`, on the device; `config` that of the whole model."""
        self._visual = visual
        self._merge: int = config.vision_config.spatial_merge_size
        self.token: int = config.image_token_id
        self._known: OrderedDict[str, Features] = OrderedDict()
        self._held = 0

    def layout(self, prompt: Sequence[int], pictures: Sequence[Shown]) -> Layout:
        """Find where the pictures of a prompt are. Raises ValueError unless its picture tokens are theirs."""
        if prompt[-1] == self.token:
            raise ValueError("a prompt cannot end with a picture")
        grids = [picture.seen.grid for picture in pictures]
        lengths = [self._tokens(grid) for grid in grids]
        firsts = runs(torch.tensor(prompt).numpy(), self.token, lengths)
        found = positions(len(prompt), zip(firsts, grids, strict=True), self._merge)
        keys = list(prompt)
        placed = []
        for first, length, picture in zip(firsts, lengths, pictures, strict=True):
            end = first + length
            placed.append(Placed(first, end, picture))
            keys[first:end] = [-1 - int(picture.sha256[:15], 16)] * length
        shift = int(found.max()) + 1 - len(prompt)
        return Layout(placed, keys, torch.from_numpy(found), shift)

    @torch.inference_mode()
    def features(self, picture: Shown) -> Features:
        if (known := self._known.get(picture.sha256)) is not None:
            self._known.move_to_end(picture.sha256)
            return known
        parameter = next(self._visual.parameters())
        found = self._visual(
            torch.from_numpy(picture.seen.pixels).to(parameter),
            grid_thw=torch.tensor([picture.seen.grid], device=parameter.device),
            return_dict=True,
        )
        made = Features(found.pooler_output, tuple(getattr(found, "deepstack_features", None) or ()))
        self._known[picture.sha256] = made
        self._held += _size(made)
        while self._held > _KEPT_BYTES and len(self._known) > 1:
            self._held -= _size(self._known.popitem(last=False)[1])
        return made

    def _tokens(self, grid: Grid) -> int:
        return grid.tokens(self._merge)


def _size(features: Features) -> int:
    return sum(tensor.nbytes for tensor in (features.rows, *features.deep))
