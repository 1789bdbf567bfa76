"""Synthesis of tasks in four steps: the requests on its queue, and the events of each artefact."""

from enum import StrEnum
from typing import Any

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.llm_calls import ModelKind


class SynthesisAction(StrEnum):
    """The step that was done."""

    PROPOSE = "propose"
    """The author proposed an idea."""
    FILTER = "filter"
    """The idea was checked before anything is written."""
    WRITE = "write"
    """The author wrote world, statement and test script."""
    REFINE = "refine"
    """The author wrote them again, after the defect was described."""
    PROVE = "prove"
    """World, statement and test script were proven without a model."""
    SOLVE = "solve"
    """A solver ran its rollouts of the task."""
    ACCEPT = "accept"
    """The task is proven and accepted."""
    REJECT = "reject"
    """The idea or task is given up."""


STEPS = (
    SynthesisAction.PROPOSE,
    SynthesisAction.WRITE,
    SynthesisAction.REFINE,
    SynthesisAction.PROVE,
    SynthesisAction.SOLVE,
)
"""Steps that a worker does; the others follow from what is known."""


class Check(StrEnum):
    """The check that found a mistake."""

    UNREADABLE = "unreadable"
    """The author's answer is not of the form that was asked for."""
    DUPLICATE = "duplicate"
    """An earlier idea says the same."""
    INFEASIBLE = "infeasible"
    """The idea needs services that do not exist."""
    UNSAFE = "unsafe"
    """The idea asks for what an assistant must not do."""
    WORLD_INVALID = "world_invalid"
    """The services refuse the fixtures, or lack the tools."""
    REFERENCE_REFUSED = "reference_refused"
    """A call of the reference solution fails."""
    SCRIPT_FAILED = "script_failed"
    """The test script raises, or breaks a rule of its frame."""
    REFERENCE_FAILS = "reference_fails"
    """The reference solution does not pass."""
    EMPTY_PASSES = "empty_passes"
    """A run that does nothing passes."""
    REPLAY_DIFFERS = "replay_differs"
    """Grading the same bundle again differs, or the same calls give another bundle."""
    MUTATION_SURVIVES = "mutation_survives"
    """A solution with a wrong or missing call passes."""
    NO_VALID_RUN = "no_valid_run"
    """No rollout of the solver made one call that succeeded."""
    INFRASTRUCTURE = "infrastructure"
    """Author, solver or sandboxes could not be reached in all tries."""


class SynthesisRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for one step of one slot, and for one event; travels on the synthesis queue. Everything that it
    needs is in it or in a blob."""

    run: str
    """Name of the run, and campaign of its events."""
    seed: int
    step: SynthesisAction
    """The step: PROPOSE, WRITE, REFINE, PROVE or SOLVE."""
    slot: int
    """Number of the slot in the run, from 0."""
    turn: int = 0
    """Number of times that the author has refined the draft."""
    author: ModelSpec
    """The model that proposes and writes."""
    solver: ModelSpec
    """The model of the rollouts."""
    rollouts: int
    """Rollouts of the solver for each harness."""
    harnesses: tuple[str, ...]
    timeout_seconds: float
    """Time limit of one answer of the author, with all tries."""
    known: BlobRef | None = None
    """Ideas of the slots before, as texts, which a proposal must not repeat."""
    idea: BlobRef | None = None
    draft: BlobRef | None = None
    defect: str = ""
    """The draft's defect, described for the author."""
    failures: int = 0
    """Number of times that infrastructure failed the step."""


class SynthesisStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a synthesis run was done. Whole prompts, answers and drafts are in the blob."""

    slot: int
    """Number of the slot in the run, from 0."""
    turn: int
    """Number of times that the author had refined the draft."""
    step: SynthesisAction
    """The step that was done."""
    check: Check | None = None
    """Check that found a mistake; None if none did."""
    detail: str = ""
    """The mistake, described for people."""
    artefact: BlobRef | None = None
    """Blob of prompt, answer and what was read from it; for SOLVE of the rollouts."""
    model: str | None = None
    """Model that was asked; None if none was."""
    model_kind: ModelKind | None = None
    """Kind of the model; `oracle` marks the seeded author, which is not a model."""
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost_usd: float | None = None
    """Price in USD; None if no model was asked, or no price is known."""
    seconds: float = 0.0
    seeded_mistake: str | None = None
    """Mistake that the seeded author says it made: a label, which no check sees."""
    task_id: str | None = None
    """Id of the task that was accepted; for ACCEPT alone."""


class ReferenceCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call of a reference solution."""

    tool: str
    arguments: dict[str, Any] = {}
