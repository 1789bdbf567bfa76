"""Recognizes text in pages that must not pass as content: marks of the prompt, and bot walls. Pure."""

from urllib.parse import unquote

MARKS = (
    *(
        "<observation>",
        "</observation>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
    ),
    *("<user_request>", "</user_request>", "<think>", "</think>", "<|im_start|>", "<|im_end|>"),
)
"""Delimiters of the prompt. A page that contains them may be trying to speak with another role."""
WALL_TITLES = ("just a moment", "attention required!", "verify you are human", "unusual traffic", "captcha")
"""Beginnings of titles of bot walls."""
WALL_ADDRESSES = (
    "recaptcha",
    "hcaptcha",
    "px-captcha",
    "cf-challenge",
    "/cdn-cgi/challenge",
    "google.com/sorry",
)
_WALL_PHRASES = ("verify you are human", "unusual traffic")
"""Phrases of bot walls in short pages; equal to those in `page_scripts.BLOCKED`."""


def holds_marks(text: str) -> bool:
    return any(mark in text.lower() for mark in MARKS)


class WrittenText:
    """Remembers wall signs that the agent wrote itself: a page that repeats them is no wall."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._tail = ""
        """The end of the text so far, because a sign may be written in parts."""

    def add(self, text: str) -> None:
        """Adds text that the agent typed into a field or opened as an address."""
        written = self._tail + _bare(unquote(text))
        self._held |= {sign for sign in _SIGNS if sign in written}
        self._tail = written[-_LONGEST:]

    def hold(self, sign: str) -> bool:
        return _bare(sign) in self._held


def _bare(text: str) -> str:
    """Removes differences of white space, case and a form's plus signs."""
    return "".join(text.lower().replace("+", " ").split())


_SIGNS = frozenset(_bare(sign) for sign in (*WALL_TITLES, *WALL_ADDRESSES, *_WALL_PHRASES))
_LONGEST = max(map(len, _SIGNS))
