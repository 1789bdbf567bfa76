"""Errands: the same seed gives the same, no statement twice, and guessing is right in tidy worlds alone."""

import random

import msgspec

from orchard.pipelines.domains.claw.author import DRAFT_MISTAKES, Author
from orchard.pipelines.domains.claw.drafts import TaskDraft, read_draft
from orchard.pipelines.domains.claw.errands import TIDY, Errands
from orchard.pipelines.domains.claw.proof import mutated, played
from orchard.pipelines.domains.claw.templates import Plot
from orchard.schemas.claw import ClawBundle
from orchard.schemas.synthesis import ReferenceCall
from orchard.workers.domains.claw.frame import evaluate
from orchard.workers.domains.claw.grading import PASSING_SCORE, Scores, combined, read_returned

SLOTS = 36


def scores(draft: TaskDraft, bundle: ClawBundle) -> Scores:
    """What the draft's script says, in this process."""
    said = evaluate(draft.script, msgspec.to_builtins(bundle), {})
    return combined({"test": read_returned("test", said["result"])}, bundle.audit)


def outcome(plot: Plot, moves: list[ReferenceCall]) -> tuple[bool, bool]:
    """Whether the script passes, and whether the task counts as resolved."""
    found = scores(plot.draft, played(plot.draft.case, moves))
    return found.passed, found.task_score >= PASSING_SCORE


def test_who_looks_is_always_right_and_who_guesses_only_in_tidy_worlds() -> None:
    errands = Errands(5, 12, guesses=1.0)
    for slot in range(SLOTS):
        plot = errands.plot(5, slot)
        guess = errands.moves(plot.statement, 0)
        assert guess is not None and len(guess) == 1 < len(plot.moves)
        assert outcome(plot, plot.moves) == (True, True)
        tidy = errands.world(slot) % TIDY == 0
        assert outcome(plot, guess) == (tidy, tidy), "what is logged as resolved is what is rewarded"
        assert outcome(plot, []) == (False, False)
        wrong = [[*moves] for _, moves in mutated(plot.draft.case, slot)]
        assert wrong and not any(any(outcome(plot, moves)) for moves in wrong)


def test_a_slot_is_the_same_whoever_asks_first_and_no_statement_comes_twice() -> None:
    forward, backward = Errands(5, 4, guesses=0.5), Errands(5, 4, guesses=0.5)
    there = [forward.plot(5, slot) for slot in range(SLOTS)]
    back = [backward.plot(5, slot) for slot in reversed(range(SLOTS))][::-1]
    assert [each.draft for each in there] == [each.draft for each in back]
    assert len({each.statement for each in there}) == SLOTS
    other = Errands(5, 4, guesses=0.5, without=forward.statements(SLOTS))
    assert not other.statements(SLOTS) & forward.statements(SLOTS)
    late = Errands(5, 4, guesses=0.0).moves(there[-1].statement, 3)
    assert late == there[-1].moves, "a solver that was started anew knows them too"
    assert forward.moves("Something else.", 0) is None


def test_a_mistake_in_one_answer_leaves_the_next_as_it_was() -> None:
    errands = Errands(1, 4, guesses=0.0)
    careless, careful = Author(errands, mistakes=1.0), Author(errands, mistakes=0.0)
    before = [careful.answer("write", 1, slot, 0) for slot in range(SLOTS)]
    made = [careless.answer("write", 1, slot, 0) for slot in range(SLOTS)]
    assert sum(one != other for one, other in zip(before, made, strict=True)) > SLOTS / 2
    assert [careful.answer("write", 1, slot, 0) for slot in range(SLOTS)] == before


def test_a_script_that_asks_only_for_the_call_lets_a_wrong_solution_pass_which_is_how_it_is_caught() -> None:
    errands = Errands(1, 6, guesses=0.0)
    for slot in range(12):
        blind = read_draft(DRAFT_MISTAKES["blind_script"](errands.plot(1, slot), random.Random(0)))
        case = blind.case
        assert any(scores(blind, played(case, moves)).passed for _, moves in mutated(case, slot))
