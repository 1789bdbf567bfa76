"""`dead list|show|requeue`: requests that left the queue without an outcome."""

import asyncio
from typing import Annotated

import msgspec
import typer

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.terminal.console import console
from orchard.terminal.tables import rows_table
from orchard.workers.attempts.deadletters import DeadLetters

COMMANDS = {"dead": "Show and requeue requests that no worker could finish."}

app = typer.Typer(no_args_is_help=True)

Sequence = Annotated[int, typer.Argument(help="Sequence number, as `dead list` shows it.")]


@app.command("list")
def list_dead(context: typer.Context) -> None:
    """List every dead letter: why it is dead and what it asked for."""
    session: Session = context.obj

    async def run() -> None:
        async with session.connection("dead") as connection:
            letters = await DeadLetters(connection).list()
        if not letters:
            console.print("no dead letters")
            return
        rows = [
            (letter.sequence, letter.reason, letter.deliveries, letter.body.decode("utf-8", "replace"))
            for letter in letters
        ]
        console.print(rows_table(["sequence", "reason", "deliveries", "request"], rows))

    asyncio.run(run())


@app.command()
def show(context: typer.Context, sequence: Sequence) -> None:
    """Show a whole dead letter."""
    session: Session = context.obj

    async def run() -> None:
        async with session.connection("dead") as connection:
            letter = await DeadLetters(connection).get(sequence)
        if letter is None:
            raise ConfigError(f"there is no dead letter {sequence}: `orchard dead list` shows them")
        shown = {**msgspec.structs.asdict(letter), "body": letter.body.decode("utf-8", "replace")}
        console.print_json(msgspec.json.encode(shown).decode())

    asyncio.run(run())


@app.command()
def requeue(
    context: typer.Context,
    sequence: Annotated[list[int] | None, typer.Argument(help="Sequence numbers.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
) -> None:
    """Put dead letters back on their queue, with new attempts."""
    session: Session = context.obj
    if not sequence and not everything:
        raise typer.BadParameter("give sequence numbers, or --all")

    async def run() -> int:
        async with session.connection("dead") as connection:
            letters = DeadLetters(connection)
            numbers = sequence or [letter.sequence for letter in await letters.list()]
            for number in numbers:
                await letters.requeue(number)
            return len(numbers)

    console.print(f"{asyncio.run(run())} requests are back on the queue")
