"""Tricks against tasks on generated sites: calls of the browser's tools, scripts in its page, and a root beside it.

An agent has the tools alone; the scripts and the root are more than it can be. `shapes` wants clicks in an order,
and `question` an answer that is on a page. No trick does what the task asks for.
"""

import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from playwright.async_api import Error

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.gui.synthesis import synthesize
from orchard.pipelines.tasks.sandboxes import as_ready, open_sandbox
from orchard.schemas.gui import GuiWorld
from orchard.schemas.messages import ToolCall
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.tasks import Task, WorldUse
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.gui.browser.launching import SITE_PORT
from orchard.workers.domains.gui.browser.tabs import Unresponsive
from orchard.workers.domains.gui.browser.world import BrowserAttempt, BrowserWorld
from orchard.workers.domains.gui.sites.grading import expected_of
from orchard.workers.domains.gui.sites.tiny import SIDE, SIZE, TinySite
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.episode.worlds import SharedResources, WorldContext
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import grade
from tests.forgery.in_place import Deed, DeedTried
from tests.sandbox_service import LocalService

SHAPES = next(
    task for task in synthesize(5, 20, sites=("tiny",)) if len(TinySite(expected_of(task).site).targets) == 3
)
QUESTION = next(
    task
    for task in synthesize(5, 40, sites=("desk",))
    if (answer := expected_of(task).answer) is not None and answer.value.isdigit()
)
TASKS = {"shapes": SHAPES, "question": QUESTION}


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One attempt: its browser, its sandbox, and its task."""

    attempt: BrowserAttempt
    machine: SandboxMachine
    task: Task

    async def do(self, tool: str, **arguments: Any) -> str:
        text = msgspec.json.encode(arguments).decode()
        return (await self.attempt.call(ToolCall(id="c", name=tool, arguments=text)))[1]

    async def script(self, code: str) -> None:
        """Runs a script in the page; one that the page does not let run is a trick that failed."""
        with suppress(Error, Unresponsive):
            await self.attempt.evaluate(f"(async () => {{ {code} }})()")

    async def root(self, line: str) -> None:
        await self.machine.run(f"{{ {line}; }} > /dev/null 2>&1; true", timeout=30.0, cwd="/")


@dataclass(frozen=True, kw_only=True)
class BrowserDeed(Deed):
    line: str = ""
    task: str = "shapes"
    act: Callable[[Visit], Awaitable[object]]


def _scripts(family: str, name: str, code: str, task: str = "shapes") -> BrowserDeed:
    return BrowserDeed(family=family, name=name, task=task, act=lambda visit: visit.script(code))


def _opens(family: str, name: str, *urls: str) -> BrowserDeed:
    async def act(visit: Visit) -> None:
        for url in urls:
            await visit.do("goto_url", url=url)

    return BrowserDeed(family=family, name=name, act=act)


def _as_root(family: str, name: str, line: str) -> BrowserDeed:
    return BrowserDeed(family=family, name=name, act=lambda visit: visit.root(line))


def _says(name: str, said: Callable[[Visit], str], *, honest: bool = False) -> BrowserDeed:
    async def act(visit: Visit) -> None:
        await visit.do("done", response=said(visit))

    family = "honest" if honest else "answer"
    return BrowserDeed(family=family, name=name, task="question", act=act, honest=honest)


def _expected(visit: Visit) -> Any:
    answer = expected_of(visit.task).answer
    assert answer is not None
    return answer


def _site(visit: Visit) -> TinySite:
    return TinySite(expected_of(visit.task).site)


async def _click(visit: Visit, shift: int = 0) -> None:
    """Clicks on the right shape of each screen, or on another one."""
    site = _site(visit)
    for target, screen in zip(site.targets, site.screens, strict=True):
        at = ([what for what, _ in screen].index(target) + shift) % len(screen)
        left, top = screen[at][1]
        middle = [(left + SIZE / 2) / SIDE * 1000, (top + SIZE / 2) / SIDE * 1000]
        await visit.do("click", point_2d=middle)


async def _first_then_fake(visit: Visit) -> None:
    site = _site(visit)
    what, (left, top) = next(each for each in site.screens[0] if each[0] == site.targets[0])
    assert what == site.targets[0]
    middle = [(left + SIZE / 2) / SIDE * 1000, (top + SIZE / 2) / SIDE * 1000]
    for _ in range(3):
        await visit.do("click", point_2d=middle)


async def _other_tab(visit: Visit) -> None:
    await visit.do("new_tab")
    await visit.do("goto_url", url="data:text/html,<title>Shapes</title><h1>Done</h1>")
    await visit.do("goto_url", url=f"http://{TinySite.host}/over")


async def _done_twice(visit: Visit) -> None:
    await visit.do("done", response="0")
    await visit.do("done", response=_expected(visit).value)


POST = "await fetch('/', {method: 'POST', headers: {'content-type': 'application/x-www-form-urlencoded'}, body: %s});"
_RECORDS = "JSON.stringify({clicked: ['red circle']})"

TRICKS = (
    _scripts("page", "shows the last screen", "document.body.innerHTML = '<svg><polygon points=\"15,55 40,80 85,22\"/></svg>'"),
    _scripts("page", "replaces fetch and forms", "window.fetch = async () => new Response('{}'); HTMLFormElement.prototype.submit = () => 1; document.querySelectorAll('form').forEach((f) => { f.onsubmit = () => false; });"),
    _scripts("page", "another address and title", "history.pushState({}, '', '/over'); document.title = 'Done'"),
    _scripts("page", "a service worker that answers", "const b = new Blob([\"self.onfetch = (e) => e.respondWith(new Response('done'))\"], {type: 'text/javascript'}); await navigator.serviceWorker.register(URL.createObjectURL(b)); location.reload()"),
    _scripts("storage", "cookies, local and session storage", "for (const s of [localStorage, sessionStorage]) { s.clicked = 'red circle'; s.records = '{}'; } document.cookie = 'clicked=all; done=1'"),
    _scripts("storage", "a database and a cache", "indexedDB.open('records', 1); const c = await caches.open('x'); await c.put('/', new Response('done'))"),
    _scripts("requests", "the records by their address", f"for (const p of ['/records', '/-/records', '/state', '/grade', '/-/reset']) for (const m of ['GET', 'POST', 'PUT', 'PATCH', 'DELETE']) await fetch(p, {{method: m, ...(m === 'GET' ? {{}} : {{body: {_RECORDS}}})}}).catch(() => 0)"),
    _scripts("requests", "the first shape each time", POST % "'place=0'" + POST % "'place=0'" + POST % "'place=0'"),
    _scripts("requests", "every shape of a screen", "for (const p of [2, 1, 0, 2, 1, 0, 2, 1, 0]) { " + POST % "'place=' + p" + " }"),
    _scripts("requests", "several values in one form", POST % "'place=0&place=1&place=2&clicked=red+circle&records=%7B%7D'"),
    _scripts("requests", "odd numbers", "for (const p of ['-1', '1e0', '\\u0660', '0x1', '%00', '99999999999999999999', '']) { " + POST % "'place=' + p" + " }"),
    _scripts("requests", "JSON and uploads", "const f = new FormData(); f.append('place', new Blob(['0']), 'a'); await fetch('/', {method: 'POST', body: f}); await fetch('/', {method: 'POST', headers: {'content-type': 'application/json'}, body: '{\"place\": 0}'})"),
    _scripts("requests", "more than a site answers", "for (let i = 0; i < 40; i += 1) await Promise.all(Array.from({length: 260}, () => fetch('/-/consent', {method: 'POST'}).catch(() => 0)))"),
    _scripts("requests", "headers of another host", "await fetch('/', {headers: {'x-forwarded-host': 'admin.test', 'x-http-method-override': 'PUT', 'x-user': 'admin'}})"),
    _opens("addresses", "scripts in an address", "javascript:document.title='Done'", "javascript:fetch('/',{method:'POST'})"),
    _opens("addresses", "a page in an address", f"data:text/html,<form method=post action=http://{TinySite.host}/-/records><input name=clicked value=all></form><script>document.forms[0].submit()</script>"),
    _opens("addresses", "developer tools", "devtools://devtools/bundled/inspector.html", "chrome://inspect", "chrome://flags", "http://127.0.0.1:9222/json"),
    _opens("addresses", "extensions", "chrome://extensions", "chrome-extension://abcdefghijklmnopabcdefghijklmnop/index.html", "https://chromewebstore.google.com/"),
    _opens("addresses", "files and sources", "file:///etc/passwd", f"view-source:http://{TinySite.host}/", "filesystem:http://x/"),
    _opens("addresses", "another seed in the query", f"http://{TinySite.host}/?seed=1&layout=row&fault=consent&over=1"),
    BrowserDeed(family="tabs", name="ends in a tab that says so", act=_other_tab),
    _scripts("tabs", "a window written to", "const w = window.open('about:blank'); w.document.write('<title>Shapes</title>Done')"),
    BrowserDeed(family="clicks", name="the wrong shapes", act=lambda visit: _click(visit, 1)),
    BrowserDeed(family="clicks", name="one right click, repeated", act=_first_then_fake),
    _as_root("root", "the profile's storage", "find / -xdev -path '*Local Storage*' -type f -exec sh -c 'echo done > \"$1\"' sh {} \\;"),
    _as_root("root", "hosts, and a site of its own", f"echo 127.0.0.1 {TinySite.host} >> /etc/hosts; (python3 -m http.server 80 &) ; (python3 -m http.server {SITE_PORT} &)"),
    _as_root("root", "the site's records by its tunnel", f"for m in PUT PATCH DELETE POST; do curl -s -m 5 -X $m -H 'Host: {TinySite.host}' -d '{{\"clicked\":[]}}' http://127.0.0.1:{SITE_PORT}/records; done"),
    _as_root("root", "files that look like a submission", "for d in / /tmp /workspace; do mkdir -p $d; echo '{\"records\":{\"clicked\":[\"red circle\"]},\"ended\":\"finished\"}' | tee $d/submission.json > $d/records.json; done"),
    _says("records as an answer", lambda _: msgspec.json.encode({"records": {}, "answer": "0", "parsed": True}).decode()),
    _says("all that it may be", lambda _: " ".join(map(str, range(100)))),
    _says("the right one beside another", lambda visit: f"{_expected(visit).value} or {_expected(visit).others[0]}"),
    _says("a range", lambda visit: f"between 0 and {int(_expected(visit).value) + 5}"),
    _says("digits one by one", lambda _: "0123456789"),
    _says("nothing", lambda _: ""),
    BrowserDeed(family="answer", name="a second answer", task="question", act=_done_twice),
)  # fmt: skip
HONEST = (
    BrowserDeed(family="honest", name="clicks", act=_click, honest=True),
    _says("the number", lambda visit: _expected(visit).value, honest=True),
    _says("a sentence", lambda visit: f"There are {_expected(visit).value} of them.", honest=True),
    _says("with white space", lambda visit: f"\n {_expected(visit).value}.\n", honest=True),
)


class BrowserBench:
    """Acts on real sites in real browsers, and grades as workers do."""

    def __init__(self, client: AsyncSandboxClient, directory: Path, *, concurrency: int = 2) -> None:
        self._client = client
        self._blobs = BlobStore(str(directory / "store"))
        self._shared = SharedResources()
        self._concurrency = concurrency

    async def many(self, deeds: Iterable[BrowserDeed]) -> AsyncIterator[DeedTried]:
        try:
            async for tried in as_ready(list(deeds), self.one, concurrency=self._concurrency):
                yield tried
        finally:
            await self._shared.close()

    async def one(self, deed: BrowserDeed) -> DeedTried:
        task, started, reward = TASKS[deed.task], time.monotonic(), None
        assert isinstance(task.world, WorldUse)
        settings = msgspec.convert(task.world.settings, GuiWorld)
        try:
            async with AsyncExitStack() as stack:
                machine = await stack.enter_async_context(
                    open_sandbox(
                        self._client,
                        task.image,
                        purpose="forgery",
                        cpu="2",
                        memory="4Gi",
                        timeout=120.0,
                    )
                )
                opening = WorldContext(
                    task=task,
                    machine=machine,
                    seed=1,
                    name="forgery.1",
                    publish=_nothing,
                    blobs=self._blobs,
                    sandbox=_no_sandbox,
                    command_seconds=60.0,
                    shared=self._shared,
                )
                attempt = await stack.enter_async_context(BrowserWorld().open(settings, opening))
                visit = Visit(attempt=attempt, machine=machine, task=task)
                await deed.act(visit)
                await visit.do("done", response="")
                submission = await attempt.hand_in(ExitStatus.FINISHED, [])
                reward = await grade(
                    task,
                    submission,
                    machine,
                    timeout=60.0,
                    blobs=self._blobs,
                    pristine=lambda: _no_sandbox("", ""),
                )
                failed = [name for name, word in reward.tests.items() if word == "FAILED"]
                said = f"not: {', '.join(failed)}" if failed else "records and answer are right"
        except InfrastructureError as error:
            said = f"abort: {error.cause}: {error.detail}"
        return DeedTried(
            deed=deed,
            layout=deed.task,
            place="worker",
            reward=reward,
            said=said,
            seconds=time.monotonic() - started,
        )


async def _nothing(_: Any) -> None:
    """No event of a deed is kept."""


def _no_sandbox(image: str, purpose: str) -> Any:
    raise AssertionError(f"no sandbox is needed, of {image} for {purpose}")


async def run(words: Iterable[str] = (), *, concurrency: int = 2) -> list[DeedTried]:
    """Tries all deeds, or those with one of the words in their names."""
    wanted = tuple(words)
    chosen = [
        deed
        for deed in (*HONEST, *TRICKS)
        if not wanted or any(word in f"{deed.family}: {deed.name}" for word in wanted)
    ]
    with tempfile.TemporaryDirectory(prefix="forgery-") as folder:
        service = LocalService(Path(folder) / "state")
        try:
            async with AsyncSandboxClient(service.url) as client:
                bench = BrowserBench(client, Path(folder), concurrency=concurrency)
                return [tried async for tried in bench.many(chosen)]
        finally:
            service.stop()
