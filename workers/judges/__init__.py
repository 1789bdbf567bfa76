"""Judges: models that rule where no program can. A judge rules, or it fails: it never guesses.

A *protocol* is what is asked and what is taken for an answer. It has a name with a version, and is built in
or a plug-in (entry points `orchard.judges`). The model is any at an endpoint of the configuration.
"""

from orchard.schemas.plugins import Kind, PluginError
from orchard.workers.domains.gui.judge_protocols import DEEPSHOP, ORCHARD, WEBJUDGE, WEBVOYAGER
from orchard.workers.judges.interface import Protocol
from orchard.workers.judges.rubric import RUBRIC, SUCCESS
from orchard.workers.plugins import need

BROWSING: dict[str, Protocol] = {one.version: one for one in (ORCHARD, WEBVOYAGER, WEBJUDGE, DEEPSHOP)}
"""Protocols for browser agents."""
BUILT_IN: dict[str, Protocol] = {one.version: one for one in (RUBRIC, SUCCESS)} | BROWSING
NEWEST = {version.rpartition("-")[0]: version for version in BUILT_IN}
"""Name without a version to the newest version."""
_REPLACED = {f"{name}-1": version for name, version in NEWEST.items()}
"""Versions that stored tasks name and that judge nothing any more: an agent's text could forge the borders of
their evidence. The version that judges is in the reward."""


def get_protocol(version: str) -> Protocol:
    """The protocol of that name and version, or the newest of that name. Raises PluginError, also for a
    judge of values."""
    version = NEWEST.get(version, _REPLACED.get(version, version))
    if version in BUILT_IN:
        return BUILT_IN[version]
    found: Protocol = need(Kind.JUDGE, version, BUILT_IN)
    if not callable(getattr(found, "judge", None)):
        raise PluginError(f"the judge {version!r} judges values of steps, not outcomes: it has no `judge`")
    return found
