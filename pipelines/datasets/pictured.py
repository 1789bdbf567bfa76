"""Examples with pictures: each turn with what the model was shown when it said it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.examples import ExampleDraft, ExampleDrop
from orchard.pipelines.datasets.settings import DatasetSettings
from orchard.pipelines.datasets.tokenization import ChatTokenizer, Conversation
from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.trajectories.reading import assistants
from orchard.pipelines.vision.places import flat
from orchard.schemas.blobs import BlobRef
from orchard.schemas.identity import digest
from orchard.schemas.messages import MessageNode
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.prompts import chat_messages, newest

Tokens = Callable[[int, int], int]
"""Maps a picture's width and height in pixels to its number of tokens."""

_SHOWN = """
select distinct node, coalesce(len(images_shown), 0) from tables.llm_calls_all
where list_contains($rollouts, rollout_id)
"""


def read_shown(tables: duckdb.DuckDBPyConnection, rollouts: Collection[str]) -> dict[str, int]:
    """Number of pictures that each answer of these rollouts was made from, by its node, whichever attempt
    asked."""
    if not rollouts:
        return {}
    return dict(tables.execute(_SHOWN, {"rollouts": list(rollouts)}).fetchall())


def has_pictures(path: Iterable[MessageNode]) -> bool:
    return any(node.images for node in path)


def of_turns(
    one: ExampleDraft,
    path: Sequence[MessageNode],
    settings: DatasetSettings,
    shown: Mapping[str, int],
    tokens: Tokens,
    cut: Collection[tuple[str, str]] = (),
) -> list[ExampleDraft] | ExampleDrop:
    """Split the draft of a trajectory with pictures into one for each turn that trains. `shown` comes
    from `read_shown`."""
    turns = assistants(path)
    found = []
    for step in one.trained:
        last = shown.get(turns[step].node_id) if settings.pictures == "shown" else settings.pictures
        if last is None:
            return ExampleDrop.UNKNOWN_PICTURES
        found.append(_of_turn(one, path, step, int(last), tokens, cut))
    return found


def _of_turn(
    one: ExampleDraft,
    path: Sequence[MessageNode],
    step: int,
    last: int,
    tokens: Tokens,
    cut: Collection[tuple[str, str]],
) -> ExampleDraft:
    turns = assistants(path)
    asked = next(index for index, node in enumerate(path) if node is turns[step])
    before = newest(path[:asked], last)
    images = tuple(chain.from_iterable(before))
    said = chat_messages(path, [*before, *([] for _ in path[asked:])])
    places = [index for index, message in enumerate(said) if message["role"] == "assistant"][: step + 1]
    said = said[: places[-1] + 1]
    answers = dict(zip(places, turns, strict=False))
    conversation = Conversation(
        name=f"{one.conversation.name}.{step}",
        messages=[{**message, "content": flat(message["content"])} for message in said],
        tools=one.conversation.tools,
        stored={place: node.tokens.ids for place, node in answers.items() if node.tokens}
        if one.conversation.stored
        else {},
        cut={place for place, node in answers.items() if (one.candidate.rollout_id, node.node_id) in cut},
        pictures=[tokens(image.width, image.height) for image in images],
    )
    return ExampleDraft(
        candidate=one.candidate,
        conversation=conversation,
        trained=(step,),
        segments=one.segments,
        masked=0,
        images=images,
        messages=said,
        of_turn=True,
    )


def picture_tokens(name: str) -> tuple[Tokens, str]:
    """Load the image processor beside a tokenizer: its count of a picture's tokens, and its configuration
    as text. Raises DatasetError where there is none."""
    try:
        from orchard.pipelines.vision.reading import PictureReader  # it brings torch

        reader = PictureReader.load(name)
    except ModelError as error:
        raise DatasetError(f"examples with pictures: {error}") from error
    return reader.tokens, str(reader.processor.to_json_string())


def encoder_sha256(tokenizer: ChatTokenizer, settings: DatasetSettings) -> str:
    """Digest of everything that makes tokens of a conversation: the tokenizer, and with pictures the
    image processor."""
    if settings.pictures == "none":
        return tokenizer.sha256
    return digest([tokenizer.sha256, picture_tokens(settings.tokenizer)[1]], 64)


def copy_pictures(shards: Iterable[Path], blobs: BlobStore, out: Path) -> None:
    """Copy the pictures that rows name into the blobs of the dataset's directory, each once. Raises
    StorageError."""
    kept = BlobStore(out)
    for shard in shards:
        shown = pq.read_table(shard, columns=["images"]).column("images")
        for sha256 in dict.fromkeys(chain.from_iterable(shown.to_pylist())):
            kept.put(blobs.get(BlobRef(sha256=sha256, size=0)))
