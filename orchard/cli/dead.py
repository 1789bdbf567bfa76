"""`dead list|show|requeue`: requests that left the queue without an outcome."""

import asyncio
from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from orchard.actions.audit import begin
from orchard.actions.session import Session
from orchard.cli.facts import AsJson, print_facts
from orchard.configuration.config import ConfigError
from orchard.schemas.access import UserRole
from orchard.streams.deadletter_codec import DeadLetter
from orchard.streams.errors import NotRequeued
from orchard.terminal.console import console
from orchard.terminal.tables import rows_table
from orchard.workers.attempts.deadletters import DeadLetters

COMMANDS = {"dead": "Show and requeue requests that no worker could finish."}

app = typer.Typer(no_args_is_help=True)


class DeadLetterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard dead show --json`, and a dead letter in `orchard dead list --json`."""

    sequence: int
    """Number that `dead show` and `dead requeue` take."""
    time: datetime
    consumer: str
    reason: str
    deliveries: int
    request: str
    """Body of the request."""


class DeadLetterListing(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard dead list --json`."""

    letters: list[DeadLetterFacts]


Sequence = Annotated[int, typer.Argument(help="Sequence number, as `dead list` shows it.")]


@app.command("list")
def list_dead(context: typer.Context, as_json: AsJson = False) -> None:
    """List every dead letter: why it is dead and what it asked for."""
    session: Session = context.obj

    async def run() -> None:
        async with session.reading_connection("dead") as connection:
            letters = await DeadLetters(connection).list()
        if as_json:
            print_facts(DeadLetterListing(letters=[_facts(letter) for letter in letters]))
            return
        if not letters:
            console.print("no dead letters")
            return
        rows = [
            (letter.sequence, letter.reason, letter.deliveries, letter.body.decode("utf-8", "replace"))
            for letter in letters
        ]
        console.print(rows_table(["sequence", "reason", "deliveries", "request"], rows))

    asyncio.run(run())


def _facts(letter: DeadLetter) -> DeadLetterFacts:
    return DeadLetterFacts(
        sequence=letter.sequence,
        time=letter.time,
        consumer=letter.consumer,
        reason=letter.reason,
        deliveries=letter.deliveries,
        request=letter.body.decode("utf-8", "replace"),
    )


@app.command()
def show(context: typer.Context, sequence: Sequence, as_json: AsJson = False) -> None:
    """Show a whole dead letter."""
    session: Session = context.obj

    async def run() -> None:
        async with session.reading_connection("dead") as connection:
            letter = await DeadLetters(connection).get(sequence)
        if letter is None:
            raise ConfigError(f"there is no dead letter {sequence}: `orchard dead list` shows them")
        if as_json:
            print_facts(_facts(letter))
            return
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
    if bool(sequence) == everything:
        raise typer.BadParameter("give either sequence numbers or --all")

    async def run() -> bool:
        async with session.connection("dead") as connection:
            asked = ",".join(map(str, sequence or ())) or "all"
            await begin(session, connection, "dead requeue", UserRole.OPERATE, options={"sequence": asked})
            letters = DeadLetters(connection)
            numbers = sequence or [letter.sequence for letter in await letters.list()]
            return all([await _requeued(letters, number) for number in numbers])

    if not asyncio.run(run()):
        raise typer.Exit(1)


async def _requeued(letters: DeadLetters, number: int) -> bool:
    """Requeues one letter and prints what became of it. Returns False if it was refused."""
    try:
        done = await letters.requeue(number)
    except NotRequeued as refused:
        console.print(f"[bold red]not requeued:[/] {escape(str(refused))}")
        return False
    if done.sequence is None and done.request is not None:
        console.print(
            f"dead letter {number} is removed without a request: rollout {done.request.rollout_id} is open "
            "again or has another outcome"
        )
    else:
        console.print(f"the request of dead letter {number} is back on its queue")
    return True
