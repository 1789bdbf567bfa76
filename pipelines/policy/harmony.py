"""Reads answers of gpt-oss, which are messages in channels: `analysis` is reasoning, `commentary` with a
recipient is a call, all other text is said to the user (github.com/openai/harmony, its page on the format).
"""

import re
from dataclasses import dataclass

import msgspec

from orchard.pipelines.policy.call_forms import Found

CHANNEL = "<|channel|>"
"""Stands in every answer."""
_MESSAGE = re.compile(
    r"(?: ?to=(?P<before>\S+?))?<\|channel\|>(?P<channel>analysis|commentary|final)(?: to=(?P<after>\S+?))?"
    r"(?: ?<\|constrain\|>\w+| json)?\s?<\|message\|>(?P<text>.*?)(?P<end><\|end\|><\|start\|>assistant|\Z)",
    re.DOTALL,
)
_FUNCTIONS = "functions."


@dataclass(frozen=True)
class HarmonyAnswer:
    content: str
    reasoning: str
    calls: Found


def read_harmony(text: str) -> HarmonyAnswer | None:
    """The answer in a text that follows `<|start|>assistant` and has no end mark; None for a text that does
    not follow the format to the letter."""
    said: dict[str, list[str]] = {"analysis": [], "commentary": [], "final": []}
    calls: Found = []
    at, ended = 0, False
    while match := _MESSAGE.match(text, at):
        to = match["before"] or match["after"] or ""
        if to:
            if not to.startswith(_FUNCTIONS) or match["end"]:
                return None
            calls.append((to.removeprefix(_FUNCTIONS), msgspec.Raw(match["text"].encode())))
        else:
            said[match["channel"]].append(match["text"])
        at, ended = match.end(), not match["end"]
        if ended:
            break
    if not ended or at != len(text):
        return None
    content = "\n".join(said["commentary"] + said["final"])
    return HarmonyAnswer(content, "\n".join(said["analysis"]), calls)
