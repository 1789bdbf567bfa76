"""The funnel's record of a task: its intent, its site, and its origin."""

import re
import unicodedata
from urllib.parse import urlsplit

import msgspec

_WORD = re.compile(r"\w+")
_NO_HOST = re.compile(r"[^\w.:-]")


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """One task of the pool."""

    id: str
    text: str
    """The request to the agent."""
    site: str
    """Host of its start URL, normalized by `site_of`."""
    split: str = ""
    """Benchmark or data set that it comes from."""
    parent: str = ""
    """Id of the task that it was decomposed from; empty: it was not."""


def site_of(url: str) -> str:
    """The host of a URL, or of a bare name: lower case, without port, `www.` and a last dot. Empty where
    there is none."""
    text = url.strip()
    try:
        host = urlsplit(text if "://" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""
    return "" if _NO_HOST.search(host) else host.rstrip(".").removeprefix("www.")


def normal(text: str) -> str:
    """The normalized intent for comparison: its words, whatever their case, form and punctuation."""
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
