"""The grader `sites`: compares a site's records, and the answer, with what the task expects. It uses neither
a model nor a sandbox."""

import re
from typing import Any

import msgspec

from orchard.schemas.decoding import Unreadable, decode_whole
from orchard.schemas.gui import NAME, ExpectedAnswer, Records, SiteGrading
from orchard.schemas.outcomes import AbortCause, ExitStatus, Reward
from orchard.schemas.protection import Protected
from orchard.schemas.tasks import PluginGrading, Task
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders.judgement import Judgement

GRADERS = {"sites": "SitesGrader"}

_NUMBER = re.compile(r"-?\d+(?:[.,:]\d+)*")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_WORDS = re.compile(r"[\w.,:-]+")


class SiteSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a browser rollout's submission that this grader reads."""

    records: Records | None
    """None means that no site of the task was open."""
    ended: str
    """The rollout's ExitStatus as text."""
    answer: str | None = None
    """The argument of the `done` call."""
    parsed: bool = True
    """Whether every turn of the model had a valid call."""


def expected_of(task: Task) -> SiteGrading:
    """Reads a task's grading settings. Raises ValueError for a task without this grader."""
    if not isinstance(task.grading, PluginGrading) or task.grading.grader != NAME:
        raise ValueError(f"{task.task_id} is no task on a generated site")
    return msgspec.convert(task.grading.settings, SiteGrading)


_HANDED = msgspec.json.Decoder(SiteSubmission)


LONGEST = 4000
"""Maximum characters of an answer; a longer one is wrong."""


class SitesGrader:
    """The reward is +1 if the task is done and every turn was parsed, -1 for a format failure, else 0."""

    name = NAME
    in_place = True
    """No sandbox is opened for grading, because this grader looks at none."""
    settings = SiteGrading

    async def grade(self, settings: SiteGrading, judgement: Judgement) -> Reward:
        """Raises GRADER_FAILED if the submission holds no records of this site."""
        return graded(settings, read_submission(judgement.submission))


def read_submission(submission: str) -> SiteSubmission:
    """Decodes a rollout's submission. Raises GRADER_FAILED if it holds no records of a site."""
    try:
        return decode_whole(_HANDED, submission.encode())
    except (Unreadable, UnicodeEncodeError) as error:
        raise _failed(f"the submission is no record of a site: {error}") from error


def graded(expected: SiteGrading, handed: SiteSubmission) -> Reward:
    """Computes the reward. Raises GRADER_FAILED as SitesGrader does."""
    if handed.records is None or handed.records.keys() != expected.records.keys():
        raise _failed(f"the records are none of the site {expected.site.name}")
    wrong = differences(expected.records, handed.records)
    checks = {f"records: {key}": key not in wrong for key in expected.records}
    if expected.answer is not None:
        checks["answer"] = answered(expected.answer, handed.answer or "")
    solved = all(checks.values())
    finished = handed.ended == ExitStatus.FINISHED
    value = 1.0 if solved and finished and handed.parsed else 0.0
    if handed.ended == ExitStatus.FORMAT_FAILURE:
        value = -1.0
    return Reward(
        value=value,
        resolved=solved and finished,
        grader=NAME,
        parts={"records": float(not wrong), "parsed": float(handed.parsed)},
        tests={name: "PASSED" if held else "FAILED" for name, held in checks.items()},
        detail="; ".join(f"{key}: {said}" for key, said in wrong.items())[:2000],
        protected=Protected.BIT,  # the worker's records; how much of them must be known is not measured
    )


def differences(expected: Records, found: Records) -> dict[str, str]:
    """Maps each record that differs to a sentence about it. Changes beyond the task are differences, too."""
    return {
        key: f"should be {_short(value)}, is {_short(found[key])}"
        for key, value in expected.items()
        if found[key] != value
    }


def answered(answer: ExpectedAnswer, said: str) -> bool:
    """Whether the answer states the right value and no other. A number must be the only number in it; a name
    must stand in it as whole words, without any of the wrong names. Case, white space and units are
    ignored."""
    if len(said) > LONGEST:
        return False
    if _NUMBER.fullmatch(answer.value):
        return [_plain(each) for each in _NUMBER.findall(said)] == [_plain(answer.value)]
    if not _stands(answer.value, said):
        return False
    rest = _without(answer.value, said)
    return not any(_stands(other, said if _stands(answer.value, other) else rest) for other in answer.others)


def _plain(number: str) -> str:
    if _THOUSANDS.fullmatch(number):
        number = number.replace(",", "")
    whole, point, part = number.partition(".")
    part = part.rstrip("0")
    return f"{whole}{point}{part}" if part else whole


def _tokens(text: str) -> list[str]:
    return [each.strip(".,:-").casefold() for each in _WORDS.findall(text) if each.strip(".,:-")]


def _places(value: str, said: str) -> list[int]:
    wanted, words = _tokens(value), _tokens(said)
    return [at for at in range(len(words)) if words[at : at + len(wanted)] == wanted]


def _stands(value: str, said: str) -> bool:
    return bool(_places(value, said))


def _without(value: str, said: str) -> str:
    wanted, words = len(_tokens(value)), _tokens(said)
    for at in reversed(_places(value, said)):
        del words[at : at + wanted]
    return " ".join(words)


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) < 300 else f"{text[:300]}..."


def _failed(why: str) -> InfrastructureError:
    return InfrastructureError(AbortCause.GRADER_FAILED, why)
