"""Parses image references as `docker pull` does: `python:3.12`, `ghcr.io/x/y@sha256:...`."""

import re
from dataclasses import dataclass

from orchard.injector.agent.errors import RequestInvalid

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DOCKER_HUB = "docker.io"
_REGISTRY = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?")
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_LONGEST = 512


@dataclass(frozen=True, kw_only=True)
class Reference:
    registry: str
    """Host, perhaps with a port; Docker Hub is `docker.io`."""
    repository: str
    tag: str
    digest: str | None
    """Required digest of the manifest; the tag is then ignored."""

    @property
    def address(self) -> str:
        return "registry-1.docker.io" if self.registry == DOCKER_HUB else self.registry


def parse(text: str) -> Reference:
    first, slash, rest = text.partition("/")
    named = bool(slash) and (first == "localhost" or "." in first or ":" in first)
    registry, image = (first, rest) if named else (DOCKER_HUB, text)
    found = _IMAGE.fullmatch(image)
    if found is None or _REGISTRY.fullmatch(registry) is None or len(text) > _LONGEST:
        raise RequestInvalid(
            f"`{text[:200]}` names no image of a registry: write `repository:tag`, "
            "`registry/repository:tag` or `repository@sha256:DIGEST`"
        )
    repository = found["repository"]
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    return Reference(
        registry=registry, repository=repository, tag=found["tag"] or "latest", digest=found["digest"]
    )
