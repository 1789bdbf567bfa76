"""Finds the element with keyboard focus, also in frames and shadow roots (closed ones, too). If the page
itself listens for keys, it counts."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchard.workers.domains.gui.browser import page_scripts
from orchard.workers.domains.gui.browser.tabs import Tabs

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Frame

DEEPEST = 5
"""Maximum depth of nested frames or closed shadow roots."""


@dataclass(frozen=True)
class Focused:
    """An element that takes text. Pages are hostile: no value from them is trusted to have its type."""

    element: object
    """The page's description of it; see page_scripts."""
    way: object
    """`type`: cleared, then typed into; `keys`: typed into; `choose` and `give`: given a value."""
    opened: bool
    run: Callable[[str, object], Awaitable[Any]]
    """Calls a JavaScript function with the element and one argument."""


async def focused(tabs: Tabs) -> Focused | None:
    """Returns the element that takes text now, or None. Raises Unresponsive, Error and
    InfrastructureError."""
    main = frame = tabs.active.page.main_frame
    for _ in range(DEEPEST):
        handle = await tabs.asked(frame.evaluate_handle(page_scripts.INNERMOST))
        element = handle.as_element()
        if element is None:
            return None
        inner = await tabs.asked(element.content_frame())
        if inner is None:
            break
        frame = inner
    else:
        return None

    async def run(script: str, argument: object) -> Any:
        return await tabs.asked(element.evaluate(script, argument))

    found = _read(await run(page_scripts.TAKES, None), run)
    if found is None or found.way != "keys":
        return found
    session = tabs.active.session if frame is main else await _session(tabs, frame)
    if session is None:
        return found
    closed, within = await _in_closed(tabs, session)
    if closed:
        return within
    return found if await _listens(tabs, session) else None


async def _session(tabs: Tabs, frame: "Frame") -> "CDPSession | None":
    """Opens a debugging session for a frame of another site, which has its own process; None if there is no
    such process."""
    from playwright.async_api import Error

    try:
        return await tabs.asked(tabs.context.new_cdp_session(frame))
    except Error:
        return None


async def _in_closed(tabs: Tabs, session: "CDPSession") -> tuple[bool, Focused | None]:
    """Whether the focus is inside a closed shadow root, which only the debugger can open, and the element
    there."""
    asked = {"expression": f"({page_scripts.INNERMOST})()"}
    at = (await tabs.asked(session.send("Runtime.evaluate", asked)))["result"].get("objectId")
    closed, found = False, None
    for _ in range(DEEPEST):
        node = await tabs.asked(
            session.send("DOM.describeNode", {"objectId": at, "depth": 1, "pierce": True})
        )
        root = next(iter(node["node"].get("shadowRoots", ())), None)
        if root is None or root["shadowRootType"] == "user-agent":
            break
        resolved = await tabs.asked(session.send("DOM.resolveNode", {"backendNodeId": root["backendNodeId"]}))
        inner = await tabs.asked(
            session.send(
                "Runtime.callFunctionOn",
                {
                    "objectId": resolved["object"]["objectId"],
                    "functionDeclaration": "function() { return this.activeElement; }",
                },
            )
        )
        at = inner["result"].get("objectId")
        if at is None:
            break
        run = _runner(tabs, session, at)
        closed, found = True, _read(await run(page_scripts.TAKES, None), run)
    return closed, found


def _runner(tabs: Tabs, session: "CDPSession", at: str) -> Callable[[str, object], Awaitable[Any]]:
    async def run(script: str, argument: object) -> Any:
        asked = {
            "objectId": at,
            "functionDeclaration": f"function(argument) {{ return ({script})(this, argument); }}",
            "arguments": [{"value": argument}],
            "returnByValue": True,
        }
        said = await tabs.asked(session.send("Runtime.callFunctionOn", asked))
        return said["result"].get("value")

    return run


async def _listens(tabs: Tabs, session: "CDPSession") -> bool:
    """Whether any handler receives keys sent to the focused element."""
    asked = {
        "expression": f"({page_scripts.LISTENS})(({page_scripts.INNERMOST})(), getEventListeners)",
        "includeCommandLineAPI": True,
        "returnByValue": True,
    }
    said = await tabs.asked(session.send("Runtime.evaluate", asked))
    return said["result"].get("value") is True


def _read(found: object, run: Callable[[str, object], Awaitable[Any]]) -> Focused | None:
    if not isinstance(found, dict) or not found.get("way"):
        return None
    return Focused(found.get("element"), found["way"], found.get("opened") is True, run)
