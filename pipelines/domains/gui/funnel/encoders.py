"""Texts into vectors: any OpenAI-compatible `/embeddings`, or hashing without a model and a network."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Protocol

import aiohttp
import msgspec
import numpy as np

from orchard.pipelines.domains.gui.funnel.nearest import Floats, unit
from orchard.pipelines.domains.gui.funnel.stages import normal
from orchard.pipelines.tasks.errors import TaskError
from orchard.workers.llm.settings import EndpointSettings

DIMENSIONS = 512
_GRAMS = (3, 5)
"""Characters in a run; runs of five take in neighbouring words."""
_BATCH = 256
_TRIES, _PAUSE_SECONDS = 6, 1.0
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Encoder(Protocol):
    """Turns texts into vectors."""

    name: str
    """Name with all that decides the vectors, which are kept under it."""

    async def encode(self, texts: Sequence[str]) -> Floats:
        """A row of length 1 for each text. Raises TaskError."""


class HashingEncoder:
    """Counts of runs of characters, hashed with signs into a few hundred coordinates: no model, no network.

    It sees letters, not meaning: paraphrases in other words stay apart.
    """

    name = f"hashing-{DIMENSIONS}-1"

    async def encode(self, texts: Sequence[str]) -> Floats:
        return await asyncio.to_thread(hashed, texts)


def hashed(texts: Sequence[str]) -> Floats:
    encoded = [f" {normal(text)} ".encode() for text in texts]
    raw = np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.uint64)
    lengths = np.array([len(each) for each in encoded])
    owner = np.repeat(np.arange(len(texts)), lengths)
    found = np.zeros(len(texts) * DIMENSIONS)
    for size in _GRAMS:
        starts = len(raw) - size + 1
        if starts <= 0:
            continue
        codes = np.zeros(starts, dtype=np.uint64)
        for offset in range(size):
            codes = codes * np.uint64(257) + raw[offset : offset + starts]
        codes = (codes + np.uint64(size)) * _MULTIPLIER
        inside = owner[:starts] == owner[size - 1 :]
        buckets = (codes >> np.uint64(40)) % np.uint64(DIMENSIONS)
        signs = np.where(codes >> np.uint64(63), 1.0, -1.0)
        cells = owner[:starts] * DIMENSIONS + buckets.astype(np.int64)
        found += np.bincount(cells[inside], weights=signs[inside], minlength=len(found))
    return unit(found.reshape(len(texts), DIMENSIONS))


class EndpointEncoder:
    """An embedding model at an endpoint of the configuration."""

    def __init__(self, model: str, settings: EndpointSettings) -> None:
        self.name = f"endpoint-{model}"
        self._model = model
        self._url = f"{settings.base_url.rstrip('/')}/embeddings"
        key = os.environ.get(settings.api_key_env, "") if settings.api_key_env else ""
        if settings.api_key_env and not key:
            raise TaskError(
                f"embeddings need a key in the environment variable {settings.api_key_env}: set it"
            )
        self._headers = {"Authorization": f"Bearer {key or 'none'}"}
        self._timeout = aiohttp.ClientTimeout(total=300)

    async def encode(self, texts: Sequence[str]) -> Floats:
        """A row of length 1 for each text. Retries an endpoint that is down; raises TaskError when it
        stays so."""
        async with aiohttp.ClientSession(headers=self._headers, timeout=self._timeout) as session:
            rows: list[list[float]] = []
            for begin in range(0, len(texts), _BATCH):
                rows += await self._batch(session, list(texts[begin : begin + _BATCH]))
        if len({len(row) for row in rows}) > 1:
            raise TaskError(f"{self._model} answered with vectors of several lengths")
        return unit(np.array(rows, dtype=np.float64))

    async def _batch(self, session: aiohttp.ClientSession, texts: list[str]) -> list[list[float]]:
        fault = ""
        for number in range(_TRIES):
            if number:
                await asyncio.sleep(_PAUSE_SECONDS * 2 ** (number - 1))
            try:
                async with session.post(self._url, json={"model": self._model, "input": texts}) as answer:
                    body = await answer.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                fault = f"{type(error).__name__}: {error}"
                continue
            if answer.status == 200:
                return _vectors(body, len(texts), self._model)
            fault = f"it answered {answer.status}: {body[:200].decode(errors='replace')}"
            if answer.status < 500 and answer.status not in (408, 429):
                break
        raise TaskError(f"no embeddings from {self._model}: {fault}; run the same command again to go on")


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Vector]


def _vectors(body: bytes, number: int, model: str) -> list[list[float]]:
    try:
        found: Any = msgspec.json.decode(body, type=_Answer).data
    except msgspec.DecodeError as error:
        raise TaskError(f"{model} answered no embeddings: {error}") from error
    if sorted(each.index for each in found) != list(range(number)):
        raise TaskError(f"{model} answered with {len(found)} vectors for {number} texts")
    return [each.embedding for each in sorted(found, key=lambda each: each.index)]
