"""`ui` and `report`: the log in a browser, live or as a folder of pages."""

import asyncio
import socket
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from orchard.actions.session import Session
from orchard.configuration.config import UpSettings
from orchard.processes.signals import stop_on_signals
from orchard.terminal.console import console, progress
from orchard.terminal.permissions import users_mask

COMMANDS = {
    "ui": "Show campaigns and rollouts in a browser, live, until Ctrl-C.",
    "report": "Write a campaign, training run or comparison as pages that open from disk: a folder, or one "
    "file.",
}


def register(app: typer.Typer) -> None:
    @app.command()
    def ui(
        context: typer.Context,
        port: Annotated[int, typer.Option(help="Port; 0 chooses one.", min=0, max=65535)] = 8780,
        host: Annotated[
            str, typer.Option(help="Address to listen on; other than loopback, every page needs the token.")
        ] = "127.0.0.1",
        private: Annotated[
            bool,
            typer.Option(
                "--private", help="Ask for the token on loopback too, for a machine with other users."
            ),
        ] = False,
        allowed_host: Annotated[
            list[str] | None, typer.Option(help="Host name under which a proxy serves the page. Repeatable.")
        ] = None,
        base_path: Annotated[
            str, typer.Option(help="Path below which a proxy in front serves the page, such as /orchard.")
        ] = "",
        tokenizer: Annotated[
            Path | None,
            typer.Option(
                help="Model's directory with a tokenizer.json, for the text of tokens.", exists=True
            ),
        ] = None,
        listening: Annotated[
            int | None, typer.Option(help="Socket that `orchard up` listens on for it.", hidden=True)
        ] = None,
    ) -> None:
        """Show campaigns and rollouts in a browser, live, until Ctrl-C. Works with and without `orchard up`.

        For example:

            orchard ui
            orchard ui --store s3://bucket/prefix --port 0
        """
        session: Session = context.obj
        usual = port == UpSettings().page_port and not (
            private or allowed_host or base_path or tokenizer or listening
        )
        if usual and host == "127.0.0.1" and (up := session.up()) is not None and up.page_url:
            console.print(
                f"`orchard up` serves [bold green]the page[/] already: {up.page_url}", soft_wrap=True
            )
            console.print("for one more: orchard ui --port 0", style="dim")
            return
        line = None if listening is None else socket.socket(fileno=listening)
        uvloop.run(_serve(session, host, line or port, private, allowed_host or [], tokenizer, base_path))

    @app.command()
    def report(
        context: typer.Context,
        name: Annotated[str, typer.Argument(help="Name of a campaign or of a training run.")],
        second: Annotated[
            str | None, typer.Argument(help="Another campaign, which the first is compared with.")
        ] = None,
        *,
        out: Annotated[
            Path,
            typer.Option(
                help="Folder, whose files of the same names are replaced; or one file that ends in .html."
            ),
        ],
    ) -> None:
        """Write a campaign, training run or comparison as pages that open from disk: a folder, or one file.

        Your umask decides who can read them. Keys of known vendors are masked, and secrets.txt lists on which
        pages. For example:

            orchard report first --out first-report
            orchard report first --out first.html
            orchard report first second --out comparison
        """
        from orchard.page.report import write_report

        session: Session = context.obj
        with progress("rollouts") as bar:
            row = bar.add_task(f"report of {name}", total=None)
            made = write_report(
                session.config.store,
                name,
                out,
                lambda done, of: bar.update(row, completed=done, total=of),
                second,
                users_mask(),
            )
        console.print(
            f"[bold green]written[/] {made.rollouts:,} rollouts in {made.files:,} files, "
            f"{made.bytes / 1e6:.1f} MB: open {out if out.suffix == '.html' else out / 'index.html'}",
            soft_wrap=True,
        )
        if made.secrets:
            count = sum(made.secrets.values())
            console.print(
                f"[yellow]{count} keys were masked[/]: secrets.txt in it says where", soft_wrap=True
            )
        if made.pictures:
            console.print(f"[yellow]{made.pictures} pictures[/] are not searched for keys", soft_wrap=True)
        if made.left_out:
            console.print(f"[yellow]{made.left_out} pictures are left out[/]: too much for one mail")


async def _serve(
    session: Session,
    host: str,
    port: int | socket.socket,
    private: bool,
    hosts: list[str],
    tokenizer: Path | None,
    base: str,
) -> None:
    from orchard.page.server import serve

    def told(address: str, with_token: str) -> None:
        console.print(f"[bold green]page[/] of {session.config.store}: {address}", soft_wrap=True)
        if address != with_token:
            console.print(f"to pause and resume there, too: {with_token}", style="dim", soft_wrap=True)

    stop = stop_on_signals(asyncio.get_running_loop())
    await serve(
        session,
        host=host,
        port=port,
        private=private,
        hosts=hosts,
        tokenizer=tokenizer,
        base=base,
        told=told,
        stop=stop,
    )
