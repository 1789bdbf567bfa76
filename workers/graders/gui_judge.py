"""The grader `gui-judge`: a judging model decides whether a browser agent did what it was asked."""

import asyncio

from orchard.schemas.gui import GuiOutcome, reward
from orchard.schemas.judging import GuiJudging, Verdict
from orchard.schemas.outcomes import AbortCause, Reward
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders.plugin import Judgement
from orchard.workers.judges.ruling import Judges
from orchard.workers.judges.screens import NoOutcome, read_outcome, rule_outcome

NAME = "gui-judge"
OUTAGE = (15.0, 60.0, 240.0)
"""Seconds before a judge that is down is asked again: an episode in a browser cannot be replayed, so another
attempt would play it anew."""


class GuiJudgeGrader:
    """+1 for a success in which each answer could be acted on, -1 for a format failure, else 0."""

    name = NAME
    in_place = True
    """It looks into no sandbox, so none is made for it."""
    settings = GuiJudging

    async def grade(self, settings: GuiJudging, judgement: Judgement) -> Reward:
        """See Grader. A format failure is known without a judge."""
        try:
            outcome = read_outcome(judgement.submission.encode())
        except NoOutcome as error:
            raise InfrastructureError(AbortCause.GRADER_FAILED, str(error)) from error
        value = reward(outcome, success=False)
        if value < 0:
            return Reward(value=value, resolved=False, grader=NAME, detail="too many answers had no action")
        if judgement.judges is None:
            raise InfrastructureError(
                AbortCause.JUDGE_FAILED, f"{NAME} needs a judge, and there is none here"
            )
        verdict = await _verdict(judgement.judges, outcome, judgement, settings.protocol)
        return Reward(
            value=reward(outcome, verdict.passed),
            resolved=verdict.passed,
            grader=NAME,
            parts={"judged": verdict.score, "parsed": float(outcome.parsed)},
            detail=verdict.reason,
            judge=judgement.judged,
        )


async def _verdict(judges: Judges, outcome: GuiOutcome, judgement: Judgement, protocol: str) -> Verdict:
    """Raises InfrastructureError: JUDGE_FAILED at once where a judge that answers gave no verdict, and after
    OUTAGE, or as much of it as the judgement has time for, where none answered."""
    clock = asyncio.get_running_loop().time
    waits, ends = iter(OUTAGE), clock() + judgement.timeout
    while True:
        try:
            return await rule_outcome(judges, judgement.task.statement, outcome, judgement.blobs, protocol)
        except InfrastructureError as error:
            why = error.__cause__
            down = isinstance(why, InfrastructureError) and why.cause is AbortCause.LLM_UNAVAILABLE
            if not down or (seconds := next(waits, None)) is None or clock() + seconds >= ends:
                raise
        await asyncio.sleep(seconds)
