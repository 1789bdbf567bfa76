"""`browser-compact`: the harness `browser` in few words, for policies of a few million parameters."""

from typing import Any

from orchard.workers.domains.gui.browser.harness import BrowserHarness
from orchard.workers.domains.gui.browser.tools import DONE, TOOLS

_OFFERED = ("click", "goto_url", DONE)


def _short(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool by its name and the names of what it needs. All that it can do, it still does."""
    about = tool["function"]
    needed: dict[str, Any] = {name: {} for name in about["parameters"].get("required", ())}
    return {"type": "function", "function": {"name": about["name"], "parameters": {"properties": needed}}}


class CompactBrowser(BrowserHarness):
    """See `browser`. Other tools than those that are named can be called, too."""

    name = "browser-compact"
    system = "You see a screen. Say what is on it, then act."
    tools = tuple(_short(tool) for tool in TOOLS if tool["function"]["name"] in _OFFERED)
