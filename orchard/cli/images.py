"""`images import|pull|build|list|delete`: manages images of local sandboxes."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from orchard.actions.session import Session
from orchard.cli.facts import AsJson, print_facts
from orchard.configuration.config import ConfigError
from orchard.injector import operations
from orchard.injector.agent.errors import AgentError
from orchard.injector.agent.local.image_process import bring
from orchard.injector.agent.local.image_service import LocalImages
from orchard.injector.agent.local.images import ImageStore, StoredImage
from orchard.injector.agent_connection import AgentUnreachable
from orchard.injector.errors import SandboxError
from orchard.injector.local.backend import LocalBackend
from orchard.injector.registry_credentials import CredentialsError, stored_credentials
from orchard.pipelines.tasks.dockerfiles import build_image
from orchard.schemas.sandboxes import ImageDeleted
from orchard.terminal.console import console

COMMANDS = {"images": "Manage images of local sandboxes."}

app = typer.Typer(no_args_is_help=True)


class ImageListing(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard images list --json`."""

    images: list[str]
    """Names of the images, as `create_sandbox` takes them."""


@app.command("import")
def import_(
    context: typer.Context,
    path: Annotated[
        Path, typer.Argument(help="OCI image layout (directory or tar) or `docker save` archive.")
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the image on this machine.", show_default="what the archive says"),
    ] = None,
) -> None:
    """Unpack an image once for all sandboxes; importing again replaces it.

    To get an archive, run `docker save NAME -o image.tar` on a machine with Docker.
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist: give an OCI layout or a `docker save` archive")
    image = _brought(context, "import", {"path": str(path.absolute()), "name": name})
    console.print(f"[bold green]imported[/] {escape(image.name)}, {len(image.layers)} layers")


@app.command()
def pull(
    context: typer.Context,
    reference: Annotated[
        str, typer.Argument(help="Image as for `docker pull`; `name@sha256:...` pins its content.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the image on this machine.", show_default="REFERENCE")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="User name at the registry.", show_default="what `docker login` stored")
    ] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input.")
    ] = False,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Use HTTP without TLS for a registry on another machine.")
    ] = False,
) -> None:
    """Fetch an image from a registry for local sandboxes; layers that exist already are not fetched again.

    For example:

        orchard images pull python:3.12-slim
    """
    if (user is None) == password_stdin:
        raise ConfigError("--user and --password-stdin go together: the password is read from stdin")
    if user is not None:
        credentials: Any = {"username": user, "password": sys.stdin.read().rstrip("\r\n")}
    else:
        try:
            credentials = stored_credentials(reference)
        except CredentialsError as error:
            raise ConfigError(str(error)) from error
    wanted = {"reference": reference, "name": name, "credentials": credentials, "plain_http": plain_http}
    image = _brought(context, "pull", wanted)
    console.print(f"[bold green]pulled[/] {escape(image.name)}, {len(image.layers)} layers, {image.digest}")


def _state(context: typer.Context) -> Path:
    session: Session = context.obj
    return session.directory / "sandboxes"


def _brought(context: typer.Context, what: str, wanted: dict[str, Any]) -> StoredImage:
    state = _state(context)
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return asyncio.run(bring(state, what, wanted))
    except AgentError as error:
        raise ConfigError(error.detail) from error


@app.command()
def build(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="Build context, with a Containerfile or Dockerfile.")],
    name: Annotated[str, typer.Option(help="Name of the image, as repository:tag.")],
    file: Annotated[
        Path | None,
        typer.Option(help="Path of the Containerfile.", show_default="DIRECTORY/Containerfile or Dockerfile"),
    ] = None,
) -> None:
    """Build a Containerfile or Dockerfile by buildah or docker, whichever is installed, and import the image.

    For example:

        orchard images build ./desk --name ours/desk:1
    """
    image = build_image(_state(context), directory, name, file)
    console.print(f"[bold green]built[/] {escape(image.name)}, {len(image.layers)} layers")


@app.command()
def delete(
    context: typer.Context, name: Annotated[str, typer.Argument(help="Name as in `orchard images list`.")]
) -> None:
    """Delete an image that no sandbox uses; layers of other images stay."""
    try:
        asyncio.run(_deleted(_state(context), name))
    except (AgentError, SandboxError) as error:
        raise ConfigError(error.detail) from error
    console.print(f"[bold green]deleted[/] {escape(name)}")


async def _deleted(state: Path, name: str) -> None:
    """Deletes an image through the agent, which knows the images in use. Without an agent none is in use,
    and the next agent removes the layers."""
    backend = LocalBackend(state, start_agent=False)
    await backend.open()
    try:
        request = operations.DELETE_IMAGE
        await backend.images().call(ImageDeleted, request.method, request.path, params={"name": name})
    except AgentUnreachable:
        store = ImageStore(state)
        LocalImages(state, store).check_deletable(name, None)
        store.delete(name)
    finally:
        await backend.close()


@app.command("list")
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List all images; `host`, a sanitized copy of this machine's root, always exists."""
    names = ["host", *ImageStore(_state(context)).names()]
    if as_json:
        print_facts(ImageListing(images=names))
        return
    for name in names:
        console.print(name, highlight=False)
