"""Pictures of a rollout for people and programs: `orchard show`, and SQL over tables that are made again."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchard.cli.app import app
from orchard.storage.blobs import BlobStore
from orchard.storage.digest import store_digests
from orchard.storage.reader import open_tables
from orchard.storage.upkeep.maintenance import compact, rebuild_derived
from tests.gui_log import SCREEN, GuiAuthor
from tests.orchard.page.conftest import stored

pytestmark = pytest.mark.long

_IMAGES = (
    "select rollout_id, attempt, turn, role, number, sha256, size, media_type, width, height, place, caption "
    "from images order by rollout_id, sequence, number"
)


async def test_pictures_are_shown_written_and_asked_for(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "store")
    author = GuiAuthor(blobs)
    first, second = author.played("g1", 3), author.played("g2", 2)
    store = str(await stored(tmp_path, [*first, *second]))
    with open_tables(store) as tables:
        rows = tables.sql(_IMAGES).fetchall()
        shown = tables.sql("select images_shown from llm_calls order by sequence").fetchall()
    mine = [row for row in rows if row[0] == first[0].rollout_id]
    assert [row[2:5] for row in mine] == [(0, "user", 1), (1, "user", 1), (2, "user", 1)]
    assert all(row[6] == len(blobs.read(row[5])) and row[7:10] == ("image/png", *SCREEN) for row in rows)
    assert [names for (names,) in shown][:3] == [[row[5]] for row in mine]

    compact(store)
    before = store_digests(store)
    rebuild_derived(store)
    assert store_digests(store) == before
    with open_tables(store) as tables:
        assert tables.sql(_IMAGES).fetchall() == rows

    run, out = CliRunner(), tmp_path / "out"
    name = str(first[0].rollout_id)
    done = run.invoke(app, ["--store", store, "show", name, "--images", str(out), "--turns", "..1"])
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.replace("│", " ").split())
    for row in mine[:2]:
        assert f"[picture image/png, 64 x 50, {row[6]} bytes, sha256 {row[5]}]" in said
        (file,) = out.glob(f"{row[2]:04}-1-{row[5][:16]}.png")
        assert file.read_bytes() == blobs.read(row[5])
    assert len([*out.iterdir()]) == 2 and "2 pictures" in done.stderr
    lines = [
        json.loads(line)
        for line in run.invoke(app, ["--store", store, "show", name, "--json"]).stdout.splitlines()
    ]
    named = [image["blob"]["sha256"] for line in lines for image in line.get("images", ())]
    assert named == [row[5] for row in mine]
