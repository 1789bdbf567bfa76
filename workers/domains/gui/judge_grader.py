"""The grader `gui-judge`: a judging model decides whether a browser agent did what it was asked."""

from orchard.schemas.gui import reward
from orchard.schemas.judging import GuiJudging
from orchard.schemas.outcomes import AbortCause, Reward
from orchard.workers.domains.gui.evidence import NoOutcome, read_outcome, rule_outcome
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders.judgement import Judgement

NAME = "gui-judge"


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
        verdict = await rule_outcome(
            judgement.judges, judgement.task.statement, outcome, judgement.blobs, settings.protocol
        )
        return Reward(
            value=reward(outcome, verdict.passed),
            resolved=verdict.passed,
            grader=NAME,
            parts={"judged": verdict.score, "parsed": float(outcome.parsed)},
            detail=verdict.reason,
            judge=judgement.judged,
        )
