"""Reads an author's answers strictly, an idea or a draft of a task, and finds what is wrong with an idea."""

import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import msgspec

from orchard.schemas.claw import DOMAIN, WORKSPACE_TOOLS, ClawTests, ClawWorld, Records
from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.identity import digest
from orchard.schemas.synthesis import Check, ReferenceCall
from orchard.schemas.tasks import PluginGrading, Task, WorldUse
from orchard.workers.domains.claw.services import SERVICES

SOURCE = "claw-synthesis"
ANSWER_LIMIT = 400_000
"""Maximum characters of an answer."""
_FENCE = re.compile(r"```(?:json)?[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)
_THINKING = re.compile(r"\A.*</(?:think|thinking|reasoning)>", re.DOTALL | re.IGNORECASE)


class BadAnswer(ValueError):
    """An answer has another form than was asked for; the message tells the author why."""


class Idea(msgspec.Struct, frozen=True, kw_only=True):
    """A subject for a task."""

    title: str
    goal: str
    services: tuple[str, ...]
    seeded_mistake: str | None = None
    """Label of a seeded author's mistake, which no check reads."""


class ProofCase(msgspec.Struct, frozen=True, kw_only=True):
    """A world, its tests, and the calls that solve it: the subject of a proof."""

    statement: str
    world: ClawWorld
    tests: ClawTests
    solution: tuple[ReferenceCall, ...] = ()
    """Empty where none is known."""


class TaskDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A task as its author wrote it."""

    statement: str
    now: datetime
    services: dict[str, Records]
    script: str
    solution: tuple[ReferenceCall, ...]
    owner: str = "me@example.com"
    files: dict[str, str] = {}
    tools: tuple[str, ...] = ()
    """Tools of the services that the task offers, as in ClawWorld."""
    workspace: tuple[str, ...] = WORKSPACE_TOOLS
    """Tools of the workspace that the task offers, as in ClawWorld."""
    seeded_mistake: str | None = None
    """Label of a seeded author's mistake, which no check reads."""

    @property
    def world(self) -> ClawWorld:
        """The world of the draft's task: services alone, unless there are files."""
        return ClawWorld(
            now=self.now if self.now.tzinfo else self.now.replace(tzinfo=UTC),
            services=self.services,
            owner=self.owner,
            files=self.files,
            tools=self.tools,
            workspace=self.workspace,
        )

    @property
    def case(self) -> ProofCase:
        """The part of the draft that is proven."""
        tests = ClawTests(script=self.script)
        return ProofCase(statement=self.statement, world=self.world, tests=tests, solution=self.solution)


_IDEAS = msgspec.json.Decoder(Idea)
_DRAFTS = msgspec.json.Decoder(TaskDraft)
_MOVES = msgspec.json.Decoder(tuple[ReferenceCall, ...])


def read_idea(answer: str) -> Idea:
    return _read(_IDEAS, answer)  # type: ignore[no-any-return]


def read_draft(answer: str) -> TaskDraft:
    draft: TaskDraft = _read(_DRAFTS, answer)
    if not draft.statement.strip() or not draft.solution or not draft.services:
        raise BadAnswer("statement, services and solution must not be empty")
    return draft


def _read(decoder: Any, answer: str) -> Any:
    if len(answer) > ANSWER_LIMIT:
        raise BadAnswer(f"the answer has {len(answer)} characters")
    text = _THINKING.sub("", answer).strip()
    if fenced := _FENCE.search(text):
        text = fenced[1]
    try:
        return decode(decoder, text.encode(errors="replace"))
    except Unreadable as error:
        raise BadAnswer(f"the answer is not the JSON object that was asked for: {error}") from error


def task_of(draft: TaskDraft, labels: dict[str, str] | None = None) -> Task:
    """The task of a draft. Its id is a digest of what a solver meets and how it is judged."""
    world = msgspec.to_builtins(draft.world)
    return Task(
        task_id=f"claw-{digest([draft.statement, world, draft.script], 12)}",
        source=SOURCE,
        repo=DOMAIN,
        image="host",
        workdir="/workspace/home",
        statement=draft.statement,
        grading=PluginGrading(grader=DOMAIN, settings=msgspec.to_builtins(draft.case.tests)),
        world=WorldUse(kind=DOMAIN, settings=world),
        gold_patch=msgspec.json.encode(draft.solution).decode(),
        memory="512Mi",
        labels=labels or {},
    )


def case_of(task: Task) -> ProofCase | None:
    """The part of a task that is proven, for one that is graded by its bundle; None for any other. Raises
    ValueError for settings or a solution that cannot be read."""
    world, grading = task.world, task.grading
    if world is msgspec.UNSET or world.kind != DOMAIN or not isinstance(grading, PluginGrading):
        return None
    if grading.grader != DOMAIN:
        return None
    solution = task.gold_patch.strip()
    try:
        return ProofCase(
            statement=task.statement,
            world=msgspec.convert(world.settings, ClawWorld),
            tests=msgspec.convert(grading.settings, ClawTests),
            solution=decode(_MOVES, solution.encode()) if solution else (),
        )
    except msgspec.ValidationError as error:
        raise ValueError(f"settings of its world or of its grader: {error}") from error
    except Unreadable as error:
        raise ValueError(f"gold_patch is no list of calls: {error}") from error


_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)
"""Letters and digits of any script; each sign of those that put no blanks between words."""
_ALIKE = 0.9
"""Share of words that two ideas may have in common before they are the same."""
_UNSAFE = re.compile(
    r"\b(passwords?|credentials?|api keys?|private keys?|blackmail|threaten|phishing|malware|"
    r"everything (?:in|from) (?:the|my) (?:account|inbox)|without (?:me|anyone) (?:knowing|noticing))\b",
    re.IGNORECASE,
)


def words(idea: Idea) -> frozenset[str]:
    return words_of(f"{idea.title}: {idea.goal}")


def words_of(text: str) -> frozenset[str]:
    """Words of an idea given as text, `TITLE: GOAL`."""
    return frozenset(_WORD.findall(text.lower()))


def wrong(idea: Idea, known: Collection[frozenset[str]]) -> tuple[Check, str] | None:
    """The first fault of an idea; `known` are the words of earlier ideas."""
    if absent := [name for name in idea.services if name not in SERVICES]:
        return Check.INFEASIBLE, f"there is no service {absent[0]!r}: there is {', '.join(SERVICES)}"
    if not idea.services:
        return Check.INFEASIBLE, "it names no service"
    if found := _UNSAFE.search(f"{idea.title} {idea.goal}"):
        return Check.UNSAFE, f"an assistant must not do this: {found[0]!r}"
    own = words(idea)
    if any(len(own & other) >= _ALIKE * len(own | other) for other in known):
        return Check.DUPLICATE, "an earlier idea says the same"
    return None
