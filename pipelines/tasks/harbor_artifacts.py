"""The files that a Harbor verifier of its own gets, by the rules of Harbor 0.26. Pure."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import PurePosixPath

from orchard.pipelines.tasks.harbor_definition import Artifact
from orchard.schemas.tasks import ServiceArtifact

ARTIFACTS = "/logs/artifacts"
"""Directory that a verifier with a sandbox of its own gets from the agent's whether it is named or not."""


def brought(entries: Sequence[Artifact]) -> tuple[str | ServiceArtifact, ...]:
    """What is brought, in its order. Raises ValueError for a path that is not absolute, and for two entries
    that Harbor keeps at one place: it drops the later one, or brings it what the first one is."""
    for each in entries:
        parts = PurePosixPath(each.source).parts
        if parts[:1] != ("/",) or len(parts) == 1:
            raise ValueError(f"the artifact {each.source!r} is no absolute path below /")
    named = any(each.source.rstrip("/") == ARTIFACTS and each.of is None for each in entries)
    every = [*entries] if named else [Artifact(ARTIFACTS), *entries]
    for first, second in combinations(every, 2):
        if _overlap(first, second) and not _covers(first, second):
            raise ValueError(
                f"Harbor keeps the artifacts {first.told} and {second.told} at one place, and the first "
                "alone: give one of them another destination, or leave it out"
            )
    paths = ((each.source.rstrip("/"), each.of) for each in every)
    return tuple(
        dict.fromkeys(path if of is None else ServiceArtifact(service=of, path=path) for path, of in paths)
    )


def _kept(artifact: Artifact) -> PurePosixPath:
    """Where Harbor keeps it, below a directory of the trial."""
    return PurePosixPath("/", artifact.destination or artifact.source)


def _overlap(first: Artifact, second: Artifact) -> bool:
    one, other = _kept(first), _kept(second)
    return one.is_relative_to(other) or other.is_relative_to(one)


def _covers(first: Artifact, second: Artifact) -> bool:
    """Whether the second is kept at the same place below the first."""
    one, other = PurePosixPath(first.source), PurePosixPath(second.source)
    if first.of != second.of or not other.is_relative_to(one):
        return False
    return _kept(second) == _kept(first) / other.relative_to(one)
