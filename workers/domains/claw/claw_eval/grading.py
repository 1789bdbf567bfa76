"""The grader `claw-eval`: runs a task's own `grader.py` in the grading sandbox, with the checkout's
package."""

from pathlib import Path
from typing import Any

import msgspec

from orchard.schemas.claw_eval import EVAL_BUNDLES, NAME, ROOT, ClawEvalTests
from orchard.schemas.decoding import Unreadable, decode_whole
from orchard.schemas.outcomes import AbortCause, Reward
from orchard.workers.domains.claw.claw_eval import wrapper
from orchard.workers.domains.claw.claw_eval.checkout import unpack
from orchard.workers.domains.claw.grading import PASSING_SCORE, combined, read_returned, reward
from orchard.workers.domains.claw.script_runner import Question, ScriptLimits, failed, run_script
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders.judgement import Judgement
from orchard.workers.judges.rubric import REPLIES

GRADERS = {"claw-eval": "ClawEvalGrader"}

_WRAPPER = Path(wrapper.__file__).read_text(encoding="utf-8")
_MEMORY = 2 << 30
_SCRIPT = "grader.py"


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[dict[str, Any]]
    tries: int
    """Number of answers to these messages that the grader had before."""


class ClawEvalGrader:
    """The reward is +1 and resolved if the task score reaches 0.75, Claw-Eval's threshold, else -1. A rollout
    that ran out of time is graded, as in Claw-Eval's runner."""

    name = NAME
    in_place = False
    settings = ClawEvalTests

    async def grade(self, settings: ClawEvalTests, judgement: Judgement) -> Reward:
        try:
            bundle = decode_whole(EVAL_BUNDLES, judgement.submission.encode())
        except (Unreadable, UnicodeEncodeError) as error:
            raise InfrastructureError(
                AbortCause.GRADER_FAILED, f"the submission is no bundle of Claw-Eval: {error}"
            ) from error
        checkout = settings.checkout
        await unpack(judgement.blobs, checkout, judgement.machine)
        judges = judgement.judges
        seen = {
            **msgspec.to_builtins(bundle),
            "folder": f"{ROOT}/{checkout.directory}",
            "local_grader_files": settings.local_grader_files,
            "judged": judges is not None and judges.configured,
        }

        async def answer(question: Question) -> dict[str, str]:
            try:
                asked = msgspec.convert(question.parts, _Asked)
            except msgspec.ValidationError as error:
                raise failed(_SCRIPT, f"it asks a judge with what are no messages: {error}") from error
            if asked.tries >= REPLIES:
                raise InfrastructureError(
                    AbortCause.JUDGE_FAILED, f"the grader could use none of the judge's {REPLIES} answers"
                )
            return {"text": await judgement.ask(_SCRIPT, asked.messages)}

        limits = ScriptLimits(
            seconds=min(settings.timeout_seconds, judgement.timeout),
            memory=_MEMORY,
            programs=True,
            paths=(f"{ROOT}/src", ROOT),
        )
        ran = await run_script(
            judgement.machine,
            _SCRIPT,
            _WRAPPER,
            msgspec.json.encode(seen),
            limits=limits,
            ask=answer,
            python=checkout.python,
        )
        returned = {_SCRIPT: read_returned(_SCRIPT, ran.result)}
        scores = combined(returned, ())
        passed = scores.task_score >= PASSING_SCORE
        scores = msgspec.structs.replace(
            scores, passed=passed, tests={_SCRIPT: "PASSED" if passed else "FAILED"}
        )
        return await reward(judgement, NAME, scores, returned, {_SCRIPT: ran}, resolved=passed)
