"""What `status` and `watch` print with `--json`."""

import msgspec

from orchard.actions.campaign_hints import hints, hints_on
from orchard.actions.campaign_status import CampaignView, PipelineView, Status
from orchard.actions.campaigns import StoreStatus


class StatusFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard status --json`."""

    held: str
    """Reason why nothing is published; empty without one."""
    campaigns: list[CampaignView]
    """All campaigns."""
    pipeline: PipelineView | None
    """State that all campaigns share; None where no pipeline runs, so that the tables are read."""
    tasks: int
    """Number of tasks; counted only without a campaign."""
    proven_tasks: int
    """Number of those that are proven."""
    hints: list[str]
    """Advice, a sentence each."""


class WatchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `orchard watch --json`."""

    campaign: CampaignView
    pipeline: PipelineView
    hints: list[str]
    """Advice, a sentence each."""


def status_facts(found: StoreStatus) -> StatusFacts:
    """The facts of `status`."""
    return StatusFacts(
        held=found.held,
        campaigns=found.campaigns,
        pipeline=found.pipeline,
        tasks=found.tasks[0],
        proven_tasks=found.tasks[1],
        hints=hints_on(found.campaigns, found.pipeline),
    )


def watch_facts(status: Status) -> WatchFacts:
    """The facts of a campaign that is followed."""
    view = status.campaigns[0]
    return WatchFacts(campaign=view, pipeline=status.pipeline, hints=hints(view, status.pipeline))
