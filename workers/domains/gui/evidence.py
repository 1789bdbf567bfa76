"""What a judge is shown of a browser agent's work: the evidence in what a rollout hands in."""

import asyncio
import base64
from collections.abc import Iterator

import msgspec

from orchard.schemas.decoding import Unreadable, decode_whole
from orchard.schemas.gui import GuiSubmission
from orchard.schemas.judging import JudgeVerdict
from orchard.schemas.messages import Image
from orchard.storage.blobs import BlobStore
from orchard.workers.failures import storing
from orchard.workers.judges.interface import Evidence, Picture, indented
from orchard.workers.judges.ruling import Judges

OUTCOME = "outcome"
"""Name of the judgement on a whole rollout."""
_OUTCOMES = msgspec.json.Decoder(GuiSubmission)
_RESULT, _THOUGHT = 500, 2000
"""Characters of one result and of one thought that a judge is shown."""


class NoOutcome(ValueError):
    """A submission that no browser agent handed in."""


def read_outcome(submission: bytes) -> GuiSubmission:
    """What a rollout handed in. Raises NoOutcome."""
    try:
        return decode_whole(_OUTCOMES, submission)
    except Unreadable as error:
        raise NoOutcome(f"the submission is not that of a browser agent: {error}") from error


async def rule_outcome(
    judges: Judges, statement: str, outcome: GuiSubmission, blobs: BlobStore, protocol: str
) -> JudgeVerdict:
    """The verdict on a rollout, by the protocol of that name. Raises InfrastructureError as `Judges.rule`,
    and with STORE_FAILED where a screenshot cannot be read."""
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


def _picture(blobs: BlobStore, number: int, image: Image) -> Picture:
    data = base64.b64encode(blobs.get(image.blob)).decode()
    return Picture(base64=data, media_type=image.media_type, label=f"screenshot {number}")


def _thoughts(outcome: GuiSubmission) -> Iterator[str]:
    for number, step in enumerate(outcome.steps, 1):
        if step.thought:
            yield f"[step {number}] {indented(step.thought[:_THOUGHT], 4)}"


def _actions(outcome: GuiSubmission) -> Iterator[str]:
    for number, step in enumerate(outcome.steps, 1):
        if not step.calls:
            yield f"{number}. (an answer without an action that could be read)"
        for place, (tool, arguments) in enumerate(step.calls):
            result = step.results[place] if place < len(step.results) else "(not executed)"
            yield f"{number}. {indented(tool, 9)}"
            yield f"   arguments: {indented(arguments[:_RESULT], 9)}"
            yield f"   result: {indented(result[:_RESULT], 9)}"
