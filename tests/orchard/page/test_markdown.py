"""A task's Markdown is formatted, and nothing in it runs, loads or leads inside the page."""

import re
import time
from pathlib import Path

import msgspec
import pytest

from orchard.page.texts import MARKDOWN_CHARACTERS, markdown
from orchard.schemas import events as e
from orchard.schemas.tasks import SWETests, Task
from orchard.storage.blobs import BlobStore
from tests.orchard.page.conftest import served, stored
from tests.orchard.page.hostile import payloads
from tests.orchard.page.look import NARROW, WIDE, chromium, tab
from tests.trajectory_log import Author

STATEMENT = """# Sums of *empty* lists

`sum_all([])` raises:

```python
assert sum_all([]) == 0  # <b>not bold</b>
```

1. call it
2. see [the report](https://pages.example/issue?a=1&b=2)

| input | right |
|---|---:|
| [] | 0 |
"""
OUR_TAGS = {
    *("p", "em", "strong", "code", "pre", "ul", "ol", "li", "a", "br", "hr", "blockquote", "s"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
OUR_ATTRIBUTES = {"class", "href", "rel", "title", "start"}


def test_markdown_becomes_markup_of_our_own() -> None:
    found = markdown(STATEMENT)
    assert found.title == "Sums of empty lists" and found.characters == len(STATEMENT)
    assert '<p class="heading">Sums of <em>empty</em> lists</p>' in found.html
    assert "&lt;b&gt;not bold&lt;/b&gt;" in found.html and "style" not in found.html
    assert "<ol>\n<li>call it</li>" in found.html and "<td>0</td>" in found.html
    address = "https://pages.example/issue?a=1&amp;b=2"
    assert f'<a href="{address}" rel="noreferrer" title="{address}">the report</a>' in found.html


@pytest.mark.parametrize(
    "wrap", ["{}", "[click]({})", "![see]({})", "<{}>", "[a]: {}\n\n[a]", "`{}`", "> {}"]
)
def test_no_hostile_text_becomes_a_tag_or_a_link(wrap: str) -> None:
    for text in payloads():
        html = str(markdown(wrap.format(text)).html)
        for tag, attributes in re.findall(r"<([a-zA-Z][\w:-]*)([^>]*)>", html):
            assert tag in OUR_TAGS, html[:300]
            assert set(re.findall(r'([\w:-]+)="[^"]*"', attributes)) <= OUR_ATTRIBUTES, html[:300]
        assert all(re.match("https?://", link) for link in re.findall(r'href="([^"]*)"', html))


@pytest.mark.parametrize(
    "address", ["javascript:x", "data:text/html,x", "/do/cancel?of=first", "//x.example", "x"]
)
def test_links_lead_to_web_addresses_alone(address: str) -> None:
    for text in (f"[click]({address})", f"![see]({address})", f"<{address}>", f"[a][b]\n\n[b]: {address}"):
        assert "href" not in markdown(text).html and "<img" not in markdown(text).html


@pytest.mark.long
@pytest.mark.parametrize(
    "piece",
    ["[", "![", "*a_", "`", "> ", "- ", "<!--", "[a](", "a**b", "|a", "\\", "(", "&#", "~~a", "***", "1. "],
)
def test_texts_made_to_take_long_do_not(piece: str) -> None:
    """Processor time, which other work on the machine does not change much."""
    text = (piece * MARKDOWN_CHARACTERS)[:MARKDOWN_CHARACTERS]
    began = time.process_time()
    markdown(text)
    markdown("\n".join([piece * 40] * (MARKDOWN_CHARACTERS // (41 * len(piece)))))
    assert time.process_time() - began < 5


def test_a_text_that_is_too_long_is_not_formatted() -> None:
    found = markdown("# <b>\n" * MARKDOWN_CHARACTERS)
    assert found.html.startswith("<pre># &lt;b&gt;\n# ") and found.title == "# <b>"


@pytest.mark.slow
async def test_a_long_statement_is_folded_and_a_hostile_one_does_nothing(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "store")
    author, events, ids = Author("statements"), list[e.Event](), list[str]()
    grading = SWETests(test_patch="", test_command="", fail_to_pass=("new",), pass_to_pass=("old",))
    for number, statement in enumerate(
        (STATEMENT, STATEMENT + "word " * 400, "\n\n".join(payloads())[:25_000])
    ):
        task = Task(
            task_id=f"t{number}", source="s", repo="a/b", image="i", statement=statement, grading=grading
        )
        blob = blobs.put(msgspec.json.encode(task))
        tests = {"new": "FAILED", "old": "PASSED"}
        made = author.rollout(0, ["ls"], resolved=False, task=f"t{number}", blob=blob, tests=tests)
        events += made
        ids.append(made[0].rollout_id or "")
    store = await stored(tmp_path, events)
    async with chromium() as browser, served(store) as url:
        for size in (WIDE, NARROW):
            async with tab(browser, url, size) as watched:
                for name in ids:
                    await watched.look(f"/rollouts/{name}")
                page = watched.page
                await page.goto(f"{url}/rollouts/{ids[0]}")
                assert await page.locator(".statement code").count() == 2
                assert await page.locator(".failing").inner_text() == "1 test decided FAILEDnew"
                await page.goto(f"{url}/rollouts/{ids[1]}")
                fold = page.locator(".statement summary")
                assert (await fold.inner_text()).startswith("Sums of empty lists")
                assert not await page.locator(".statement pre").is_visible()
                await fold.focus()
                await page.keyboard.press("Enter")
                assert await page.locator(".statement pre").is_visible()
                assert watched.wrong == []
