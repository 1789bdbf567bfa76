"""Names of keys as models write them, and as browsers know them. Pure."""

_NAMED = (
    *("Alt", "Control", "Meta", "Shift", "Enter", "Tab", "Space", "Backspace", "Delete", "Escape"),
    *("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown", "Insert"),
    *(f"F{number}" for number in range(1, 13)),
)
_OTHERS = {
    "Ctrl": "Control",
    "Cmd": "Meta",
    "Command": "Meta",
    "Option": "Alt",
    "Return": "Enter",
    "Esc": "Escape",
    "Del": "Delete",
    "Spacebar": "Space",
    "Up": "ArrowUp",
    "Down": "ArrowDown",
    "Left": "ArrowLeft",
    "Right": "ArrowRight",
}
_KEYS = {name.lower(): key for name, key in ({name: name for name in _NAMED} | _OTHERS).items()}


class UnknownKey(ValueError):
    """A name that no key has; one sentence says so."""


def key(name: str) -> str:
    """The browser's name of a key. Raises UnknownKey."""
    if (known := _KEYS.get(name.lower())) is not None:
        return known
    if name == " ":
        return "Space"
    if len(name) == 1 and name.isprintable() and name.isascii():
        return name
    raise UnknownKey(f"there is no key {name[:40]!r}.")
