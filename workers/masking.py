"""Keys in what is to be stored: an agent prints what it finds; trajectories are kept, shared and trained on.

Only keys that can be known by their form are masked: a prefix of the vendor's and a length, or a frame. What
looks like nothing in particular (a password, forty hexadecimal digits) stays, as commits and digests look so.
A mask names the kind and has a digest of the key, so that equal keys stay equal; all else stays as it is.
"""

import hashlib
import re
from functools import partial
from typing import NamedTuple


class Masked(NamedTuple):
    """A text without its keys, and how many there were."""

    text: str
    keys: int


class _Kind(NamedTuple):
    name: str
    hint: str
    """Is part of every such key: a text without it is not searched."""
    pattern: re.Pattern[str]
    """The key, or, where there is one, its group."""


_BEGINS = "|".join(
    (
        r"(?<![A-Za-z0-9_])",
        r"(?<=\\[nrtbfv0e])",  # `\n`, as arguments of tools have it, which are JSON
        r"(?<=\\x[0-9A-Fa-f]{2})",
        r"(?<=\\u[0-9A-Fa-f]{4})",
        r"(?<=[%=][0-9A-Fa-f]{2})",  # of addresses and of mails
        r"(?<=[\[;0-9][mK])",  # the end of a terminal's colour
    )
)
"""What a key begins after: no word, or a character that is spelled with letters."""


def _kind(name: str, hint: str, pattern: str) -> _Kind:
    """`pattern` begins with a character or a set: what is before is looked at only where there is one."""
    start = pattern[: pattern.index("]") + 1] if pattern.startswith("[") else pattern[0]
    return _Kind(name, hint, re.compile(rf"(?={start})(?:{_BEGINS}){pattern}(?![A-Za-z0-9_])"))


_KINDS = (
    _kind("aws-access-key", "A", r"A(?:KIA|SIA|BIA|CCA)(?![A-Z2-7]{9}EXAMPLE)[A-Z2-7]{16}"),
    _Kind(
        "aws-secret-key",
        "",  # in letters of any size
        re.compile(r"(?i:secret_?access_?key)[\"']?\s*[=:]\s*[\"']?([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])"),
    ),
    _kind("github-token", "gh", r"gh[pousr]_[A-Za-z0-9]{36,255}"),
    _kind("github-token", "github_pat_", r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
    _kind("gitlab-token", "glpat-", r"glpat-[A-Za-z0-9_-]{20,}"),
    _kind("anthropic-key", "sk-ant-", r"sk-ant-[a-z]{3,8}\d\d-[A-Za-z0-9_-]{80,}"),
    _kind("openrouter-key", "sk-or-v1-", r"sk-or-v1-[0-9a-f]{64}"),
    _kind("openai-key", "sk-", r"sk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,}"),
    _kind("openai-key", "T3BlbkFJ", r"sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}"),
    _kind("google-key", "AIza", r"AIza[0-9A-Za-z_-]{35}"),
    _kind("google-secret", "GOCSPX-", r"GOCSPX-[A-Za-z0-9_-]{28}"),
    _kind("google-token", "ya29.", r"ya29\.[A-Za-z0-9_-]{40,}"),
    _kind("hugging-face-token", "hf_", r"hf_[A-Za-z]{34}"),
    _kind("groq-key", "gsk_", r"gsk_[A-Za-z0-9]{52}"),
    _kind("xai-key", "xai-", r"xai-[A-Za-z0-9]{80}"),
    _kind("replicate-token", "r8_", r"r8_[A-Za-z0-9]{37}"),
    _kind("slack-token", "xox", r"xox[abeoprs]-(?:\d+-)?[A-Za-z0-9-]{20,}"),
    _kind("slack-token", "xapp-", r"xapp-\d-[A-Z0-9]+-\d+-[a-f0-9]{32,}"),
    _kind("slack-webhook", "hooks.slack.com", r"https://hooks\.slack\.com/services/T\w+/B\w+/\w{20,}"),
    _kind("stripe-key", "k_live_", r"[sr]k_live_[A-Za-z0-9]{24,}"),
    _kind("npm-token", "npm_", r"npm_[A-Za-z0-9]{36}"),
    _kind("pypi-token", "pypi-AgE", r"pypi-AgE[A-Za-z0-9_-]{50,}"),
    _kind("docker-token", "dckr_pat_", r"dckr_pat_[A-Za-z0-9_-]{27}"),
    _kind("digitalocean-token", "_v1_", r"do[opr]_v1_[0-9a-f]{64}"),
    _kind("databricks-token", "dapi", r"dapi[0-9a-f]{32}"),
    _kind("sendgrid-key", "SG.", r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    _kind("nats-seed", "S", r"S[AOU][A-Z2-7]{56}"),
    _Kind("azure-key", "AccountKey=", re.compile(r"AccountKey=([A-Za-z0-9+/]{86}==)")),
    _Kind(
        "private-key",
        "PRIVATE KEY-----",
        re.compile(
            r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----((?:\s|\\n)[A-Za-z0-9+/=\s:,\\-]{64,}?)"
            r"-----END (?:[A-Z]+ )?PRIVATE KEY-----"
        ),
    ),
)


def masked(text: str) -> Masked:
    """The text with every known kind of key in it replaced by `[masked KIND DIGEST]`."""
    keys = 0
    for kind in _KINDS:
        if kind.hint in text:
            text, found = kind.pattern.subn(partial(_mask, kind.name), text)
            keys += found
    return Masked(text, keys)


def _mask(name: str, match: re.Match[str]) -> str:
    group = 1 if match.re.groups else 0
    digest = hashlib.sha256(match[group].encode(errors="surrogatepass")).hexdigest()[:8]
    begin, end = match.start(group) - match.start(), match.end(group) - match.start()
    return f"{match[0][:begin]}[masked {name} {digest}]{match[0][end:]}"
