"""How what a browser agent hands in is read."""

import msgspec

from orchard.schemas.gui import GuiSubmission


def submission(text: str) -> str | None:
    """What was answered and where the browser ended; None for text that is no such record."""
    try:
        browsed = msgspec.json.decode(text, type=GuiSubmission)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
    answer = "no answer" if browsed.answer is None else browsed.answer
    return f"{answer}\n{browsed.url}  {browsed.title}"
