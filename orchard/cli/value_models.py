"""`values train`: a value model that ranks finished attempts."""

from pathlib import Path
from typing import Annotated

import typer

from orchard.actions.session import Session
from orchard.pipelines.values.rubric_writer import campaign_tasks
from orchard.storage.reader import open_tables, position
from orchard.terminal.console import console


def register(app: typer.Typer) -> None:
    app.command()(train)


def train(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="Directory of the model.", file_okay=False)],
    campaigns: Annotated[list[str], typer.Argument(help="Campaigns whose graded rollouts train it.")],
    measured: Annotated[
        bool,
        typer.Option("--measured", help="Learn measured values of steps, in place of outcomes."),
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Campaign, such as an evaluation, whose tasks do not train.", show_default="none"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split by task, and of the model.")] = 0,
) -> None:
    """Train a small value model of finished attempts, for `orchard eval report NAME --best-of 8 --rerank`.

    It reads what an attempt said, did and submitted, and neither tests nor known solutions. A fifth of the
    tasks does not train, and tells how well it orders attempts.

    For example:

        orchard values train reranker first --without evaluation
    """
    from orchard.pipelines.reranking.training import (
        train_reranker,
    )  # only here: torch takes seconds to import

    session: Session = context.obj
    with open_tables(session.config.store) as tables:
        held_out = {task.task_id for name in without or [] for task in campaign_tasks(tables, name)}
        manifest = train_reranker(
            tables,
            session.blobs,
            out,
            campaigns,
            labels="measured" if measured else "outcomes",
            without=held_out,
            seed=seed,
            as_of=position(session.config.store).plain,
        )
    judged = manifest.held_out
    order = "no pairs to judge it by" if judged.ordered is None else f"{judged.ordered:.1%} in their order"
    console.print(
        f"{manifest.pairs:,} pairs of {len(manifest.tasks):,} tasks trained it; of {judged.tasks:,} other "
        f"tasks, {judged.pairs:,} pairs: {order}; {out}, {manifest.digest[:12]}",
        highlight=False,
        soft_wrap=True,
    )
