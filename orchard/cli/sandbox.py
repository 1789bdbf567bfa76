"""`sandbox mcp`: one sandbox for a program that speaks the Model Context Protocol."""

from typing import Annotated

import typer

from orchard.actions.session import Session

COMMANDS = {"sandbox": "Give sandboxes to other programs."}

app = typer.Typer(no_args_is_help=True)


@app.callback()
def sandbox() -> None:
    """Give sandboxes to other programs."""


@app.command()
def mcp(
    context: typer.Context,
    image: Annotated[str, typer.Option(help="Image of the sandbox.")] = "host",
    network: Annotated[bool, typer.Option("--network", help="Let it connect to public addresses.")] = False,
) -> None:
    """Serve one sandbox as MCP tools over stdio: run, read_file, write_file, list_files.

    The service is that of `--sandbox` or SANDBOX_BASE_URL. For example:

        orchard sandbox mcp --image python:3.12
    """
    from orchard.adapters.mcp_server import server  # its package is an extra

    session: Session = context.obj
    server(image, not network, session.config.sandbox.url or None).run()
