"""Pictures in the message tree: bytes to blobs, references in events, the newest ones in the prompt."""

import base64
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image as Canvas

from orchard.schemas.blobs import INLINE_LIMIT, BlobRef
from orchard.schemas.events import encode_event, make_event
from orchard.schemas.identity import digest
from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.messages import Image, MessageNode, NodeRest, Role, ToolCall, node_id
from orchard.schemas.outcomes import AbortCause
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.large_messages import whole
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.episode.pictures import NotAPicture, Picture, picture_of_url, read_picture
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.answers import Completion
from tests.workers.episode.test_replay_record import Log

LOOK = ToolCall(id="1", name="click", arguments='{"point_2d":[500,500]}')
KEY = "ghp_" + "a" * 36


def painted(colour: str, form: str = "PNG", size: tuple[int, int] = (40, 30), **options: Any) -> bytes:
    target = io.BytesIO()
    Canvas.new("RGB", size, colour).save(target, form, **options)
    return target.getvalue()


def picture(colour: str, at: int | None = None, caption: str = "") -> Picture:
    return read_picture(painted(colour), at=at, caption=caption)


def url(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    address = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": address}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def named(letter: str) -> Image:
    blob = BlobRef(sha256=letter * 64, size=1, media_type="image/png")
    return Image(blob=blob, media_type="image/png", width=1, height=1)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "store")


@pytest.mark.parametrize(
    ("form", "options", "media_type"),
    [
        ("PNG", {}, "image/png"),
        ("JPEG", {}, "image/jpeg"),
        ("JPEG", {"progressive": True, "exif": b"Exif\x00\x00" + b"\xff" * 99}, "image/jpeg"),
        ("WEBP", {}, "image/webp"),
        ("WEBP", {"lossless": True}, "image/webp"),
        ("WEBP", {"exif": b"Exif\x00\x00"}, "image/webp"),
        ("GIF", {}, "image/gif"),
    ],
)
def test_a_picture_says_its_type_and_size(form: str, options: dict[str, Any], media_type: str) -> None:
    data = painted("red", form, (1280, 1000), **options)
    found = read_picture(data, at=3)
    assert (found.media_type, found.width, found.height, found.at) == (media_type, 1280, 1000, 3)
    for cut in (0, 3, 8):
        with pytest.raises(NotAPicture):
            read_picture(data[:cut])


@pytest.mark.parametrize(
    "address",
    [
        "https://example.org/a.png",
        "data:image/png;base64,aGVsbG8=",
        "data:image/svg+xml;base64," + base64.b64encode(b"<svg onload='alert(1)'/>").decode(),
        "data:image/png;base64,%%%",
        "data:text/plain,x",
    ],
)
def test_what_is_no_picture_is_none(address: str) -> None:
    assert picture_of_url(address) is None


def test_ids_cover_pictures_and_stay_as_they_were_without() -> None:
    before = digest([None, Role.USER, "see", (), ""])
    assert node_id(None, Role.USER, "see") == before
    one = named("a")
    others = [
        (),
        (one,),
        (one, one),
        (msgspec.structs.replace(one, at=0),),
        (named("b"),),
        (msgspec.structs.replace(one, caption="c"),),
    ]
    assert len({node_id(None, Role.USER, "see", images=images) for images in others}) == len(others)


async def test_bytes_are_blobs_and_events_name_them(log: Log) -> None:
    trace = log.trace()
    red = picture("red", at=4)
    first = await trace.user(None, f"see {KEY} here", [picture("blue"), red])
    answer = await trace.answered(first, Completion(text="t", tool_calls=(LOOK,)), images_shown=("x",))
    await trace.result(
        answer, LOOK, "done", CommandOutcome(output="", returncode=0, seconds=0, pictures=(red,))
    )
    opened, call, _, result = log.published
    assert isinstance(opened, MessageNode) and isinstance(result, MessageNode) and isinstance(call, LLMCall)
    assert [image.at for image in opened.images] == [4, None]
    assert log.blobs.get(opened.images[0].blob) == red.data
    assert result.images[0].blob == opened.images[0].blob
    assert len([path for path in (Path(log.blobs.url) / "blobs").rglob("*") if path.is_file()]) == 2
    assert call.images_shown == ("x",)
    assert not any(base64.b64encode(red.data)[:40] in bytes(event.event.data) for event in log.stored)


async def test_a_key_before_a_picture_moves_it(log: Log) -> None:
    trace = log.trace()
    said = f"{KEY} shot: [] end"
    await trace.user(None, said, [picture("red", at=said.index("]"))])
    (node,) = log.published
    assert isinstance(node, MessageNode)
    assert node.content[: node.images[0].at].endswith("shot: [") and KEY not in node.content


async def test_the_newest_pictures_are_shown_at_their_places(log: Log) -> None:
    """Older ones leave the prompt with their captions, and stay in the log."""
    trace = log.trace()
    at = await trace.user(None, "<o>\n</o>", [picture("red", 3, "\nscreenshot:\n")])
    at = await trace.answered(at, Completion(text="a"))
    at = await trace.user(at, "<o>\n</o>", [picture("green", 3, "\nscreenshot:\n"), picture("blue")])
    shot = [text("<o>\nscreenshot:\n"), url(painted("green")), text("\n</o>"), url(painted("blue"))]
    prompt = await trace.prompt(at, 2)
    assert [message["content"] for message in prompt.messages] == ["<o>\n</o>", "a", shot]
    assert len(prompt.images) == 2
    one = await trace.prompt(at, 1)
    assert one.messages[2]["content"] == [text("<o>\n</o>"), url(painted("blue"))]
    assert one.images == prompt.images[1:]
    whole_path = await trace.prompt(at)
    assert whole_path.messages[0]["content"] == [
        text("<o>\nscreenshot:\n"),
        url(painted("red")),
        text("\n</o>"),
    ]
    assert [message["content"] for message in trace.messages(at)] == ["<o>\n</o>", "a", "<o>\n</o>"]


async def test_pictures_of_results_follow_the_results(log: Log) -> None:
    """Endpoints take texts alone as results, and all results of a message before anything else."""
    trace = log.trace()
    other = msgspec.structs.replace(LOOK, id="2")
    at = await trace.answered(await trace.user(None, "u"), Completion(text="", tool_calls=(LOOK, other)))
    for call, colour in ((LOOK, "red"), (other, "blue")):
        outcome = CommandOutcome(output="", returncode=0, seconds=0, pictures=(picture(colour),))
        at = await trace.result(at, call, f"{colour}: ", outcome)
    sent = (await trace.prompt(at)).messages[2:]
    assert [message["content"] for message in sent] == [
        "red: [picture 1]",
        "blue: [picture 2]",
        [text("[picture 1]"), url(painted("red")), text("[picture 2]"), url(painted("blue"))],
    ]
    assert [message["role"] for message in sent] == ["tool", "tool", "user"]


async def test_a_replayed_attempt_keeps_its_pictures(log: Log) -> None:
    """And ends the replay where the screen is another one, though the text is the same."""

    async def play(trace: MessageTree, colour: str) -> str:
        at = await trace.user(None, "go", [picture("red")])
        recalled = await trace.recalled(at)
        at = recalled[0] if recalled else await trace.answered(at, Completion(text="", tool_calls=(LOOK,)))
        outcome = CommandOutcome(output="ok", returncode=0, seconds=0, pictures=(picture(colour),))
        return await trace.result(at, LOOK, "ok", outcome)

    first = await play(log.trace(), "blue")
    record = list(log.stored)
    same = log.replaying()
    assert await play(same, "blue") == first
    shown = [data.images for data in log.published if isinstance(data, MessageNode) and data.images]
    assert [data.inherited_from for data in log.published if isinstance(data, MessageNode)] == [1, 1, 1]
    assert len(shown) == 2 and len((await same.prompt(first)).images) == 2
    log.stored = record
    assert await play(log.replaying(), "green") != first
    assert "showed other pictures" in log.told.divergence


async def test_very_many_pictures_go_into_the_rest(log: Log) -> None:
    trace = log.trace()
    many = [picture("red", at=number % 50) for number in range(1500)]
    await trace.user(None, "x" * 60, many)
    (node,) = log.published
    assert isinstance(node, MessageNode) and node.rest_blob is not None and node.images == ()
    assert len(encode_event(make_event(node, id="1", source="s", campaign="c"))) < INLINE_LIMIT
    assert len(msgspec.json.decode(log.blobs.get(node.rest_blob), type=NodeRest).images) == 1500
    assert len(whole(node, log.blobs).images) == 1500


async def test_a_picture_that_cannot_be_stored_or_read_is_our_failure(tmp_path: Path, log: Log) -> None:
    store = tmp_path / "file"
    store.write_text("not a directory")
    published = []

    async def publish(data: msgspec.Struct) -> None:
        published.append(data)

    with pytest.raises(InfrastructureError) as caught:
        await MessageTree(publish, BlobStore(store)).user(None, "x", [picture("red")])
    assert caught.value.cause is AbortCause.STORE_FAILED and published == []
    trace = log.trace()
    lost = (named("a"),)
    node = node_id(None, Role.USER, "", images=lost)
    await trace.inherit(
        [MessageNode(node_id=node, parent=None, role=Role.USER, turn=0, images=lost)], trace.totals
    )
    with pytest.raises(InfrastructureError) as caught:
        await trace.prompt(trace.newest)
    assert caught.value.cause is AbortCause.STORE_FAILED
