"""Words of pages that mean something beside the page: marks of the prompt, and signs of a wall. Pure."""

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
"""Of the prompt. A page that shows them wants to be read as one who may speak there."""
WALL_TITLES = ("just a moment", "attention required!", "verify you are human", "unusual traffic", "captcha")
"""How titles of walls begin."""
WALL_ADDRESSES = (
    "recaptcha",
    "hcaptcha",
    "px-captcha",
    "cf-challenge",
    "/cdn-cgi/challenge",
    "google.com/sorry",
)
_WALL_PHRASES = ("verify you are human", "unusual traffic")
"""In the text of a short page: those of `page_scripts.BLOCKED`."""


def holds_marks(text: str) -> bool:
    """Whether a text of a page holds marks of the prompt."""
    return any(mark in text.lower() for mark in MARKS)


class Words:
    """What an agent wrote, as far as it is a sign of a wall: a page that repeats it is none."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._tail = ""
        """Of what was written: a sign may be written in parts."""

    def add(self, text: str) -> None:
        """The agent wrote this: into a field, by keys, or as an address."""
        written = self._tail + _bare(unquote(text))
        self._held |= {sign for sign in _SIGNS if sign in written}
        self._tail = written[-_LONGEST:]

    def hold(self, sign: str) -> bool:
        """Whether the agent wrote this sign of a wall."""
        return _bare(sign) in self._held


def _bare(text: str) -> str:
    """Pages show white space, case and a form's plus signs in other ways than they were written."""
    return "".join(text.lower().replace("+", " ").split())


_SIGNS = frozenset(_bare(sign) for sign in (*WALL_TITLES, *WALL_ADDRESSES, *_WALL_PHRASES))
_LONGEST = max(map(len, _SIGNS))
