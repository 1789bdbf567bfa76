"""Exports groups of a reinforcement-learning run for other trainers."""

from pathlib import Path

import msgspec

from orchard.actions.reporter import SILENT, Reporter
from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.exchange import LAYOUTS, UNEQUAL, Terms
from orchard.pipelines.rl.external_trainer import exported
from orchard.pipelines.rl.loss_settings import Baseline
from orchard.pipelines.rl.runs import planned
from orchard.schemas.groups import GroupDropped


async def export_groups(
    session: Session,
    run: str,
    out: Path,
    layout: str,
    baseline: Baseline | None,
    told: Reporter = SILENT,
) -> tuple[int, dict[str, list[GroupDropped]]]:
    """Writes a run's groups for another trainer. Returns the number of records, and of skipped groups by
    reason.

    Raises RunError for a run that cannot be written so, and ConfigError for an unknown layout.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"no layout is named {layout!r}: choose one of {', '.join(LAYOUTS)}")
    written, skipped = 0, dict[str, list[GroupDropped]]()
    async with session.connection_or_server("rl export") as connection:
        known = await planned(connection, session.blobs, run)
        if known is None:
            raise RunError(
                f"the log has no run {run!r}: name one that `orchard rl` has started on this store"
            )
        plan, start = known
        if layout == "slime" and plan.frugal is not None:
            raise RunError(UNEQUAL)
        if baseline and baseline is not (plan.baseline or baseline):
            raise RunError(f"the advantages of run {run!r} are `{plan.baseline}`: leave --baseline out")
        if not (plan.baseline or baseline):
            told.note(
                f"the plan of run {run!r} is too old to say how its trainer made advantages: these are "
                "`normalized`, --baseline names another way",
                "note:",
            )
        temperature = 1.0 if plan.model.temperature is None else plan.model.temperature
        terms = Terms(
            plan.slots, plan.baseline or baseline or Baseline.NORMALIZED, temperature, plan.overlong
        )
        with out.open("wb") as file:
            async for one in exported(connection, plan, start, session.blobs, whole=layout == "slime"):
                if isinstance(one, GroupDropped):
                    skipped.setdefault(one.reason, []).append(one)
                    continue
                for record in LAYOUTS[layout](*one, terms):
                    file.write(msgspec.json.encode(record) + b"\n")
                    written += 1
    return written, skipped
