"""Pictures on the page: those of messages alone, as what they are, with what was done next drawn on them."""

import re
from html import unescape
from pathlib import Path

import aiohttp
import msgspec
import pytest
from playwright.async_api import async_playwright

from orchard.page.pictures import points
from orchard.page.report import write_report
from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.messages import MessageNode
from orchard.storage.blobs import BlobStore
from tests.gui_log import GuiAuthor
from tests.orchard.page.conftest import Serve, served, stored
from tests.orchard.page.look import CHROMIUM, ROOT

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def played(place: Path) -> tuple[list[e.Event], list[str], str]:
    """A rollout of four turns whose last picture is none: its events, the pictures' names, and its id."""
    blobs = BlobStore(place / "store")
    events = GuiAuthor(blobs).played("t1", 4)
    bad = blobs.put(SVG, "image/png")
    found, last = [], None
    for number, event in enumerate(events):
        if isinstance(data := e.payload(event), MessageNode) and data.images:
            found.append(data.images[0].blob.sha256)
            last = number, data
    assert last is not None
    number, node = last
    image = msgspec.structs.replace(node.images[0], blob=bad)
    node = msgspec.structs.replace(node, images=(*node.images, image))
    events[number] = msgspec.structs.replace(events[number], data=msgspec.Raw(msgspec.json.encode(node)))
    return events, [*found, bad.sha256], events[0].rollout_id or ""


async def test_a_picture_is_served_where_a_message_names_it(tmp_path: Path, serve: Serve) -> None:
    events, names, rollout = played(tmp_path)
    store = await stored(tmp_path, events)
    secret = BlobStore(store).put(b"\x89PNG\r\n\x1a\n not named by any message")
    async with serve(store) as url, aiohttp.ClientSession(url) as http:
        async with http.get(f"/rollouts/{rollout}") as reply:
            html = await reply.text()
        assert re.findall(r'src="/rollouts/[0-9a-f]+/pictures/([0-9a-f]+)"', html) == [*names, *names]
        circles = re.findall(r'<circle cx="([0-9.]+)" cy="([0-9.]+)" r="1.1"/>', html)
        assert circles == [(f"{0.64 * turn:.1f}", "25.0") for turn in (1, 2, 3)] * 2
        for sha256, status in ((names[0], 200), (names[-1], 404), (secret.sha256, 404), ("..%2f", 404)):
            async with http.get(f"/rollouts/{rollout}/pictures/{sha256}") as reply:
                assert reply.status == status
                if status == 200:
                    assert reply.content_type == "image/png"
                    assert await reply.read() == BlobStore(store).read(sha256)
                    assert reply.headers["X-Content-Type-Options"] == "nosniff"
                    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
        async with http.get(f"/rollouts/{'0' * 24}/pictures/{names[0]}") as reply:
            assert reply.status == 404


@pytest.mark.long
async def test_a_report_has_its_pictures_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, names, rollout = played(tmp_path)
    plan = e.CampaignSubmitted(
        spec=BlobRef(sha256="0" * 64, size=1),
        spec_hash="x",
        size=1,
        tasks=1,
        harnesses=(),
        models=(),
        samples=1,
    )
    planned = GuiAuthor(BlobStore(tmp_path / "store")).event(plan, "", None)
    store = await stored(tmp_path, [*events, msgspec.structs.replace(planned, id="planned")])
    made = write_report(str(store), "gui", tmp_path / "out")
    assert {file.stem for file in (tmp_path / "out" / "pictures").iterdir()} == set(names[:-1])
    html = (tmp_path / "out" / "rollouts" / f"{rollout}.html").read_text()
    for link in map(unescape, re.findall(r'src="([^"]*)"', html)):
        assert (tmp_path / "out" / "rollouts" / link).is_file()
    assert (made.pictures, made.left_out) == (len(names) - 1, 1)
    assert "4 pictures" in (tmp_path / "out" / "secrets.txt").read_text()
    monkeypatch.setattr("orchard.page.report.PICTURES", 200)
    assert write_report(str(store), "gui", tmp_path / "small").pictures == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"point_2d": [501, 213.5], "button": "left"}', [(501, 213.5)]),
        ('{"start_point_2d": [0, 0], "end_point_2d": [1000, 1000]}', [(0, 0), (1000, 1000)]),
        ('{"point_2d": [1001, 5]}', []),
        ('{"point_2d": ["<script>", 5], "other": [true, 1], "n": [1, 2, 3]}', []),
        ('{"point_2d": [1', []),
        ("[1, 2]", []),
        ("", []),
    ],
)
def test_points_are_pairs_of_numbers_on_the_screen(
    arguments: str, expected: list[tuple[float, float]]
) -> None:
    assert points(arguments) == expected


@pytest.mark.slow
async def test_the_strip_and_the_clicks_are_seen(tmp_path: Path) -> None:
    events, _, rollout = played(tmp_path)
    store = await stored(tmp_path, events)
    said: list[str] = []
    async with served(store) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ROOT)
        page = await browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        await page.goto(f"{url}/rollouts/{rollout}")
        widths = await page.eval_on_selector_all(  # they come after the page: loading="lazy"
            ".film img",
            "all => Promise.all(all.map(one => one.decode().catch(() => 0).then(() => one.naturalWidth)))",
        )
        boxes = await page.eval_on_selector_all(
            ".picture .shot:has(.aim)", "all => all.map(one => [one.offsetWidth, one.offsetHeight])"
        )
        await page.locator(".film a").nth(2).click()
        assert "#m-" in page.url
        await browser.close()
    assert widths == [64, 64, 64, 64, 0] and len(boxes) == 3
    assert all(abs(height / width - 50 / 64) < 0.02 for width, height in boxes)
    assert [line for line in said if "Content Security" in line] == []
