"""Classifies errors of the API server: missing rights, an exhausted quota, a rejection by policy, an
invalid object."""

import re

from orchard.injector.agent.interfaces import quantity
from orchard.injector.errors import SandboxError, SandboxRefused, SandboxRequestInvalid, SandboxUnavailable
from orchard.injector.kubernetes.objects import ApiStatus

QUOTA_SECONDS = 5.0
"""Seconds before an exhausted quota is tried again."""
RETRIED = frozenset({408, 429, 500, 502, 503, 504})

_DENIED = re.compile(r"denied (the )?request\b")
"""Phrase of admission webhooks (Kyverno, Gatekeeper and all others) and of ValidatingAdmissionPolicies."""
_RIGHTS = re.compile(r"\bUser\b.*\bcannot\b")
_QUOTA = re.compile(
    r"\bexceeded (\w+ )?quota\b"
    # Nobody has counted a new quota yet; and too many count one at once.
    r"|\bstatus unknown for quota\b|\bcannot be fulfilled on resourcequotas\b"
)
_AMOUNTS = re.compile(r"\brequested: (\S+), used: \S+, limited: (\S+)")


class ApiRefused(SandboxError):
    """The server responded with an error that a retry will not change; `code` is its HTTP status."""

    default_reason = "api_refused"

    def __init__(self, code: int, refusal: ApiStatus) -> None:
        super().__init__(f"the API server answers {code}: {refusal.message or refusal.reason}")
        self.code = code
        self.refusal = refusal


def error_of(code: int, refusal: ApiStatus) -> SandboxError:
    """Return the typed error for an error response.

    The message of admission counts before the status: a webhook chooses its own. Built-in plugins
    (PodSecurity, LimitRanger, runtime classes) say 403 and that the object is forbidden, as RBAC and quotas
    do.
    """
    text = refusal.message
    if code in RETRIED or not 400 <= code < 500:
        return ApiRefused(code, refusal)
    if _QUOTA.search(text) and not _never_fits(text):
        full = SandboxUnavailable(f"the cluster is full: {text}", reason="quota_exceeded")
        full.retry_after = QUOTA_SECONDS
        return full
    if _DENIED.search(text) or (code == 403 and "is forbidden: " in text and not _RIGHTS.search(text)):
        return SandboxRefused(f"the cluster does not admit this sandbox: {text}")
    if code in (401, 403):
        return SandboxUnavailable(
            f"the cluster does not let the orchestrator do this: {text}", reason="api_forbidden"
        )
    if code in (400, 422):
        return SandboxRequestInvalid(f"the cluster refuses this sandbox: {text}")
    return ApiRefused(code, refusal)


def _never_fits(text: str) -> bool:
    """Whether one sandbox alone asks for more than a quota permits in all."""
    found = _AMOUNTS.search(text)
    if found is None:
        return False
    requested, limited = (
        dict(part.split("=", 1) for part in group.split(",") if "=" in part) for group in found.groups()
    )
    try:
        return any(
            quantity(requested[name]) > quantity(most) for name, most in limited.items() if name in requested
        )
    except ValueError:
        return False
