"""`tasks synthesize claw` and `tasks import claw-eval`."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.schemas.claw_eval import NAME
from orchard.terminal.left_out import import_shown


def synthesize(
    session: Session,
    words: Sequence[str],
    limit: int,
    concurrency: int,
    *,
    run: Annotated[str, typer.Option(help="name of the run; the same name resumes it.")] = "synthesis",
    seed: Annotated[int, typer.Option(help="the same seed gives the same tasks.", min=0)] = 0,
    author: Annotated[
        str, typer.Option(help="model that writes.", show_default="the seeded author, no model")
    ] = "",
    solver: Annotated[str, typer.Option(help="model that solves.", show_default="the author")] = "",
    endpoint: Annotated[str, typer.Option(help="endpoint of both models.")] = "default",
    rollouts: Annotated[int, typer.Option(help="of the solver, for each task.", min=1)] = 3,
) -> None:
    from orchard.domains.claw.synthesis import Options, synthesize_claw

    del words
    options = Options(run, limit, seed, author, solver, endpoint, rollouts, concurrency)
    asyncio.run(synthesize_claw(session, options))


def import_checkout(
    session: Session,
    words: Sequence[str],
    strict: bool,
    *,
    image: str = "",
    source: str = "",
    python: Annotated[
        str, typer.Option(help="interpreter in the image that has what it imports.")
    ] = "python3",
    error_rate: Annotated[float, typer.Option(help="ERROR_RATE of the mock services.", min=0, max=1)] = 0.0,
) -> None:
    from orchard.pipelines.domains.claw.claw_eval import CheckoutOptions, read_checkout

    if len(words) < 2:
        raise ConfigError("name your checkout: `orchard tasks import claw-eval DIRECTORY`")
    root = Path(words[1])
    reading = CheckoutOptions(
        image=image or "host", python=python, error_rate=error_rate, source=source or NAME
    )
    read = read_checkout(root.resolve(), session.blobs.put, reading)
    judged = sum(task.labels["judge"] == "yes" for task in read.tasks)
    online = sum(task.labels["internet"] == "yes" for task in read.tasks)
    then = (
        f"{judged} need a judge (judge.model in orchard.toml), {online} the internet. Run them with: "
        f"orchard submit NAME --model MODEL --harness claw-react --source {reading.source} --unproven"
    )
    import_shown(
        session,
        lambda: read.tasks,
        len(read.tasks),
        read.left_out,
        source=str(root),
        strict=strict,
        then=then,
    )
