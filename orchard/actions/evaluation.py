"""Runs evaluation suites as campaigns, and chooses among attempts."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import msgspec

from orchard.actions.campaigns import campaign_spec, resume_campaign, submit_campaign
from orchard.actions.reporter import SILENT, Reporter
from orchard.actions.session import Session
from orchard.pipelines.evaluation.best_of import BestOf, best_of
from orchard.pipelines.evaluation.plan import SuitePlan, gone_on, is_plan_of
from orchard.pipelines.reranking.attempts import GradedAttempt, conversations, features, whole_submission
from orchard.pipelines.tasks.registry import needs_of
from orchard.schemas.campaigns import EvaluationPlanned, spec_hash
from orchard.schemas.events import make_event
from orchard.schemas.identity import digest
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.campaigns import CampaignBook
from orchard.streams.publisher import Publisher


def choose_best(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, campaign: str, k: int, rerank: Path | None
) -> list[BestOf]:
    """Ways to choose one of `k` attempts, by the value model in a directory too. Raises EvaluationError,
    RerankError."""
    if rerank is None:
        return best_of(tables, blobs, campaign, k)
    from orchard.pipelines.reranking.model import load_reranker  # only here: torch takes seconds to import

    model, manifest = load_reranker(rerank)

    def score(attempts: Sequence[GradedAttempt]) -> dict[str, float]:
        read = {
            one.rollout_id: features(path, whole_submission(one, blobs), one.exit_status)
            for one, path in conversations(tables, blobs, attempts)
        }
        return dict(zip(read, model.scores(list(read.values())), strict=True))

    return best_of(tables, blobs, campaign, k, score, frozenset(manifest.tasks))


class _Standing(NamedTuple):
    """What the tables have of a suite."""

    ended: int
    aborted: int
    recorded: str | None
    """SHA-256 of the recorded suite."""


async def begin_suite(
    session: Session, plan: SuitePlan, told: Reporter = SILENT, *, retry_aborted: bool = False
) -> None:
    """Submits or resumes a suite, and records its plan in the log. With all outcomes there nothing is run,
    in whatever state its campaign is; with `retry_aborted` the aborted rollouts are tried again."""
    name = plan.suite.name
    blob = session.blobs.put(msgspec.json.encode(plan.suite), "application/json")
    spec, cap, whole, over = plan.spec, None, False, False
    async with session.connection("eval") as connection:
        known = await CampaignBook(connection).get(name)
        if known is not None:
            await session.committed(connection)
    if known is not None:
        made = await campaign_spec(session, known[0])
        spec, cap = gone_on(made, known[0].max_cost_usd, plan.spec)
        now = await asyncio.to_thread(_standing, session.config.store, name)
        whole = is_plan_of(plan.spec, made) and now.ended >= spec.size
        over = whole and not (retry_aborted and now.aborted)
        if over and now.recorded == blob.sha256:
            return
    if cap is not None and not over:
        await resume_campaign(session, name, max_cost_usd=cap, told=told)
    if not whole:
        await submit_campaign(session, spec, needs_of(session.config.store, spec.tasks), told)
    async with session.connection("eval") as connection:
        data = EvaluationPlanned(
            suite=blob,
            task_sets={each.source: each.title for each in plan.suite.task_sets},
            k=plan.suite.reported,
            arms=plan.suite.arm_of,
        )
        event_id = digest(["evaluation.planned", name, spec_hash(spec), blob.sha256])
        await Publisher(connection).event(make_event(data, id=event_id, source="orchard/eval", campaign=name))
    if not over:
        await resume_campaign(session, name, told=told)


def _standing(store: str, name: str) -> _Standing:
    query = """
    select count(*), count(*) filter (status = 'aborted' and cause <> 'blocked'),
           (select any_value(suite_sha256) from evaluations where campaign = $name)
    from rollouts where campaign = $name
    """
    with open_tables(store, views=["rollouts", "evaluations"]) as tables:
        found = tables.execute(query, {"name": name}).fetchone()
    assert found is not None
    return _Standing(*found)
