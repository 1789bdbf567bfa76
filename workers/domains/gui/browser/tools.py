"""The 13 tools of browser agents (the paper's appendix C): their definitions for models, and the types of
their arguments."""

import json
from typing import Annotated, Any, Literal

import msgspec

Coordinate = float
Point = Annotated[list[Coordinate], msgspec.Meta(min_length=2, max_length=2)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]

DONE = "done"
LONGEST_WAIT = 60
_POINT = "[x, y] from the screen's top left corner, each from 0 to 1000 whatever the screen's size is."


class _Arguments(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Click(_Arguments, frozen=True):
    point_2d: Point
    clicks: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1
    button: Literal["left", "right", "middle"] = "left"


class Hover(_Arguments, frozen=True):
    point_2d: Point


class Drag(_Arguments, frozen=True):
    start_point_2d: Point
    end_point_2d: Point
    steps: Annotated[int, msgspec.Meta(ge=1, le=200)] = 10


class Write(_Arguments, frozen=True):
    """Replaces the content of the focused field."""

    message: str


class PressKeys(_Arguments, frozen=True):
    keys: Annotated[list[str], msgspec.Meta(min_length=1, max_length=50)]
    is_hotkey: bool = False
    presses: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class Scroll(_Arguments, frozen=True):
    direction: Literal["up", "down", "left", "right"] = "down"
    amount: Share = 0.5
    point_2d: Point | None = None


class GotoUrl(_Arguments, frozen=True):
    url: str


class GoBack(_Arguments, frozen=True):
    pass


class WaitSeconds(_Arguments, frozen=True):
    seconds: Annotated[int, msgspec.Meta(ge=0, le=LONGEST_WAIT)] = 3


class NewTab(_Arguments, frozen=True):
    pass


class SwitchTab(_Arguments, frozen=True):
    tab_index: Annotated[int, msgspec.Meta(ge=0)]


class CloseTab(_Arguments, frozen=True):
    pass


class Done(_Arguments, frozen=True):
    """Ends the episode with an answer."""

    response: str


Action = (
    Click
    | Hover
    | Drag
    | Write
    | PressKeys
    | Scroll
    | GotoUrl
    | GoBack
    | WaitSeconds
    | NewTab
    | SwitchTab
    | CloseTab
    | Done
)
_ACTIONS: dict[str, type[Action]] = {
    "click": Click,
    "write": Write,
    "press_keys": PressKeys,
    "scroll": Scroll,
    "wait": WaitSeconds,
    "drag": Drag,
    "hover": Hover,
    "goto_url": GotoUrl,
    "go_back": GoBack,
    "new_tab": NewTab,
    "switch_tab": SwitchTab,
    "close_tab": CloseTab,
    DONE: Done,
}
NAMES = tuple(_ACTIONS)


class NotSupported(ValueError):
    """There is no such tool; the text is what the model is told."""


class BadArguments(ValueError):
    """The arguments do not fit the tool; the text is one sentence."""


def read_action(name: str, arguments: str) -> Action:
    """Parses a call. Models may write a whole number with a fraction of 0 or as text. Raises NotSupported and
    BadArguments."""
    kind = _ACTIONS.get(name)
    if kind is None:
        raise NotSupported(f"Error: Action {name[:100]} is not supported by the environment!")
    try:
        return msgspec.convert(loaded(arguments or "{}"), kind, strict=False)
    except (ValueError, RecursionError) as error:
        # msgspec.ValidationError is a ValueError.
        raise BadArguments(f"the arguments do not fit: {error}"[:300].rstrip(".") + ".") from error


def readable(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments or "{}"), dict)
    except (ValueError, RecursionError):
        return False


def loaded(text: str) -> Any:
    """Parses a model's JSON; a lone surrogate becomes U+FFFD, because events cannot hold one. Raises
    ValueError and RecursionError."""
    value = json.loads(text)
    if "\\u" not in text:
        return value
    whole = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return json.loads(whole.decode("utf-16", "replace"))


def _point(about: str) -> dict[str, Any]:
    return {
        "type": "array",
        "items": {"type": "number"},
        "minItems": 2,
        "maxItems": 2,
        "description": f"{about}: {_POINT}",
    }


def _tool(name: str, about: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = list(required)
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _field(kind: str, about: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": about, **more}


TOOLS: tuple[dict[str, Any], ...] = (
    _tool(
        "click",
        "Click with the mouse on a point of the screen.",
        ("point_2d",),
        point_2d=_point("Where to click"),
        clicks=_field("integer", "How many clicks follow each other: 2 is a double click.", default=1),
        button=_field("string", "Which button.", enum=["left", "right", "middle"], default="left"),
    ),
    _tool(
        "write",
        "Replace the content of the input field that has the focus: it is emptied (Ctrl+A, Backspace), then "
        "the text is typed. Click on the field first.",
        ("message",),
        message=_field("string", "The text."),
    ),
    _tool(
        "press_keys",
        "Press keys of the keyboard, to submit, to move the focus or for a shortcut.",
        ("keys",),
        keys={
            "type": "array",
            "items": {"type": "string"},
            "description": "Their names. Modifiers: Alt, Control, Meta, Shift. Editing: Enter, Tab, Space, "
            "Backspace, Delete, Escape. Movement: ArrowUp, ArrowDown, ArrowLeft, ArrowRight, Home, End, "
            "PageUp, PageDown. Others: a-z, 0-9, F1-F12.",
        },
        is_hotkey=_field(
            "boolean",
            'Whether they are held together, as in ["Control", "c"], or pressed one after the other.',
            default=False,
        ),
        presses=_field("integer", "How often all of it is done.", default=1),
    ),
    _tool(
        "scroll",
        "Scroll the page; with a point, what is scrollable there, such as a list or a dialog.",
        direction=_field("string", "Where to.", enum=["up", "down", "left", "right"], default="down"),
        amount=_field(
            "number", "How far, as a share of the screen's height.", minimum=0.0, maximum=1.0, default=0.5
        ),
        point_2d=_point("What to scroll, if not the page"),
    ),
    _tool(
        "wait",
        "Do nothing for some seconds, for a page that is not ready.",
        seconds=_field("integer", f"How many, at most {LONGEST_WAIT}.", default=3),
    ),
    _tool(
        "drag",
        "Press the left button on one point, move to another and release it there.",
        ("start_point_2d", "end_point_2d"),
        start_point_2d=_point("Where to press"),
        end_point_2d=_point("Where to release"),
        steps=_field("integer", "Movements between the two: more are slower. 10 to 20 will do.", default=10),
    ),
    _tool(
        "hover",
        "Move the mouse to a point without a click: menus and hints open so.",
        ("point_2d",),
        point_2d=_point("Where to"),
    ),
    _tool(
        "goto_url",
        "Open an address in the active tab, without any link to it.",
        ("url",),
        url=_field("string", "The whole address, with https://."),
    ),
    _tool("go_back", "Go back to the page before this one in the tab's history."),
    _tool("new_tab", "Open an empty tab and make it the active one. goto_url fills it."),
    _tool(
        "switch_tab",
        "Make another tab the active one.",
        ("tab_index",),
        tab_index=_field("integer", "Its number in the list of tabs, which begins with 0."),
    ),
    _tool("close_tab", "Close the active tab. The nearest one that is left becomes active."),
    _tool(
        DONE,
        "End the task: it is done, it cannot be done, or a wall that asks whether you are human is in the "
        "way. Nobody reads anything but this answer.",
        ("response",),
        response=_field(
            "string",
            "The answer to the request, or what was done, or why it could not be done; with all details that "
            "were asked for.",
        ),
    ),
)
"""Definitions in OpenAI's format, in the paper's order."""
