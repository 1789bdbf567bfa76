"""Steps of the assistants' example: small worlds of services, errands in them, copying drills."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.example import Example
from orchard.domains.claw.synthesis import SEEDED, with_progress
from orchard.pipelines.campaigns.scores import Score
from orchard.pipelines.datasets.importing import import_trajectories
from orchard.pipelines.domains.claw.author import Author, mistake_of
from orchard.pipelines.domains.claw.drills import drills as drawn
from orchard.pipelines.domains.claw.errands import Errands
from orchard.pipelines.domains.claw.loop import SynthesisGoal
from orchard.pipelines.domains.swe.released_rows import released
from orchard.pipelines.evaluation.results import CellComparison, Results, paired
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher

HARNESSES = ("claw-react", "mcp-loop")
"""Harnesses: errands are taught in both, and reinforced in the first."""
SFT, RL = "sft", "rl"
"""Policies before and after reinforcement learning; their endpoints have the same names."""


def names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Folder of the policies and names of the runs; further starts share worlds, log and drills with the
    first."""
    seed, start = values["seed"], values["start"]
    home = Path(values["store"]) / f"demo-claw-{seed}"
    again = f"-start-{start}" if start else ""
    return {
        "models": str(home / f"start-{start}" if start else home),
        "again": f"{seed}{again}",
        "weights": seed + 1000 * start,
    }


def _errands(values: Mapping[str, Any]) -> tuple[Errands, Errands]:
    """Plans errands for training, and errands for evaluation without a statement of the first."""
    seed = values["seed"]
    train = Errands(2 * seed + 1, values["worlds"], guesses=values["guesses"])
    known = train.statements(10 * values["tasks"])
    return train, Errands(2 * seed + 2, values["held_out_worlds"], guesses=0.0, without=known)


async def tasks(
    example: Example, *, held_out: bool, run: str, count: int, rollouts: int, **values: Any
) -> list[str]:
    """Runs the synthesis with the seeded author and returns the ids of accepted tasks."""
    errands = _errands(values)[held_out]
    wanted = SynthesisGoal(
        run=run,
        author=SEEDED,
        solver=SEEDED,
        tasks=count,
        seed=errands.seed,
        rollouts=rollouts,
        harnesses=HARNESSES[:1] if held_out else HARNESSES,
        slots=values["slots"],
    )
    made = await with_progress(example.session, wanted, Author(errands, values["mistakes"]))
    return [task.task_id for task in made.tasks]


async def drills(example: Example, *, seed: int, count: int, campaigns: Sequence[str]) -> None:
    """Imports short and long drills into the log as external data."""
    session = example.session
    async with session.connection("example") as connection:
        for long, campaign in enumerate(campaigns):
            await import_trajectories(
                Publisher(connection),
                session.blobs,
                released(drawn(seed, count, long=bool(long)), HARNESSES[0]),
                campaign=campaign,
                dataset=campaign,
            )
        await session.committed(connection)


_SOLVED = "select distinct task_id from rollouts where campaign = ? and resolved"


async def prompts(
    example: Example, *, ids: list[str], campaign: str, unsolved: bool, least: int
) -> list[str]:
    """Tasks of reinforcement learning: all, or those without a solution in the log that the policy could
    have memorized."""
    if not unsolved:
        return ids
    with open_tables(example.config.store) as tables:
        solved = {task for (task,) in tables.execute(_SOLVED, [campaign]).fetchall()}
    return left_over(ids, solved, least)


def left_over(ids: list[str], solved: set[str], least: int) -> list[str]:
    """Selects the ids that are not solved, or all if fewer than `least` are left."""
    left = sorted({*ids} - solved)
    return left if len(left) >= least else ids


_SLOTS = """
select campaign, slot, bool_or(step = 'accept'), bool_or(step = 'accept' and seeded_mistake is not null)
from synthesis where list_contains(?, campaign) group by 1, 2
"""
_LOOKS = """
select r.model, avg(coalesce(m.tool_calls[1].name like '%_list_%', false)::int)
from messages m join rollouts r using (rollout_id)
where r.campaign = ? and r.harness = ? and m.role = 'assistant' and m.turn = 1 group by 1
"""


async def figures(
    example: Example, *, runs: list[str], matrix: str, results: Results, **values: Any
) -> dict[str, Any]:
    """Counts of accepted worlds and tasks, the author's mistakes, and the policies' first actions."""
    with open_tables(example.config.store) as tables:
        slots = tables.execute(_SLOTS, [runs]).fetchall()
        looks: dict[str, float] = dict(tables.execute(_LOOKS, [matrix, HARNESSES[0]]).fetchall())
    of = dict(zip(runs, _errands(values), strict=True))
    return {
        "worlds": len({(run, of[run].world(slot)) for run, slot, accepted, _ in slots if accepted}),
        "tasks": sum(accepted for _, _, accepted, _ in slots),
        "mistakes": sum(
            mistake_of(of[run].seed, slot, values["mistakes"]) is not None for run, slot, *_ in slots
        ),
        "missed": sum(missed for *_, missed in slots),
        "looks": looks,
        "gain": gain(results),
        "scores": {policy: pass_rate(results, policy) for policy in (SFT, RL)},
    }


def pass_rate(results: Results, policy: str) -> Score:
    """pass@1 in the harness of the training. Raises StopIteration if nothing was graded."""
    return next(
        score
        for cell in results.cells
        if (cell.model, cell.harness) == (policy, HARNESSES[0])
        for score in [cell.pass_at(1)]
        if score is not None
    )


def gain(results: Results) -> CellComparison:
    """Compares RL and SFT task by task in the harness of the training."""
    cells = {cell.model: cell for cell in results.cells if cell.harness == HARNESSES[0]}
    found = paired(cells[SFT], cells[RL])
    assert found is not None
    return found
