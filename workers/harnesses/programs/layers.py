"""The layers of programs: images of the sandbox service, by names that say what is in them."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from orchard.injector.agent.layer_files import NAME
from orchard.injector.agent.local.images import ImageStore
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxUnsupported
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.sandboxes import ImageInfo
from orchard.workers.episode.sandboxes import classified
from orchard.workers.failures import InfrastructureError


class Layer(NamedTuple):
    """An installed program."""

    program: str
    version: str
    digest: str
    """SHA-256 of the archive of its files."""

    @property
    def image(self) -> str:
        """Its name at the sandbox service."""
        return f"orchard-harness/{self.program}:{self.version}-{self.digest}"


def layers_among(images: Iterable[ImageInfo]) -> list[tuple[Layer, ImageInfo]]:
    """The layers among the images of a service, those that came last first."""
    found = [(Layer(*match.groups()), image) for image in images if (match := NAME.fullmatch(image.name))]
    return sorted(found, key=lambda pair: pair[1].created_at or 0.0, reverse=True)


def stored_images(state: Path) -> list[ImageInfo]:
    """The images below the state directory of a sandbox service of this machine, which need not run."""
    return [
        ImageInfo(
            name=image.name,
            layers=len(image.layers),
            sandboxes=0,
            shared=image.owner is None,
            size=image.size,
            created_at=image.created_at,
        )
        for image in ImageStore(state).all()
    ]


async def installed(client: AsyncSandboxClient, program: str) -> Layer:
    """The layer of a program that was installed last. Raises InfrastructureError where there is none."""
    try:
        with classified():
            images = await client.list_images()
    except InfrastructureError as error:
        if not isinstance(error.__cause__, SandboxUnsupported):
            raise
        raise InfrastructureError(
            AbortCause.HARNESS_MISSING,
            f"the harness {program} is a program, and this sandbox service has no layers for programs: use "
            "sandboxes of one machine, or on a cluster name its image in `layers` of kubernetes.toml",
        ) from error
    layers = (layer for layer, _ in layers_among(images) if layer.program == program)
    if (newest := next(layers, None)) is None:
        raise InfrastructureError(
            AbortCause.HARNESS_MISSING,
            f"the harness {program} is not installed at this sandbox service: run `orchard harness install "
            f"{program}`",
        )
    return newest
