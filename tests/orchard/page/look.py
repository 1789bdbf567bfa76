"""Every page of a store in real Chromium, at four widths, in two themes: pictures, and what is wrong.

Run as `python -m tests.orchard.page.look STORE --out DIRECTORY`.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
from playwright.async_api import Browser, Page, async_playwright

from orchard.storage.reader import open_tables
from tests.orchard.page.conftest import TOKEN, served

CHROMIUM = "/usr/bin/chromium"
ROOT = ["--no-sandbox"] if os.geteuid() == 0 else []
PICTURES = Path(__file__).parents[3] / "build" / "page-pictures"
"""Of the stores that `make test-all` looks at."""
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 800}
LOOKS = ((1280, "light"), (360, "dark"), (768, "light"), (1920, "dark"))
AXE = Path(sys.prefix) / ".axe" / "package" / "axe.min.js"
"""`make test-all` fetches it from npm."""
VIOLATIONS = """async () => (await axe.run()).violations
    .map(each => [each.id, each.nodes[0].html])"""
WATCH = (
    "window.violations = [];"
    "addEventListener('securitypolicyviolation', e => window.violations.push(e.violatedDirective));"
)
_REACHABLE = """() => {
    const all = [...document.querySelectorAll(
        "a[href]:not([tabindex='-1']), button, input:not([type=hidden]), select, textarea, summary, " +
        "[tabindex='0']")];
    const seen = each => !each.disabled && each.checkVisibility();
    window.left = new Set(all.filter(seen));
    addEventListener("focusin", event => window.left.delete(event.target));
    return window.left.size;
}"""
_LOADED = """async () => {
    const seen = [...document.images].filter(each => each.getBoundingClientRect().top < innerHeight);
    await Promise.all(seen.map(each => each.decode().catch(() => null)));
}"""
_LEFT = "() => [...window.left].map(each => each.outerHTML.slice(0, 120))"
_SIZE = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
_ONE = {
    "rollout": "select rollout_id from rollouts order by turns desc, sequence desc limit 1",
    "aborted": "select rollout_id from rollouts where status = 'aborted' order by sequence desc limit 1",
    "pictures": "select rollout_id from tables.messages_all where len(images) > 0 order by sequence limit 1",
    "services": "select rollout_id from tables.service_calls_all order by sequence limit 1",
    "judged": "select rollout_id from tables.judgements_all order by sequence limit 1",
    "subagents": "select rollout_id from tables.llm_calls_all where call_kind = 'subagent' limit 1",
    "noted": "select rollout_id from tables.notes_all order by sequence limit 1",
    "tokens": "select rollout_id from tables.messages_all where len(token_ids) > 0 order by sequence limit 1",
}
"""Rollouts that pages are looked at of."""
_CAMPAIGN = "select campaign from rollouts join campaigns using (campaign) where size is not null group by 1"
_ALIKE = """
select a.rollout_id, b.rollout_id from rollouts a join rollouts b using (task_id)
where a.resolved and not b.resolved order by a.sequence desc limit 1
"""


def addresses(tables: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Every page there is of a store, by a name for its pictures."""
    found = {"campaigns": "/", "rollouts": "/rollouts", "open": "/rollouts?outcome=open", "tasks": "/tasks"}
    found |= {"compare": "/compare", "failures": "/failures", "evaluations": "/evaluations", "runs": "/runs"}
    found |= {"health": "/status", "search": "/rollouts?text=error&outcome=unresolved", "nothing": "/nothing"}
    found["requeue"] = "/do/requeue?of=1"
    for name, query in _ONE.items():
        row = tables.execute(query).fetchone()
        if row is not None:
            found[name] = f"/rollouts/{row[0]}"
    if "tokens" in found:
        found["tokens-table"] = found["tokens"] + "/tokens?by=version&as=table"
        found["tokens"] += "/tokens"
    if "rollout" in found:
        found |= {"events": found["rollout"] + "/events", "as-of": found["rollout"] + "?as_of=2&find=the"}
    for name, query, path in (
        ("task", "select task_id from rollouts order by sequence desc limit 1", "/tasks/"),
        (
            "campaign",
            f"{_CAMPAIGN} order by count(*) filter (status = 'aborted') desc, 1 limit 1",
            "/campaigns/",
        ),
        ("campaign-rollouts", "select campaign from rollouts order by sequence desc limit 1", None),
        ("evaluation", "select campaign from evaluations limit 1", "/evaluations/"),
    ):
        row = tables.execute(query).fetchone()
        if row is not None:
            found[name] = path + quote(row[0]) if path else f"/rollouts?campaign={quote(row[0])}&sort=turns"
    row = tables.execute(_ALIKE).fetchone()
    if row is not None:
        found["beside"] = f"/beside?a={row[0]}&b={row[1]}"
    return found


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*ROOT, "--disable-gpu"])
        yield browser
        await browser.close()


class Watched:
    """A tab, and what happens in it that should not."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.wrong: list[str] = []
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog {dialog.message}"))
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(f"error {error}"))
        page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        if message.type == "error" and "status of 404" not in message.text:
            self.wrong.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(self.url):
            self.wrong.append(f"request {request.url[:100]}")

    async def look(self, path: str) -> None:
        """Open, unfold everything, and check what must hold on each page."""
        await self.page.goto(self.url + path)
        await self.page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
        if await self.page.evaluate("() => window.pwned !== undefined"):
            self.wrong.append(f"{path}: a text ran")
        if found := await self.page.evaluate("() => window.violations"):
            self.wrong.append(f"{path}: the policy was violated: {found}")
        whole, there = await self.page.evaluate(_SIZE)
        if whole > there:
            self.wrong.append(f"{path}: {whole} px wide in {there}")
        if not await self.page.locator("header.top nav").is_visible():
            self.wrong.append(f"{path}: the navigation is gone")

    async def tab_through(self, path: str) -> None:
        """Tab alone must come to everything that can be used. Columns of curves are left out: there are
        hundreds, and a field for the steps does the same."""
        await self.page.goto(self.url + path)
        for _ in range(await self.page.evaluate(_REACHABLE) + 3):
            await self.page.keyboard.press("Tab")
        self.wrong += [f"{path}: no key leads to {left}" for left in await self.page.evaluate(_LEFT)]


@asynccontextmanager
async def tab(
    browser: Browser, url: str, size: dict[str, int], theme: str = "light"
) -> AsyncIterator[Watched]:
    context = await browser.new_context(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
    page = await context.new_page()
    await page.add_init_script(WATCH)
    yield Watched(page, url)
    await context.close()


async def looked_at(store: Path, out: Path, *, only: str = "", axe: bool = True) -> list[str]:
    """What is wrong on any page of the store. Pictures of all are in `out`, by page, width and theme."""
    out.mkdir(parents=True, exist_ok=True)
    with open_tables(str(store)) as tables:
        paths = {name: path for name, path in addresses(tables).items() if only in name}
    wrong = []
    async with chromium() as browser, served(store) as url:
        for width, theme in LOOKS:
            async with tab(browser, url, {"width": width, "height": 900}, theme) as watched:
                await watched.page.goto(f"{url}/?token={TOKEN}")
                for name, path in paths.items():
                    await watched.page.goto(url + path)
                    await watched.page.evaluate(_LOADED)
                    file = out / f"{name}-{width}-{theme}.png"
                    await watched.page.screenshot(path=file, full_page=False)
                    if axe:
                        await watched.page.evaluate(AXE.read_text())
                        found = await watched.page.evaluate(VIOLATIONS)
                        watched.wrong += [f"{path} {theme} {width}: axe {each}" for each in found]
                    await watched.look(path)
                    if (width, theme) == (1280, "light"):
                        await watched.tab_through(path)
                wrong += watched.wrong
    return wrong


async def _main(store: Path, out: Path, only: str) -> None:
    for line in await looked_at(store, out, only=only):
        sys.stdout.write(line[:400] + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="a part of the names of pages")
    given = parser.parse_args()
    asyncio.run(_main(given.store, given.out, given.only))
