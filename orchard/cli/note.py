"""`note`: what people say of rollouts."""

import asyncio
import getpass
from typing import Annotated

import typer

from orchard.actions.notes import add_note, campaign_of, labels_of
from orchard.actions.rollout import find
from orchard.actions.rollout_index import index_views
from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.schemas.notes import RolloutNoted
from orchard.storage.reader import open_tables

COMMANDS = {"note": "Write a note, labels or a score on a rollout."}


def register(app: typer.Typer) -> None:
    @app.command()
    def note(
        context: typer.Context,
        rollout: Annotated[str, typer.Argument(help="Rollout id, or its first digits.")],
        text: Annotated[str, typer.Argument(help="What you saw.")] = "",
        label: Annotated[list[str] | None, typer.Option(help="Label that the rollout gets.")] = None,
        remove_label: Annotated[list[str] | None, typer.Option(help="Label that it loses.")] = None,
        score: Annotated[
            float | None, typer.Option(help="Your score from 0 to 1, in place of your earlier one.")
        ] = None,
        turn: Annotated[int | None, typer.Option(help="Turn that the text is about.", min=0)] = None,
        author: Annotated[
            str, typer.Option("--as", help="Name of who writes.", show_default="your user name")
        ] = "",
    ) -> None:
        """Write a note, labels or a score on a rollout.

        A note is an event of the log, with the name of who wrote it. It changes no reward. The views `notes`
        and `reviews` have all of them:

            orchard note 3f2a "gave up after the first error" --label lazy --score 0.2
            orchard sql "select * from reviews where human_score < 0.5"
        """
        session: Session = context.obj
        said = RolloutNoted(
            author=author or _user(),
            text=text,
            labels=labels_of(label or ()),
            removed_labels=labels_of(remove_label or ()),
            score=score,
            turn=turn,
        )
        with open_tables(session.config.store) as tables:
            index_views(tables)
            name = find(tables, rollout)
            campaign = campaign_of(tables, name)
        waiting = asyncio.run(add_note(session, name, campaign, said))
        typer.echo(f"noted on {name}" + (f"; {waiting}" if waiting else ""), err=True)


def _user() -> str:
    """Name of the user. Raises ConfigError where the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise ConfigError("this system has no name for you: pass --as NAME") from None
