"""Proves a task without a model: its reference solution passes, nothing and wrong solutions do not.

Calls are played on the services as in a rollout; bundles are graded by the test scripts in a sandbox.
All bundles of a task are graded in one process of the frame, and once more in another: what differs is
no grade.
"""

import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from orchard.pipelines.domains.claw.drafts import ProofCase, case_of
from orchard.pipelines.tasks.proving import UNFIT, ProofContext, Proven, Refuted, Verdict
from orchard.schemas.claw import ClawBundle, ClawTests, SnapshotFile
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.schemas.protection import Protected
from orchard.schemas.synthesis import Check, ReferenceCall
from orchard.schemas.tasks import Task, WorldUse
from orchard.workers.domains.claw.engine import BadWorld, Services
from orchard.workers.domains.claw.grading import Returned, combined, read_returned, scripts_of
from orchard.workers.domains.claw.script_runner import ScriptLimits, run_script
from orchard.workers.episode.machine import Machine
from orchard.workers.failures import InfrastructureError

MUTANTS = 16
"""Wrong solutions that are tried."""
_SECONDS = 60.0
_ALL = """
import __main__

def grade(bundle):
    scripts, bundles = bundle.raw["scripts"], bundle.raw["bundles"]
    return {
        "messages": [
            {name: [__main__.evaluate(text, each, {}) for _ in range(3)] for name, text in scripts.items()}
            for each in bundles
        ]
    }
"""
"""The frame's script: the task's own ones, over many bundles, three times over each."""


class Defect(Exception):
    """A task is not proven; the message says why."""

    def __init__(self, check: Check, detail: str) -> None:
        super().__init__(detail)
        self.check = check
        self.detail = detail[:2000]


async def prove_task(task: Task, context: ProofContext) -> Verdict:
    """The prover of tasks of services: nothing is run but their test scripts, over bundles that are made
    here. Raises InfrastructureError."""
    try:
        case = case_of(task)
    except ValueError as error:
        return Refuted(reason=UNFIT[AbortCause.INVALID_REQUEST], detail=str(error))
    assert case is not None, "tasks of this kind have one"
    try:
        for number in range(context.settings.runs):
            async with context.fresh(task) as machine:
                await prove(case, machine, number)
    except Defect as defect:
        return Refuted(reason=defect.check.value, detail=defect.detail)
    unknown = None if case.solution else "no solution is known; doing nothing does not pass"
    own = isinstance(task.world, WorldUse) and task.world.settings.get("commands_in") == "agent"
    return Proven(
        task=task,
        runs=context.settings.runs,
        detail=unknown,
        protected=Protected.INSIDE if own else Protected.BIT,
        protected_why="commands in the agent's sandbox say what the agent wants"
        if own
        else "the worker's records decide; how much of them must be known is not measured",
    )


async def prove(case: ProofCase, machine: Machine, seed: int) -> int:
    """The number of wrong solutions that were caught. Without a known solution it is shown alone that nothing
    does not pass. Raises Defect, and what the machine raises."""
    if case.tests.rubric:
        raise Defect(Check.SCRIPT_FAILED, "its rubric asks a judge, and a proof has none")
    reference = played(case, case.solution)
    if refused := [entry for entry in reference.audit if entry.failed]:
        entry = refused[0]
        said = msgspec.json.encode(entry.response).decode()[:300]
        raise Defect(Check.REFERENCE_REFUSED, f"{entry.tool} of the solution answers {entry.status}: {said}")
    if reference != played(case, case.solution):
        raise Defect(Check.REPLAY_DIFFERS, "the same calls leave other records")
    mutants = list(mutated(case, seed))
    known = [reference] if case.solution else []
    bundles = [*known, played(case, ()), *(played(case, moves) for _, moves in mutants)]
    passed = await graded(case.tests, bundles, machine)
    if known and not passed.pop(0):
        raise Defect(Check.REFERENCE_FAILS, "the reference solution does not pass the test script")
    if passed.pop(0):
        raise Defect(Check.EMPTY_PASSES, "the test script passes where nothing was done")
    for (what, _), passes in zip(mutants, passed, strict=True):
        if passes:
            raise Defect(Check.MUTATION_SURVIVES, f"the test script passes all the same with {what}")
    return len(mutants)


def played(case: ProofCase, moves: Sequence[ReferenceCall]) -> ClawBundle:
    """The bundle that a rollout of these calls leaves, without injected errors. Raises Defect for an
    impossible world."""
    world = msgspec.structs.replace(case.world, error_rate=0.0)
    try:
        services = Services(world, 0)
    except BadWorld as error:
        raise Defect(Check.WORLD_INVALID, str(error)) from error
    for move in moves:
        services.call(move.tool, move.arguments)
    return ClawBundle(
        messages=({"role": "user", "content": case.statement}, {"role": "assistant", "content": "Done."}),
        audit=tuple(services.audit),
        state=services.state(),
        initial=services.initial,
        snapshot={
            path: SnapshotFile(size=len(text.encode()), text=text) for path, text in world.files.items()
        },
        answer="Done.",
        now=world.now.isoformat(),
        exit_status=ExitStatus.FINISHED,
    )


async def graded(tests: ClawTests, bundles: Sequence[ClawBundle], machine: Machine) -> list[bool]:
    """Whether each bundle passes. Raises Defect where a script fails, or grades differently again."""
    raw = msgspec.json.encode({"scripts": scripts_of(tests), "bundles": bundles})
    first, again = [await _returned(tests, raw, machine) for _ in range(2)]
    if first != again or any(
        each != several[0] for by_script in first for several in by_script.values() for each in several
    ):
        raise Defect(Check.REPLAY_DIFFERS, "the test script grades the same bundle differently")
    return [
        combined({name: several[0] for name, several in by_script.items()}, ()).passed for by_script in first
    ]


async def _returned(tests: ClawTests, raw: bytes, machine: Machine) -> list[dict[str, list[Returned]]]:
    """Each script's result for each bundle and repetition, from one process."""
    try:
        ran = await run_script(
            machine,
            "test",
            _ALL,
            raw,
            limits=ScriptLimits(seconds=_SECONDS),
            ask=_no_judge,
            files=tests.files,
        )
        return [
            {name: [_read(name, message) for message in several] for name, several in by_script.items()}
            for by_script in ran.result["messages"]
        ]
    except InfrastructureError as error:
        if error.cause is not AbortCause.GRADER_FAILED:
            raise
        raise Defect(Check.SCRIPT_FAILED, error.detail) from error


def _read(name: str, message: dict[str, Any]) -> Returned:
    if message["outcome"] != "graded":
        reason = message.get("reason", "it asks a judge")
        raise Defect(Check.SCRIPT_FAILED, f"the test script {name} fails: {reason}")
    return read_returned(name, message["result"])


async def _no_judge(_: Any) -> Any:
    raise InfrastructureError(AbortCause.GRADER_FAILED, "a script that is proven asks no judge")


def mutated(case: ProofCase, seed: int) -> Iterator[tuple[str, tuple[ReferenceCall, ...]]]:
    """Wrong solutions, each with what is wrong with it: a call that changes something is left out, or has
    another record, address, time, number or choice. Free text stays: other words may be right too."""
    services = Services(case.world, 0)
    moves = case.solution
    changing = [
        place
        for place, move in enumerate(moves)
        if (offer := services.offers.get(move.tool)) and offer.operation.changes and _acts(case, place)
    ]
    found: list[tuple[str, tuple[ReferenceCall, ...]]] = [
        (f"no {moves[at].tool}", (*moves[:at], *moves[at + 1 :])) for at in changing
    ]
    others: list[tuple[str, tuple[ReferenceCall, ...]]] = []
    for at in changing:
        schema = services.offers[moves[at].tool].operation.arguments
        for name, value in moves[at].arguments.items():
            for other in _others(name, value, schema.get(name, {}), services):
                changed = ReferenceCall(tool=moves[at].tool, arguments={**moves[at].arguments, name: other})
                what = f"{name} {other!r} in {moves[at].tool}"
                others.append((what, (*moves[:at], changed, *moves[at + 1 :])))
    dice = random.Random(seed)
    room = max(MUTANTS - len(found), 0)
    yield from found
    yield from others if len(others) <= room else dice.sample(others, room)


def _acts(case: ProofCase, place: int) -> bool:
    """Whether the call does more than mark a record as read: without it, the end state differs."""
    moves = case.solution
    without = played(case, (*moves[:place], *moves[place + 1 :]))
    return bool(_essence(without) != _essence(played(case, moves)))


def _essence(bundle: ClawBundle) -> Any:
    return {
        service: {
            kind: [{key: value for key, value in record.items() if key not in _MARKS} for record in records]
            for kind, records in collections.items()
        }
        for service, collections in bundle.state.items()
    }


_MARKS = frozenset({"is_read", "date", "created"})


def _others(name: str, value: Any, schema: dict[str, Any], services: Services) -> list[Any]:
    """Another value of the same kind; none for free text."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1]
    if isinstance(value, list):
        changed = [_others(name, each, {}, services) for each in value]
        return [[*value[:at], each[0], *value[at + 1 :]] for at, each in enumerate(changed) if each]
    if not isinstance(value, str):
        return []
    if "enum" in schema:
        return [next(choice for choice in schema["enum"] if choice != value)]
    if name.endswith("_id"):
        return [next((each for each in _ids(services, name) if each != value), "none")]
    if "@" in value and " " not in value:
        return ["someone.else@example.org"]
    try:
        return [(datetime.fromisoformat(value) + timedelta(days=1)).isoformat()]
    except ValueError:
        return []


def _ids(services: Services, name: str) -> list[str]:
    return [
        record[name]
        for collections in services.initial.values()
        for records in collections.values()
        for record in records
        if isinstance(record.get(name), str)
    ]
