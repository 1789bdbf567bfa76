"""What models and web pages wrote is text on every page: escaped, spelled out, inside its box."""

from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from orchard.page.texts import diff, visible
from orchard.schemas.blobs import BlobRef
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from tests.orchard.page.conftest import served, stored
from tests.orchard.page.hostile import hostile_events, overviews, payloads

NAMES = """
action alt aria-current aria-hidden aria-label aria-labelledby aria-sort autocomplete charset class
colspan content cy cx d data-compare data-item data-live data-shown data-views datetime defer for form height
hidden href id lang maxlength method multiple name open placeholder points preserveaspectratio r rel required
role rx scope selected size src tabindex title type value viewbox width x x1 x2 y y1 y2
"""
"""All that the templates use: none of them runs anything."""
TAGS = """
a article b body br button circle code dd details dialog div dl dt figcaption figure form h1 h2 head header
html i input kbd label legend li line link main mark meta nav ol option p path polyline pre rect
script section select small span summary svg table tbody td th thead time title tr ul
"""
ATTRIBUTES, ELEMENTS = frozenset(NAMES.split()), frozenset(TAGS.split())


class Page(HTMLParser):
    """What a page is made of, and what one reads on it."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.wrong: list[str] = []
        self.feed(html)
        self.close()

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.wrong += [] if tag in ELEMENTS else [f"<{tag}>"]
        self.wrong += [f"{tag} {name}" for name in known if name not in ATTRIBUTES]
        for name in ("href", "src", "action"):
            address = known.get(name)
            if address is not None and (not address.startswith(("#", "/")) or address.startswith("//")):
                self.wrong.append(f"{tag} {name}={address}")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hostile_store(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """The store, with the payloads in a test's log too."""
    place = tmp_path_factory.mktemp("hostile")
    (place / "store").mkdir()
    log: BlobRef = BlobStore(str(place / "store")).put("\n".join(payloads()).encode())
    yield await stored(place, hostile_events(log))


async def pages_of(store: Path, http: aiohttp.ClientSession) -> dict[str, str]:
    """Every page there is of the store, by its address."""
    with open_tables(str(store)) as tables:
        (whole,) = tables.execute("select rollout_id from rollouts where task_id = 'all'").fetchone() or ("",)
        some = [
            row[0] for row in tables.execute("select rollout_id from rollouts order by 1 limit 12").fetchall()
        ]
    found = {}
    addresses = [
        "/",
        "/rollouts",
        f"/rollouts/{whole}/events",
        "/rollouts?text=pwned",
        *map("/rollouts/{}".format, some),
    ]
    addresses += [f"/rollouts/{whole}?turn={turn}" for turn in range(1, 201, 40)]
    addresses += overviews(whole, some[:3])
    while addresses:
        address = addresses.pop()
        async with http.get(address) as reply:
            assert reply.status == 200, address
            assert "script-src 'self'" in reply.headers["Content-Security-Policy"]
            found[address] = await reply.text()
        if address.startswith("/rollouts") and "after=" not in address and 'id="next"' in found[address]:
            before = found[address].partition('id="next"')[2]
            link = (
                before.partition('href="')[2].partition('"')[0].replace("&amp;", "&").replace("&#34;", "%22")
            )
            addresses += [link] if "after=" in link else []
    return found


@pytest.mark.long
async def test_no_text_becomes_anything_but_text(hostile_store: Path) -> None:
    async with served(hostile_store) as url, aiohttp.ClientSession(url) as http:
        found = await pages_of(hostile_store, http)
    read = {address: Page(html) for address, html in found.items()}
    assert {address: page.wrong for address, page in read.items() if page.wrong} == {}
    said = "".join(page.text for page in read.values())
    missing = [text for text in payloads() if len(text) < 2_000 and visible(text) not in said]
    assert missing == [], "these are nowhere to be read"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a\x00b\x1bc", "a␀b␛c"),
        ("\u202eexe", "‹U+202E›exe"),
        ("a\r\nb\rc", "a\nb␍c"),
        ("\x9b31m", "‹U+009B›31m"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("Z" + "\u0301" * 9, "Z" + "\u0301" * 4),
        ("naïve 日本 👩‍👧", "naïve 日本 👩‍👧"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(text: str, read: str) -> None:
    assert visible(text) == read


def test_a_diff_is_shown_line_by_line_under_the_names_that_the_grader_reads() -> None:
    text = (
        "said first\n"
        'diff --git "a/caf\\303\\251.py" "b/caf\\303\\251.py"\n'
        '--- "a/caf\\303\\251.py"\n+++ "b/caf\\303\\251.py"\n'
        "@@ -1,2 +1,2 @@ def <b>f():\n a\n--- old\n+++ new\n"
        "diff --git a/old b/new\nsimilarity index 100%\nrename from old\nrename to new\n"
    )
    said, changed, renamed = diff(text)
    assert [(each.name, each.added, each.removed) for each in (said, changed, renamed)] == [
        ("", 0, 0),
        ("café.py", 1, 1),
        ("new", 0, 0),
    ]
    shown = "".join(str(each.html) for each in (said, changed, renamed))
    assert shown.count('<span class="d ') == text.count("\n") + 1
    assert "@@ def &lt;b&gt;f():" in shown and '<span class="d del">--- old</span>' in shown
