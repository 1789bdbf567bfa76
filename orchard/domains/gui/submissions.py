"""Formats submissions of browser agents."""

import msgspec

from orchard.schemas.gui import GuiSubmission


def submission(text: str) -> str | None:
    """Answer and final address of a browser agent's submission; None for other text."""
    try:
        browsed = msgspec.json.decode(text, type=GuiSubmission)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
    answer = "no answer" if browsed.answer is None else browsed.answer
    return f"{answer}\n{browsed.url}  {browsed.title}"
