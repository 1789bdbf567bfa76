"""Drawn drills: what is said of a picture is on it, and it comes in as the released GUI layout does."""

import io
import json
from pathlib import Path

from PIL import Image, ImageColor

from orchard.pipelines.datasets.exporters.interface import MARK
from orchard.pipelines.domains.gui.released_rows import read_gui_rows
from orchard.pipelines.domains.gui.screens import PLACES, screen_drills, screen_episodes, write_drills
from orchard.schemas.messages import Role
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.gui.sites.appearance import TINY_THEMES
from orchard.workers.domains.gui.sites.tiny import COLOURS, PAPERS, SHAPES, SIDE

COUNT = 60


def test_each_line_names_a_shape_and_its_middle_has_that_colour() -> None:
    near = right = 0
    for row in screen_drills(0, COUNT):
        image = Image.open(io.BytesIO(row["images"][0]["bytes"])).convert("RGB")
        assert image.size == (SIDE, SIDE)
        asked = row["messages"][0]["content"].removesuffix(f"\n{MARK}")
        names = []
        for line in row["messages"][1]["content"].splitlines():
            words = line.split()
            colour, shape, x, y = words if asked != PLACES else (*words[2:], *words[:2])
            names.append(f"{colour} {shape}")
            assert shape in SHAPES
            seen = image.getpixel((int(x) * SIDE // 10, int(y) * SIDE // 10))
            wanted = ImageColor.getrgb(COLOURS[colour])
            assert isinstance(seen, tuple)
            near += 1
            right += max(abs(a - b) for a, b in zip(seen, wanted, strict=True)) < 40
        assert len(names) == 3 or asked == f"Click the {', then the '.join(names)}."
    assert near >= 2 * COUNT and right > 0.9 * near  # half a tenth beside the middle of a star may be ground


def test_drills_are_of_their_seed_and_on_no_ground_that_is_held_out() -> None:
    rows = list(screen_drills(0, COUNT))
    assert rows == list(screen_drills(0, COUNT)) and rows != list(screen_drills(1, COUNT))
    held_out = {ImageColor.getrgb(PAPERS[theme]) for theme in TINY_THEMES["held-out"]}
    for row in rows:
        corner = Image.open(io.BytesIO(row["images"][0]["bytes"])).convert("RGB").getpixel((0, 0))
        assert corner not in held_out


def test_a_drill_is_read_as_a_trajectory_of_others(tmp_path: Path) -> None:
    write_drills(tmp_path / "drills.parquet", screen_drills(0, COUNT))
    blobs = BlobStore(tmp_path)
    found = list(read_gui_rows([tmp_path / "drills.parquet"], blobs, "browser-compact"))
    assert len({each.task_id for each in found}) == len(found) == COUNT
    for each in found:
        assert each.resolved and [node.role for node in each.nodes] == [Role.USER, Role.ASSISTANT]
        [image] = each.nodes[0].images
        assert len(blobs.get(image.blob)) == image.blob.size


def test_an_episode_acts_as_in_a_browser_on_what_is_drawn(tmp_path: Path) -> None:
    episodes = 12
    write_drills(tmp_path / "drills.parquet", screen_episodes(0, episodes))
    blobs = BlobStore(tmp_path)
    found = list(read_gui_rows([tmp_path / "drills.parquet"], blobs, "browser-compact"))
    assert len(found) == episodes
    lengths = set()
    for each in found:
        said = [node for node in each.nodes if node.role is Role.ASSISTANT]
        shown = [node for node in each.nodes if node.images]
        *clicks, _end = (json.loads(call.arguments) for node in said for call in node.tool_calls)
        assert len(shown) == len(said) == len(clicks) + 1
        assert [call.name for node in said for call in node.tool_calls] == ["click"] * len(clicks) + ["done"]
        wanted = [node.content.removeprefix("<think>").split()[:2] for node in said[:-1]]
        assert f"Click the {', then the '.join(map(' '.join, wanted))}." in each.nodes[1].content
        for node, (colour, _), click in zip(shown, wanted, clicks, strict=False):
            image = Image.open(io.BytesIO(blobs.get(node.images[0].blob))).convert("RGB")
            x, y = (at * SIDE // 1000 for at in click["point_2d"])
            near = image.crop((x - 8, y - 8, x + 8, y + 8))
            pixels = [near.getpixel((a, b)) for a in range(16) for b in range(16)]
            red, green, blue = ImageColor.getrgb(COLOURS[colour])[:3]
            assert any(
                isinstance(seen, tuple)
                and abs(seen[0] - red) + abs(seen[1] - green) + abs(seen[2] - blue) < 60
                for seen in pixels
            )
        assert all("at (" in node.content for node in shown[1:])
        lengths.add(len(clicks))
    assert lengths == {1, 2, 3}
    assert list(screen_episodes(0, 2)) == list(screen_episodes(0, 3))[: len(list(screen_episodes(0, 2)))]
