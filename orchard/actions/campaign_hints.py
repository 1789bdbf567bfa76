"""Advice on a campaign or the pipeline, as sentences for terminal and page."""

from collections.abc import Iterable

from orchard.actions.abort_reasons import abort_sentence, retry_sentence
from orchard.actions.campaign_status import CampaignView, PipelineView, State
from orchard.actions.submission import how_to_serve
from orchard.pipelines.campaigns.spending import how_to_go_on

LAG_SECONDS = 60.0
"""Age in seconds of an event outside the tables from which the writer counts as late."""


def hints(view: CampaignView, pipeline: PipelineView) -> list[str]:
    """Advice, a sentence each."""
    found = [*pipeline.sick, *pipeline.rests, *(team.sentence for team in pipeline.teams if team.sentence)]
    if view.state is State.STUCK:
        found.append(f"{view.name}: no worker serves its queue: {how_to_serve(view.queue)}")
    if view.unsubmitted and view.state in (State.RUNNING, State.STUCK):
        found.append(
            f"{view.name}: {view.unsubmitted:,} rollouts are not submitted yet: the command that makes its "
            "tasks adds them; run it again if it was stopped"
        )
    found += [*queue_hints(view), *abort_hints(view), *retry_hints(view, pipeline)]
    if view.blocked and view.over:
        found.append(
            f"{view.name}: {view.blocked:,} rollouts were kept out by their sites, and are in no rate: "
            f"`orchard resume {view.name}` tries them again"
        )
    if view.state is State.PAUSED and view.reason:
        found.append(f"{view.name} is paused, because {view.reason}: {how_to_go_on(view.name, view.reason)}")
    elif view.state in (State.PAUSED, State.CANCELLED):
        found.append(f"{view.name} is {view.state}: `orchard resume {view.name}` continues it")
    if view.cap_usd is not None and view.spent is not None and view.spent.unpriced:
        found.append(
            f"{view.name}: {view.spent.unpriced:,} model calls have no known cost: its cap does not see them"
        )
    for endpoint, model in view.untold:
        found.append(
            f"{view.name}: {model} at endpoint {endpoint} is not told of its tools, since its chat template "
            "has no place for them: serve it with one that has, or take a harness without tools"
        )
    if view.tried_impossible:
        found.append(
            f"{view.name}: {view.hacks:,} of {view.tried_impossible:,} rollouts of impossible tasks passed "
            f"({view.hacks / view.tried_impossible:.1%}), which is cheating: `orchard tasks hacks` shows who"
        )
    if view.reconciled:
        found.append(
            f"{view.name}: {view.reconciled:,} rollouts were in no queue and were offered again: please "
            "report this, with the log of the steward"
        )
    if pipeline.dead_letters:
        found.append("dead letters: `orchard dead list` shows them")
    if pipeline.lag_seconds > LAG_SECONDS:
        found.append("the writer is late: `orchard doctor` and its log say why; nothing is lost meanwhile")
    return found


def hints_on(views: Iterable[CampaignView], pipeline: PipelineView | None) -> list[str]:
    """Advice on campaigns, each sentence once; without a pipeline only what the tables give."""
    found = [hint for view in views for hint in (hints(view, pipeline) if pipeline else abort_hints(view))]
    return list(dict.fromkeys(found))


def queue_hints(view: CampaignView) -> list[str]:
    """Why no rollout of a running campaign runs: those of others come first."""
    if not view.ahead or view.running or view.state is not State.RUNNING:
        return []
    others = "rollout of another campaign is" if view.ahead == 1 else "rollouts of other campaigns are"
    return [f"{view.name} waits its turn: {view.ahead:,} {others} ahead in the queue"]


def abort_hints(view: CampaignView) -> list[str]:
    """Why rollouts were aborted and what to do, unless a pause says it already."""
    sentence = abort_sentence(view.reasons, view.name)
    paused = view.state is State.PAUSED and view.reasons and view.reasons[0].detail in view.reason
    said = view.state is State.CANCELLED or paused
    return [f"{view.name}: {sentence}"] if sentence and not said else []


def retry_hints(view: CampaignView, pipeline: PipelineView) -> list[str]:
    """Why open rollouts are retried and what to do, unless a resting endpoint says it already."""
    told = tuple(f"{rest.partition(' rests ')[0]} rests" for rest in pipeline.rests)
    sentence = retry_sentence(
        [one for one in view.retrying if not one.detail.replace("'", "").startswith(told)]
    )
    return [f"{view.name}: {sentence}"] if sentence else []
