"""`images import|build|list`: what local sandboxes can be made from."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from orchard.config import ConfigError
from orchard.injector.agent.errors import AgentError
from orchard.injector.agent.local.archives import import_image
from orchard.injector.agent.local.images import ImageStore
from orchard.pipelines.tasks.dockerfiles import build_image
from orchard.session import Session
from orchard.terminal import console

app = typer.Typer(no_args_is_help=True, help="Images of local sandboxes.")


@app.command("import")
def import_(
    context: typer.Context,
    path: Annotated[
        Path, typer.Argument(help="OCI image layout (directory or tar) or `docker save` archive.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Its name here.", show_default="what the archive says")
    ] = None,
) -> None:
    """Unpack an image once for all sandboxes; importing again replaces it.

    Get one from a machine with a registry: `docker save NAME -o image.tar`.
    """
    session: Session = context.obj
    if not path.exists():
        raise ConfigError(f"{path} does not exist: give an OCI layout or a `docker save` archive")
    try:
        image = import_image(session.directory / "sandboxes", path, name)
    except AgentError as error:
        raise ConfigError(error.detail) from error
    console.print(f"[bold green]imported[/] {image.name}, {len(image.layers)} layers")


@app.command()
def build(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="Build context, with a Dockerfile.")],
    name: Annotated[str, typer.Option(help="Its name here, as repository:tag.")],
    file: Annotated[
        Path | None, typer.Option(help="Another Dockerfile.", show_default="DIRECTORY/Dockerfile")
    ] = None,
) -> None:
    """Build a Dockerfile by buildah or docker, whichever is installed, and import the image.

    For example:

        orchard images build ./desk --name ours/desk:1
    """
    session: Session = context.obj
    image = build_image(session.directory / "sandboxes", directory, name, file)
    console.print(f"[bold green]built[/] {escape(image.name)}, {len(image.layers)} layers")


@app.command("list")
def list_(context: typer.Context) -> None:
    """Names of all images; `host`, this machine's own root made safe, is always there."""
    session: Session = context.obj
    for name in ["host", *ImageStore(session.directory / "sandboxes").names()]:
        console.print(name, highlight=False)
