"""The grader `gui-judge`, and the evidence that judges see: screenshots, actions and the answer."""

import asyncio
import base64
from collections.abc import Iterator

import msgspec

from orchard.schemas.decoding import Unreadable, decode_whole
from orchard.schemas.gui import GuiSubmission, reward
from orchard.schemas.judging import GuiJudging, JudgeVerdict
from orchard.schemas.messages import Image
from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.protection import Protected
from orchard.storage.blobs import BlobStore
from orchard.workers.failures import InfrastructureError, storing
from orchard.workers.graders.judgement import Judgement
from orchard.workers.judges.interface import Evidence, EvidencePicture, indented
from orchard.workers.judges.ruling import Judges

GRADERS = {"gui-judge": "GuiJudgeGrader"}

NAME = "gui-judge"
OUTCOME = "outcome"
"""Name of the judgement on a whole rollout."""
_OUTCOMES = msgspec.json.Decoder(GuiSubmission)
_RESULT, _THOUGHT = 500, 2000
"""Maximum characters of one result and of one thought in the evidence."""


class NoOutcome(ValueError):
    pass


def read_outcome(submission: bytes) -> GuiSubmission:
    try:
        return decode_whole(_OUTCOMES, submission)
    except Unreadable as error:
        raise NoOutcome(f"the submission is not that of a browser agent: {error}") from error


async def rule_outcome(
    judges: Judges, statement: str, outcome: GuiSubmission, blobs: BlobStore, protocol: str
) -> JudgeVerdict:
    """Asks the judges by the named protocol. Raises InfrastructureError as `Judges.rule`, and with
    STORE_FAILED if a screenshot cannot be read."""
    images = list(enumerate(outcome.screenshots))
    wanted: int | None = getattr(judges.protocol(protocol), "pictures", None)
    if wanted is not None:
        images = images[-wanted:]
    with storing("a screenshot"):
        pictures = [await asyncio.to_thread(_picture, blobs, step, image) for step, image in images]
    evidence = Evidence(
        task=statement,
        transcript="\n".join(_thoughts(outcome)),
        actions="\n".join(_actions(outcome)),
        answer=outcome.answer or "",
        pictures=tuple(pictures),
    )
    return await judges.rule(OUTCOME, evidence, protocol)


class GuiJudgeGrader:
    """The reward is +1 for a success in which every answer had a call, -1 for a format failure, else 0."""

    name = NAME
    in_place = True
    """No sandbox is opened for grading, because this grader looks at none."""
    settings = GuiJudging

    async def grade(self, settings: GuiJudging, judgement: Judgement) -> Reward:
        """A format failure is graded without asking a judge."""
        try:
            outcome = read_outcome(judgement.submission.encode())
        except NoOutcome as error:
            raise InfrastructureError(AbortCause.GRADER_FAILED, str(error)) from error
        value = reward(outcome, success=False)
        if value < 0:
            return Reward(value=value, resolved=False, grader=NAME, detail="too many answers had no action")
        if judgement.judges is None:
            raise InfrastructureError(
                AbortCause.JUDGE_FAILED,
                f"the grader {NAME} needs a judge, and none is configured: name its endpoint in [judge]",
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
            protected=Protected.INSIDE,  # the judge sees what the agent's browser shows, and reads its words
        )


def _picture(blobs: BlobStore, number: int, image: Image) -> EvidencePicture:
    data = base64.b64encode(blobs.get(image.blob)).decode()
    return EvidencePicture(base64=data, media_type=image.media_type, label=f"screenshot {number}")


def _thoughts(outcome: GuiSubmission) -> Iterator[str]:
    for number, step in enumerate(outcome.steps, 1):
        if step.thought:
            yield f"[step {number}] {indented(step.thought[:_THOUGHT], 4)}"


def _actions(outcome: GuiSubmission) -> Iterator[str]:
    for number, step in enumerate(outcome.steps, 1):
        if not step.calls:
            yield f"{number}. (an answer without an action that could be read)"
        for index, (tool, arguments) in enumerate(step.calls):
            result = step.results[index] if index < len(step.results) else "(not executed)"
            yield f"{number}. {indented(tool, 9)}"
            yield f"   arguments: {indented(arguments[:_RESULT], 9)}"
            yield f"   result: {indented(result[:_RESULT], 9)}"
