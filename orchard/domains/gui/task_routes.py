"""`tasks synthesize gui` and `tasks import BENCHMARK ROWS`."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.terminal.left_out import import_shown_rows


def synthesize(
    session: Session,
    words: Sequence[str],
    limit: int,
    concurrency: int,
    *,
    seed: int = 0,
    sites: Annotated[str, typer.Option(help="sites, by comma.", show_default="all but `tiny`")] = "",
    kinds: Annotated[
        str, typer.Option(help="kinds of tasks, by comma (`shop.buy`).", show_default="all")
    ] = "",
    layouts: Annotated[str, typer.Option(help="`train`, or `held-out` to measure on.")] = "train",
    faults: Annotated[
        str, typer.Option(help="what is wrong with the sites: captcha, down, slow, consent.")
    ] = "",
    prove: Annotated[bool, typer.Option("--prove", help="play each task in Chromium, in a sandbox.")] = False,
) -> None:
    from orchard.domains.gui.tasks import GuiOptions, synthesize_gui

    del words
    options = GuiOptions(
        seed, limit, _listed(sites), _listed(kinds), layouts, _listed(faults), prove, concurrency
    )
    asyncio.run(synthesize_gui(session, options))


def import_rows(
    session: Session,
    words: Sequence[str],
    strict: bool,
    *,
    source: str = "",
    column: Annotated[
        list[str] | None, typer.Option(help="PART=COLUMN where names differ. Repeatable.")
    ] = None,
) -> None:
    from orchard.domains.gui.funnel import columns_of
    from orchard.pipelines.domains.gui.web_rows import task_from_web_row

    if len(words) < 2:
        raise ConfigError(f"name the file of the rows: `orchard tasks import {words[0]} FILE`")
    read = partial(task_from_web_row, family=words[0], source=source, columns=columns_of(column or []))
    import_shown_rows(session, Path(words[1]), read, strict=strict, then="Run them with --unproven")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())
