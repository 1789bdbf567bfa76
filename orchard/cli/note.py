"""`note`: what people say of rollouts, and tags of campaigns."""

import asyncio
import getpass
import re
import sys
from typing import Annotated

import duckdb
import typer

from orchard.actions.notes import (
    add_notes,
    campaign_of,
    check_removed,
    check_target,
    check_turn,
    known_campaign,
    labels_of,
    tag_campaign,
)
from orchard.actions.reporter import plural
from orchard.actions.rollout import find
from orchard.actions.rollout_index import index_views
from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.schemas.notes import RolloutNoted
from orchard.storage.reader import open_tables

COMMANDS = {"note": "Write a note, labels or a score on rollouts, or give a campaign tags."}


def register(app: typer.Typer) -> None:
    @app.command()
    def note(
        context: typer.Context,
        rollout: Annotated[
            str,
            typer.Argument(
                help="Rollout id, or its first digits; several with commas, or - to read them from standard "
                "input; with tags, name of a campaign."
            ),
        ],
        text: Annotated[str, typer.Argument(help="What you saw.")] = "",
        label: Annotated[list[str] | None, typer.Option(help="Label that the rollout gets.")] = None,
        remove_label: Annotated[list[str] | None, typer.Option(help="Label that it loses.")] = None,
        score: Annotated[
            float | None, typer.Option(help="Your score from 0 to 1, in place of your earlier one.")
        ] = None,
        turn: Annotated[int | None, typer.Option(help="Turn that the text is about.", min=0)] = None,
        tag: Annotated[list[str] | None, typer.Option(help="Tag that the campaign gets.")] = None,
        remove_tag: Annotated[list[str] | None, typer.Option(help="Tag that it loses.")] = None,
        author: Annotated[
            str, typer.Option("--as", help="Name of who writes.", show_default="your user name")
        ] = "",
    ) -> None:
        """Write a note, labels or a score on rollouts, or give a campaign tags.

        Each is an event of the log, with the name of who wrote it. It changes no reward. The views `notes`,
        `reviews` and `campaigns` have them; `orchard status` and the page show tags:

            orchard note 3f2a "gave up after the first error" --label lazy --score 0.2
            orchard note 3f2a,77b1 --label lazy
            orchard note - --label short < ids.csv
            orchard note first --tag baseline --tag nightly
            orchard sql "select * from reviews where human_score < 0.5"
        """
        session: Session = context.obj
        tags, removed = labels_of(tag or ()), labels_of(remove_tag or ())
        if tags or removed:
            if text or label or remove_label or score is not None or turn is not None:
                raise ConfigError("tags are a campaign's, notes a rollout's: give them with two commands")
            with open_tables(session.config.store) as tables:
                campaign = known_campaign(tables, rollout)
                check_removed(tables, campaign, removed)
            waiting = asyncio.run(tag_campaign(session, campaign, author or _user(), tags, removed))
            typer.echo(f"tagged {campaign}" + (f"; {waiting}" if waiting else ""), err=True)
            return
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
            noted = dict(_target(tables, word, turn) for word in _words(rollout))
        waiting = asyncio.run(add_notes(session, noted, said))
        where = next(iter(noted)) if len(noted) == 1 else plural(len(noted), "rollout")
        typer.echo(f"noted on {where}" + (f"; {waiting}" if waiting else ""), err=True)


def _words(given: str) -> list[str]:
    """Ids in an argument, or in standard input for `-`. Raises ConfigError for none."""
    found = re.split(r"[,\s]+", (sys.stdin.read() if given == "-" else given).strip())
    if found[0] == "rollout_id":  # the title of a column
        found = found[1:]
    if not any(found):
        raise ConfigError("no rollout is named: give the first characters of its id")
    return found


def _target(tables: duckdb.DuckDBPyConnection, word: str, turn: int | None) -> tuple[str, str]:
    """Id and campaign of the rollout that a word names. Raises ConfigError and UnknownName."""
    check_target(tables, word)
    name = find(tables, word)
    check_turn(tables, name, turn)
    return name, campaign_of(tables, name)


def _user() -> str:
    """Name of the user. Raises ConfigError where the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise ConfigError("this system has no name for you: pass --as NAME") from None
