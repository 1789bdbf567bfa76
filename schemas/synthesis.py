"""Synthesis of tasks in four steps: what travels on its queue, and what is logged of each artefact."""

from enum import StrEnum
from typing import Any

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.llm_calls import ModelKind


class SynthesisAction(StrEnum):
    """What was done."""

    PROPOSE = "propose"
    """The author gave an idea."""
    FILTER = "filter"
    """The idea was looked at before anything is written."""
    WRITE = "write"
    """The author wrote world, statement and test script."""
    REFINE = "refine"
    """The author wrote them again, told what is wrong."""
    PROVE = "prove"
    """They were proven without a model."""
    SOLVE = "solve"
    """A solver had its rollouts."""
    ACCEPT = "accept"
    """The task is proven."""
    REJECT = "reject"
    """It is given up."""


class Check(StrEnum):
    """What caught a mistake."""

    UNREADABLE = "unreadable"
    """The author's answer is not of the form that was asked for."""
    DUPLICATE = "duplicate"
    """An earlier idea says the same."""
    INFEASIBLE = "infeasible"
    """It needs services that there are not."""
    UNSAFE = "unsafe"
    """It asks for what an assistant must not do."""
    WORLD_INVALID = "world_invalid"
    """The services do not take the fixtures, or do not have the tools."""
    REFERENCE_REFUSED = "reference_refused"
    """A call of the reference solution fails."""
    SCRIPT_FAILED = "script_failed"
    """The test script raises, or breaks a rule of its frame."""
    REFERENCE_FAILS = "reference_fails"
    """The reference solution does not pass."""
    EMPTY_PASSES = "empty_passes"
    """Doing nothing passes."""
    REPLAY_DIFFERS = "replay_differs"
    """The same bundle is graded differently, or the same calls give another bundle."""
    MUTATION_SURVIVES = "mutation_survives"
    """A solution with a wrong or missing call passes."""
    NO_VALID_RUN = "no_valid_run"
    """No rollout of the solver got as far as one call that succeeded."""
    INFRASTRUCTURE = "infrastructure"
    """Author, solver or sandboxes could not be reached, again and again."""


class SynthesisRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one slot, as it travels on the queue. Everything that it needs is in it or in a blob."""

    run: str
    seed: int
    step: SynthesisAction
    """PROPOSE (of `count` slots), WRITE, REFINE or SOLVE."""
    slot: int
    """Of the run, from 0; of PROPOSE the first."""
    count: int = 1
    turn: int = 0
    """Times that the author has refined it."""
    idea: BlobRef | None = None
    draft: BlobRef | None = None
    defect: str = ""
    """What is wrong with the draft, in words for the author."""
    failures: int = 0
    """Times that infrastructure failed it."""


class SynthesisStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a synthesis run was done. Whole prompts, answers and drafts are in the blob."""

    slot: int
    """Of the run, from 0."""
    turn: int
    """Times that the author had refined it."""
    step: SynthesisAction
    """What was done."""
    check: Check | None = None
    """What caught a mistake in it; None where nothing did."""
    detail: str = ""
    """The mistake, in words."""
    artefact: BlobRef | None = None
    """Prompt, answer and what was read from it; of SOLVE the rollouts."""
    model: str | None = None
    """Who was asked; None where nobody was."""
    model_kind: ModelKind | None = None
    """`oracle` marks the seeded author, which is no model."""
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost_usd: float | None = None
    """None where nobody was asked, or no price is known."""
    seconds: float = 0.0
    seeded_mistake: str | None = None
    """The mistake that the seeded author says it made: a label, which no check sees."""
    task_id: str | None = None
    """Of ACCEPT."""


class ReferenceCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call of a reference solution."""

    tool: str
    arguments: dict[str, Any] = {}
