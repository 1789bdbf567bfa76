"""Pages that do something a while after an action, and pages that never come to rest."""

import asyncio
from dataclasses import dataclass

from aiohttp import web

from tests.gui_cases import ORIGIN, Call, box, click, keys
from tests.gui_world import Page

DELAY = 800
"""Milliseconds."""
GO = click(130, 110)


@dataclass(frozen=True)
class Late:
    """One behaviour. `effect` is evaluated in the active tab after the calls, and must hold there."""

    name: str
    body: str
    effect: str
    calls: tuple[Call, ...] = (GO,)
    ends: str = "detected."
    """Of the last line."""
    bulk: bool = False
    """Whether only `make test-all` runs it."""


def _button(does: str) -> str:
    return box(100, 100, "button", "Go", f'onclick="{does}"')


def _later(does: str) -> str:
    return f"setTimeout(() => {{ {does} }}, {DELAY})"


_FIELD = box(100, 100, "input", more='id=q aria-label="Search"')
_SAID = "document.querySelector('#out')?.textContent === 'done'"
_OUT = "<p id=out></p><script>const say = (text) => { out.textContent = text; }</script>"
_SUGGESTED = "<script>let timer; q.oninput = () => { clearTimeout(timer); timer = "
_SUGGESTED += _later("say('done')") + "; }</script>"
_SHADOW = "<div id=host></div><script>const root = host.attachShadow({mode: 'open'});"
_SHADOW += "const show = (text) => { root.innerHTML = `<p>${text}</p>`; }</script>"
_LIST = f"""<div id=list style='height:3000px'></div><script>
onscroll = () => fetch('/after?ms={DELAY}').then(() => list.insertAdjacentHTML('beforeend', '<p id=more>More</p>'));
</script>"""
LATE = (
    Late("suggestions", _FIELD + _OUT + _SUGGESTED, _SAID, (GO, ("write", {"message": "tea"})), "<input> type=text \"Search\"."),
    Late("delayed navigation", _button(_later("location.href = '/next'")), "document.title === 'Next'", ends=f"navigated to {ORIGIN}/next."),
    Late("toast in a shadow", _button(f"show('wait'); {_later('show(1); ' + _later('show(2)'))}") + _SHADOW, "root.textContent === '2'"),
    Late("fetch, then render", _OUT + _button(f"fetch('/after?ms={DELAY}').then(() => {_later(chr(39).join(('say(', 'done', ')')))})"), _SAID, bulk=True),
    Late("lazy list", _LIST, "document.querySelector('#more') !== null", (("scroll", {"amount": 0.5}),), bulk=True),
    Late("redirect by refresh", box(100, 100, "a", "Go", 'href="/refresh"'), "document.title === 'Next'", ends=f"navigated to {ORIGIN}/next.", bulk=True),
    Late("state pushed", _button(_later("history.pushState({}, '', '/pushed/9')")), "location.pathname === '/pushed/9'", ends=f"navigated to {ORIGIN}/pushed/9.", bulk=True),
    Late("frame loaded", _button(_later(f"f.src = '/after?ms={DELAY}'")) + "<iframe id=f></iframe>", "f.contentDocument.title === 'After'", bulk=True),
    Late("spinner replaced", _OUT + _button(f"say('wait'); {_later('say(' + chr(39) + 'done' + chr(39) + ')')}"), _SAID, (keys("Tab", "Enter"),), bulk=True),
)  # fmt: skip
"""Seen, all of them, by what the agent is shown next."""

RESTLESS = (
    Late("clock", "<p id=out></p><script>setInterval(() => { out.textContent = Date.now() }, 100)</script>", "true", ends="still loading or changing.", bulk=True),
    Late("no answer", _button("fetch('/silent')"), "true", ends="still loading or changing.", bulk=True),
    Late("stream opened", _button("fetch('/endless')"), "true", bulk=True),
    Late("clock that leads on", "<p id=out></p><script>setInterval(() => { out.textContent = Date.now() }, 100)</script>" + _button(_later("location.href = '/next'")), "document.title === 'Next'", ends=f"navigated to {ORIGIN}/next.", bulk=True),
    Late("stream before", "<script>fetch('/endless'); new EventSource('/endless')</script>", "true"),
    Late("polls", "<script>setInterval(() => fetch('/next'), 400)</script>", "true", bulk=True),
    Late("endless animation", "<style>@keyframes a { to { rotate: 1turn } } p { animation: a 1s infinite }</style><p>x", "true", bulk=True),
)  # fmt: skip


async def _after(request: web.Request) -> web.Response:
    await asyncio.sleep(int(request.query["ms"]) / 1000)
    return web.Response(text="<!doctype html><title>After</title>", content_type="text/html")


async def _endless(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    try:
        while True:
            await stream.write(b": still here\n\n")
            await asyncio.sleep(0.3)
    except ConnectionError:
        return stream


async def _silent(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    return web.Response()


PAGES: dict[str, Page] = {
    "/after": _after,
    "/endless": _endless,
    "/silent": _silent,
    "/refresh": "<!doctype html><meta http-equiv=refresh content='1; url=/next'>Wait",
    **{f"/{each.name}": f"<!doctype html><body style='margin:0'>{each.body}" for each in (*LATE, *RESTLESS)},
}
