"""The released GUI layout: out, as the package `datasets` reads it, and in, so that it goes out equal."""

import io
import json
from pathlib import Path
from typing import Any

import datasets as hf
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Canvas

from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.exporters.write import SPELLED, export
from orchard.pipelines.datasets.foreign import Foreign
from orchard.pipelines.datasets.importing import import_trajectories
from orchard.pipelines.datasets.rows import read_rows
from orchard.pipelines.domains.gui.exporter import GUI
from orchard.pipelines.domains.gui.released_rows import read_gui_rows
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.schemas.identity import rollout_id
from orchard.schemas.messages import Role
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from orchard.workers.episode.pictures import picture_of_url
from tests.gui_log import CAPTION, CLOSED, OPENED, SCREEN, TOOLS, GuiAuthor, screen
from tests.pipelines.datasets.test_pictured import settings


def rows_of(file: Path) -> list[dict[str, Any]]:
    return pq.read_table(file).to_pylist()


@pytest.mark.long
async def test_rows_go_out_come_in_and_go_out_equal(keep, connection, tmp_path: Path, seeing: str) -> None:
    author = GuiAuthor(BlobStore(tmp_path / "store"))
    store = await keep(
        [
            *author.played("g1", 3, last=2, words="A text with <image> in it, as pages have."),
            *author.played("g2", 2, last=2, site="map"),
            *author.played("g3", 2, last=2, resolved=False),
        ]
    )
    build(store, settings(seeing, tmp_path), tmp_path / "first")
    done = export(tmp_path / "first", GUI.name, tmp_path / "out")
    assert (done.records, done.left_out) == (5, 0)
    found = hf.load_dataset(
        "parquet", data_files=str(done.file), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert found.column_names == ["messages", "images", "reward", "status", "metadata"]
    assert [len(row["images"]) for row in found] == [1, 2, 2, 1, 2]
    first = found[0]["images"][0]
    assert first.size == SCREEN and first.tobytes() == Canvas.open(io.BytesIO(screen(1))).tobytes()
    assert [message["role"] for message in found[1]["messages"]][:4] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert found[0]["messages"][1]["content"].startswith(OPENED + CAPTION + "<image>" + CLOSED)
    assert '<tool_call>\n{"name": "click"' in found[0]["messages"][2]["content"]

    files = [done.file]
    trajectories = list(read_gui_rows(files, BlobStore(store), "browser"))
    assert [(one.task_id, len(one.nodes), one.flags) for one in trajectories] == [
        ("g1", 10, ()),
        ("g2", 7, ()),
    ]
    one = trajectories[0]  # of the second no row leaves a picture out, so none tells its caption
    asked = """
        select role, content, reasoning, [call.name || call.arguments for call in tool_calls], len(images)
        from messages where rollout_id = $rollout order by sequence
    """
    with open_tables(store) as tables:
        was = tables.execute(asked, {"rollout": rollout_id("gui", "g1", "claw-react", "m", 0)}).fetchall()
    *now, empty = [
        (
            node.role.value,
            node.content,
            node.reasoning,
            [call.name + call.arguments.replace(": ", ":").replace(", ", ",") for call in node.tool_calls],
            len(node.images) or None,
        )
        for node in one.nodes
    ]
    assert now == was[:-1] and (empty[0], empty[1]) == ("tool", "")  # a row ends with an answer
    assert json.loads(one.tools) == TOOLS
    calls = [call.id for node in one.nodes for call in node.tool_calls]
    assert [node.tool_call_id for node in one.nodes if node.role is Role.TOOL] == calls
    for _ in range(2):  # the second time adds nothing
        again = read_gui_rows(files, BlobStore(store), "browser")
        made = await import_trajectories(
            Publisher(connection), BlobStore(store), again, campaign="brought", dataset="orchard-gui"
        )
    assert (made.rollouts, made.there_already) == (0, 2)
    store = await keep()
    with open_tables(store) as tables:
        asked = "select count(*), count(distinct sha256) from images where campaign = $campaign"
        assert tables.execute(asked, {"campaign": "brought"}).fetchall() == [(5, 5)]
    chosen = settings(seeing, tmp_path, "pictures = 2\n", campaigns=["brought"])
    build(store, chosen, tmp_path / "second")
    back = export(tmp_path / "second", GUI.name, tmp_path / "back")
    before, after = rows_of(done.file), rows_of(back.file)
    same = ("messages", "images", "reward", "status")
    assert [{name: row[name] for name in same} for row in after] == [
        {name: row[name] for name in same} for row in before
    ]
    ours, theirs = (json.loads(rows[4]["metadata"]) for rows in (before, after))
    assert [ours[name] for name in ("task_id", "website", "step")] == ["g2", "map", 1]
    assert [theirs[name] for name in ("task_id", "website", "step")] == ["g2", "map", 1]
    assert list(read_rows(tmp_path / "first"))[1].images == list(read_rows(tmp_path / "second"))[1].images


@pytest.mark.long
async def test_other_programs_get_the_pictures_in_the_order_of_their_marks(
    keep, tmp_path: Path, seeing: str
) -> None:
    author = GuiAuthor(BlobStore(tmp_path / "store"))
    store = await keep(
        [*author.played("g1", 3, last=2), *author.played("g2", 1, words="A page that spells <image>.")]
    )
    dataset = tmp_path / "first"
    build(store, settings(seeing, tmp_path), dataset)
    shown = [row.images for row in read_rows(dataset)]
    assert [len(images) for images in shown] == [1, 2, 2, 1]
    blobs = BlobStore(dataset)

    told = export(dataset, "verl-sft", tmp_path / "verl")
    rows = rows_of(told.file)
    assert (told.records, told.left_out, told.lost[SPELLED]) == (3, 1, 1)
    for row, images in zip(rows, shown, strict=False):
        assert "".join(message["content"] for message in row["messages"]).count("<image>") == len(images)
        assert [image["bytes"] for image in row["images"]] == [blobs.read(sha256) for sha256 in images]

    lines = export(dataset, "slime", tmp_path / "slime").file.read_text().splitlines()
    for line, images in zip(lines, shown, strict=False):
        row = json.loads(line)
        assert "".join(message["content"] for message in row["messages"]).count("<image>") == len(images)
        read = [picture_of_url(url) for url in row["images"]]
        assert [picture and picture.data for picture in read] == [blobs.read(sha256) for sha256 in images]

    # A prompt ends before the first answer: of each row the pictures that were seen by then. The third row's
    # window has left the first picture out, and what the fourth spells is in its answer.
    prompts = rows_of(export(dataset, "verl-rl", tmp_path / "rl").file)
    assert [len(row["images"]) for row in prompts] == [
        "".join(message["content"] for message in row["prompt"]).count("<image>") for row in prompts
    ]
    assert [len(row["images"]) for row in prompts] == [1, 1, 0, 1]

    with pytest.raises(DatasetError, match="choose one of slime, verl-sft, verl-rl, orchard-gui"):
        export(dataset, "prime-rl", tmp_path / "prime")
    assert not (tmp_path / "prime").exists()


def written(place: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows, schema=GUI.schema), place)
    return place


def row(step: int, last: int = 1, **more: Any) -> dict[str, Any]:
    """A step as others write it: without our key, the newest pictures alone."""
    messages = [{"role": "system", "content": "see"}]
    for turn in range(step + 1):
        shown = "\nscreenshot:\n<image>" if turn > step - last else ""
        messages.append({"role": "user", "content": f"look {turn}{shown}\nnow"})
        messages.append(
            {"role": "assistant", "content": f"<think>\nt{turn}\n</think>\n<tool_call>x</tool_call>"}
        )
    images = [{"bytes": screen(turn), "path": None} for turn in range(step + 1)][-last:]
    made = {"messages": messages, "images": images, "reward": 1.0, "status": "success"}
    return made | {"metadata": json.dumps({"task_id": "t"})} | more


def test_rows_of_others_become_trajectories_with_all_pictures(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "store")
    other = row(0, metadata=json.dumps({"task_id": "u"}), reward=-1.0)
    file = written(tmp_path / "a.parquet", [row(0), row(1), row(2), other])
    first, second = read_gui_rows([file], blobs, "browser")
    shown = [(node.content, *(image.caption for image in node.images)) for node in first.nodes if node.images]
    assert shown == [(f"look {turn}\nnow", "\nscreenshot:\n") for turn in range(3)]
    assert [blobs.get(node.images[0].blob) for node in first.nodes if node.images] == [
        screen(turn) for turn in range(3)
    ]
    assert [node.reasoning for node in first.nodes if node.turn][::2] == ["t0", "t1", "t2"]
    assert (first.resolved, second.resolved, second.reward) == (True, False, -1.0)
    assert json.loads(first.metadata)["status"] == "success"
    (late,) = read_gui_rows([written(tmp_path / "b.parquet", [row(2)])], blobs, "browser")
    assert late.flags == ("steps_left_out",)


def test_trajectories_of_two_files_are_two_and_the_same_one_is_one(tmp_path: Path) -> None:
    def ids(name: str, *rows: dict[str, Any]) -> list[tuple[str, int]]:
        found = read_gui_rows([written(tmp_path / name, [*rows])], BlobStore(tmp_path / "store"), "browser")
        return [(one.task_id, one.sample) for one in found]

    first, failed = row(0), row(0, reward=-1.0)
    nameless = [row(0, metadata="{}"), row(0, metadata="{}", reward=-1.0)]
    assert ids("a", first) != ids("b", failed)
    assert ids("c", nameless[0]) != ids("d", nameless[1])
    assert ids("e", row(0), row(1), *nameless[:1]) == [*ids("f", row(0), row(1)), *ids("g", nameless[0])]
    pq.write_table(pa.Table.from_pylist([{**first, "images": [{"bytes": screen(0)}]}]), tmp_path / "untyped")
    (untyped,) = read_gui_rows([tmp_path / "untyped"], BlobStore(tmp_path / "store"), "browser")
    assert [("t", untyped.sample)] == ids("h", first)


def test_a_trajectory_with_a_row_that_is_not_in_the_layout_is_named_and_the_others_come(
    tmp_path: Path,
) -> None:
    def of(task: str, step: int, **more: Any) -> dict[str, Any]:
        return row(step, metadata=json.dumps({"task_id": task})) | more

    robot, answer = {"role": "robot", "content": ""}, {"role": "assistant", "content": "a"}
    developer = {"role": "developer", "content": "d"}
    rows = [
        of("first", 0),
        of("torn", 0),
        of("torn", 1, messages=[robot], images=[]),
        of("torn", 2),
        row(0, metadata="{"),
        of("pictureless", 0, images=[]),
        of("last", 0, messages=[developer, answer], images=[]),
    ]
    file = written(tmp_path / "a.parquet", rows)
    every = list(read_gui_rows([file], BlobStore(tmp_path / "s"), "browser"))
    found = [one for one in every if isinstance(one, Foreign)]
    assert [(one.task_id, one.row) for one in found] == [("first", 0), ("last", 6)]
    assert found[1].nodes[0].role is Role.SYSTEM
    assert [one for one in every if isinstance(one, LeftOut)] == [
        ("rows 1 to 3", "Invalid enum value 'robot' - at `$.messages[0].role`"),
        ("row 4", "metadata: not JSON text"),
        ("row 5", "images: their number is not that of the marks <image> in the messages"),
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (row(0, images=[]), "images: their number is not that of the marks"),
        (row(0, images=[{"bytes": b"<svg/>", "path": None}]), "a picture cannot be decoded"),
        (row(0, metadata="{"), "metadata: not JSON text"),
        (row(0, metadata='{"other": ' + "[" * 5000), "metadata: nested too deep"),
        (row(0, messages=[{"role": "robot", "content": ""}]), "Invalid enum value 'robot'"),
        (
            row(0, messages=[{"role": "user", "content": ""}], images=[]),
            "messages: no message of the assistant",
        ),
    ],
)
def test_a_row_that_is_not_in_the_layout_says_why(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    file = written(tmp_path / "a.parquet", [wrong])
    (left,) = read_gui_rows([file], BlobStore(tmp_path / "s"), "browser")
    assert isinstance(left, LeftOut) and said in left.why


@pytest.mark.parametrize(
    ("answer", "own", "said"),
    [
        ('<tool_call>\n{"name": "done", "arguments": {}}\n</tool_call>', {"calls": [[2, 2]]}, "fewer calls"),
        ("<tool_call>\n{\n</tool_call>", {"calls": [[2, 1]]}, "cannot be read"),
        ("Yes.", {"results": [1]}, "no call asked for"),
        ("Yes.", {"results": [2]}, "no call asked for"),
    ],
)
def test_what_our_export_cannot_have_said_is_refused(
    tmp_path: Path, answer: str, own: dict[str, Any], said: str
) -> None:
    one = row(0)
    one["messages"][2]["content"] = answer
    one["metadata"] = json.dumps({**json.loads(one["metadata"]), "orchard": {"tools": TOOLS, **own}})
    (left,) = read_gui_rows([written(tmp_path / "a.parquet", [one])], BlobStore(tmp_path / "s"), "browser")
    assert isinstance(left, LeftOut) and said in left.why
