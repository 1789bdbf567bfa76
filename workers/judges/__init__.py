"""Judges: models that rule where no program can. A judge rules or fails: it never guesses.

A *protocol* is what is asked and what counts as an answer. It has a name with a version, and is built in or a
plug-in (entry points `orchard.judges`). The model is any at an endpoint of the configuration.
"""

from orchard.schemas.plugins import Kind, PluginError
from orchard.workers.domain import components
from orchard.workers.judges.interface import JudgeProtocol
from orchard.workers.judges.rubric import RUBRIC, SUCCESS
from orchard.workers.plugins import need

BUILT_IN: dict[str, JudgeProtocol] = {one.version: one for one in (RUBRIC, SUCCESS)}
"""Protocols that belong to no domain."""


def get_protocol(version: str) -> JudgeProtocol:
    """Returns the protocol of that name and version, or the newest of that name. Raises PluginError, also for
    a judge of values.

    A first version judges nothing any more, since an agent's text could forge the borders of its evidence:
    stored tasks that name one mean the newest. The version that judges is in the reward.
    """
    known = [*BUILT_IN, *components(Kind.JUDGE)]
    if version not in known:
        newest = {each.rpartition("-")[0]: each for each in known}
        version = newest.get(version.removesuffix("-1"), version)
    if version in BUILT_IN:
        return BUILT_IN[version]
    found: JudgeProtocol = need(Kind.JUDGE, version, BUILT_IN)
    if not callable(getattr(found, "judge", None)):
        raise PluginError(f"the judge {version!r} judges values of steps, not outcomes: it has no `judge`")
    return found
