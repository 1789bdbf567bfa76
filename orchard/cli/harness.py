"""`harness install|list|show`: manages the programs that run tasks inside sandboxes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from orchard.actions.session import Session
from orchard.cli.facts import AsJson, print_facts
from orchard.configuration.config import ConfigError
from orchard.configuration.run_files import UNSAFE_HOST
from orchard.injector.agent.errors import AgentError
from orchard.injector.agent.local.image_process import bring
from orchard.injector.errors import SandboxUnsupported
from orchard.schemas.plugins import Kind
from orchard.schemas.sandboxes import ImageInfo
from orchard.terminal.console import console
from orchard.workers.harnesses import built_in_names, get_harness
from orchard.workers.harnesses.programs.building import install
from orchard.workers.harnesses.programs.catalog import PROGRAMS
from orchard.workers.harnesses.programs.layers import Layer, layers_among, packed, stored_images
from orchard.workers.harnesses.programs.record import Program, SuppliedFiles
from orchard.workers.harnesses.programs.runner import ProgramHarness
from orchard.workers.harnesses.programs.tools import BuildError
from orchard.workers.plugins import names

COMMANDS = {"harness": "Install, list and show harnesses that are programs."}

app = typer.Typer(no_args_is_help=True)


class ProgramFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A program in `orchard harness list --json`."""

    harness: str
    api: str
    installed: str
    """Version; empty if it is not installed."""
    layer: str
    """Digest of its layer."""
    bytes: int | None
    """Size of its layer; None where the service does not say."""


class ProgramListing(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard harness list --json`."""

    programs: list[ProgramFacts]


class LayerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An installed version of a program."""

    version: str
    digest: str
    """SHA-256 of the archive of its files."""


class ProgramRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard harness show --json`."""

    program: Program
    layers: list[LayerFacts]
    """What is installed, the newest first."""


@app.command("install")
def install_(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the harness, optionally with ==VERSION.")],
    supplied: Annotated[
        Path | None, typer.Option("--from", help="File or directory of a program that no package index has.")
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(help="Interpreter to copy, for a Python program.", show_default="found"),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            help="Only write the layer's image to this file, to push it to a registry for a cluster."
        ),
    ] = None,
) -> None:
    """Build a program's layer and make it ready for sandboxes; rollouts use what was installed last.

    Needs the network for packages of PyPI or npm. For example:

        orchard harness install codex
        orchard harness install mini-swe-agent-cli==2.4.6
        orchard harness install zeroclaw --from ./zeroclaw
        orchard harness install codex --archive codex.tar
    """
    session: Session = context.obj
    wanted, _, version = name.partition("==")
    program = _program(wanted)
    remote = session.config.sandbox.url not in (None, UNSAFE_HOST)

    def bring_(image: Path, made: Layer) -> None:
        if archive is not None:
            packed(image, archive)
        elif remote:
            _send(session, image, made)
        else:
            _unpack(session, image, made)

    try:
        layer = install(
            program,
            session.directory / "harnesses",
            bring_,
            lambda step: console.print(f"[dim]{escape(step)}[/]"),
            version=version or None,
            supplied=supplied and supplied.absolute(),
            python=python,
        )
    except (BuildError, AgentError) as error:
        raise ConfigError(str(getattr(error, "detail", error))) from error
    if archive is not None:
        console.print(
            f"[bold green]written[/] {escape(str(archive))}: push it, then name it in kubernetes.toml\n"
            f'\\[layers]\n"{layer.image}" = "REGISTRY/NAME@sha256:..."',
            highlight=False,
            soft_wrap=True,
        )
        return
    console.print(f"[bold green]installed[/] {wanted} {escape(layer.version)}, layer {layer.digest[:12]}")


@app.command("list")
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List all programs with what is installed of each at the sandbox service."""
    layers = _layers(context.obj)
    if as_json:
        print_facts(ProgramListing(programs=[_facts(each, layers) for each in _programs()]))
        return
    table = Table(box=None, header_style="bold")
    for column in ("harness", "API", "installed", "size", "layer"):
        table.add_column(column)
    for program in _programs():
        newest = next((pair for pair in layers if pair[0].program == program.name), None)
        if newest is None:
            named = " --from PATH" if isinstance(program.source, SuppliedFiles) else ""
            table.add_row(program.name, program.wire, f"no: orchard harness install {program.name}{named}")
        else:
            layer, image = newest
            size = "-" if image.size is None else f"{image.size / 2**20:.0f} MiB"  # a cluster does not say
            table.add_row(program.name, program.wire, layer.version, size, layer.digest[:12])
    console.print(table)


def _facts(program: Program, layers: Sequence[tuple[Layer, ImageInfo]]) -> ProgramFacts:
    newest = next((pair for pair in layers if pair[0].program == program.name), None)
    return ProgramFacts(
        harness=program.name,
        api=program.wire,
        installed=newest[0].version if newest else "",
        layer=newest[0].digest if newest else "",
        bytes=newest[1].size if newest else None,
    )


@app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the harness.")],
    as_json: AsJson = False,
) -> None:
    """Show a program's record as JSON, and all its layers."""
    program = _program(name)
    layers = [layer for layer, _ in _layers(context.obj) if layer.program == name]
    if as_json:
        built = [LayerFacts(version=layer.version, digest=layer.digest) for layer in layers]
        print_facts(ProgramRecord(program=program, layers=built))
        return
    console.print_json(msgspec.json.encode(program).decode())
    for layer in layers:
        console.print(f"layer {layer.digest}, version {escape(layer.version)}", highlight=False)


def _programs() -> list[Program]:
    plugged = [get_harness(name) for name in names(Kind.HARNESS) if name not in built_in_names()]
    return [*PROGRAMS, *(each.program for each in plugged if isinstance(each, ProgramHarness))]


def _program(name: str) -> Program:
    harness = get_harness(name)
    if not isinstance(harness, ProgramHarness):
        known = ", ".join(program.name for program in _programs())
        raise ConfigError(f"{name} is not a program and needs no installation: choose one of {known}")
    return harness.program


def _unpack(session: Session, image: Path, layer: Layer) -> None:
    state = session.directory / "sandboxes"
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    asyncio.run(bring(state, "import", {"path": str(image), "name": layer.image}))


def _send(session: Session, image: Path, layer: Layer) -> None:
    async def send() -> None:
        with TemporaryDirectory(dir=image.parent) as place:
            archive = await asyncio.to_thread(packed, image, Path(place) / "image.tar")
            async with session.sandboxes() as client:
                await client.import_image(archive, layer.image)

    try:
        asyncio.run(send())
    except SandboxUnsupported as error:
        raise ConfigError(
            "this sandbox service takes no layers from clients: write the image with `--archive FILE`, "
            "push it, and have it named in `layers` of the cluster's kubernetes.toml"
        ) from error


def _layers(session: Session) -> list[tuple[Layer, ImageInfo]]:
    """Layers at the service of another machine, or in this machine's store."""
    if session.config.sandbox.url not in (None, UNSAFE_HOST):

        async def asked() -> list[ImageInfo]:
            async with session.sandboxes() as client:
                return await client.list_images()

        return layers_among(asyncio.run(asked()))
    return layers_among(stored_images(session.directory / "sandboxes"))
