"""Evaluations: suites, plans, and the tables that the log gives of them."""

import csv
import json
import random
from itertools import product
from pathlib import Path

import msgspec
import pytest

from orchard.cli.evaluation import plan_facts, show_plan
from orchard.pipelines.campaigns.scores import Tally
from orchard.pipelines.domains.swe.benchmark_rows import Given, task_from_row
from orchard.pipelines.evaluation.plan import gone_on, lacking, plan_suite
from orchard.pipelines.evaluation.report import markdown, tables_of, write_predictions, write_report
from orchard.pipelines.evaluation.results import (
    Cell,
    CellComparison,
    Results,
    TaskResult,
    cells_of,
    paired,
    read_results,
)
from orchard.pipelines.evaluation.suite import (
    EvaluationError,
    Suite,
    campaign_of,
    published,
    read_suite,
    suite_file,
)
from orchard.pipelines.tasks.directories import directory_task, read_directory
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import EvaluationPlanned, TaskRef, rollout_requests
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.outcomes import AbortCause, ExitStatus, RolloutStatus
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.terminal.console import console
from orchard.workers.attempts.reopen import cancelled
from tests.pipelines.domains.swe.test_tasks_multilingual import _row
from tests.pipelines.domains.swe.test_tasks_swe_rows import SWE_BENCH
from tests.pipelines.tasks.test_tasks_directories import HARBOR, TASK_TOML, _written
from tests.trajectory_log import TIME, llm_call

SMALL = """
name = "small"
harnesses = ["orchard-bash"]
task_sets = [{ source = "s" }]
models = [{ name = "m" }]
"""


SMALL_SUITE = {
    "name": "small",
    "task_sets": [{"source": "s"}],
    "harnesses": ["h1"],
    "models": [{"name": "m"}],
    "samples": 3,
}


def ended(request: object, outcome: str, patch: str = "", blob: BlobRef | None = None) -> e.Event:
    """How a requested rollout ended: `resolved`, `unresolved`, `malformed`, `aborted` or `blocked`."""
    assert isinstance(request, msgspec.Struct)
    facts = {
        "task_id": request.task.task_id,
        "task_source": request.task.source,
        "repo": "a/b",
        "harness": request.harness,
        "model": request.model.name,
        "model_kind": ModelKind.MODEL,
        "sample": request.sample,
        "worker": "w",
        "started_at": TIME,
        "seconds": 2.0,
        "turns": 3,
        "prompt_tokens": 90,
        "completion_tokens": 10,
        "cost_usd": 0.5,
    }
    data: msgspec.Struct
    if outcome in ("aborted", "blocked"):
        cause = AbortCause.BLOCKED if outcome == "blocked" else AbortCause.LLM_UNAVAILABLE
        data = e.RolloutAborted(cause=cause, **facts)
    else:
        solved = outcome == "resolved"
        data = e.RolloutFinished(
            status=RolloutStatus.COMPLETED,
            exit_status=ExitStatus.FORMAT_FAILURE if outcome == "malformed" else ExitStatus.SUBMITTED,
            reward=1.0 if solved else -1.0,
            resolved=solved,
            submission=patch,
            submission_blob=blob,
            **facts,
        )
    return _event(data, request.campaign, request.rollout_id, 1)


def _event(
    data: msgspec.Struct, campaign: str, rollout: str | None = None, attempt: int | None = None
) -> e.Event:
    name = f"{campaign}.{rollout}.{type(data).__name__}"
    return e.make_event(
        data, id=name, source="test", campaign=campaign, rollout_id=rollout, attempt=attempt, time=TIME
    )


async def test_cells_are_what_a_count_by_hand_gives(connection: Connection, committed) -> None:
    dice = random.Random(7)
    tasks = [
        TaskRef(task_id=f"{source}{n}", source=source, repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
        for source in ("easy", "hard")
        for n in range(6)
    ]
    suite = msgspec.convert(
        {
            "name": "small",
            "task_sets": [{"source": "easy", "name": "Easy"}, {"source": "hard"}],
            "harnesses": ["h1", "h2"],
            "models": [{"name": "m1"}, {"name": "m2"}],
            "samples": 4,
            "k": [2],
        },
        Suite,
    )
    requests = list(rollout_requests(campaign_of(suite, tasks)))
    outcomes = [
        dice.choice(["resolved", "resolved", "unresolved", "malformed", "aborted", "blocked", "open"])
        for _ in requests
    ]
    planned = EvaluationPlanned(
        suite=BlobRef(sha256="1" * 64, size=1), task_sets={"easy": "Easy", "hard": "hard"}, k=suite.reported
    )
    events = [_event(planned, "small")]
    for request, outcome in zip(requests, outcomes, strict=True):
        events.append(_event(request, "small", request.rollout_id))
        events += [ended(request, outcome)] if outcome != "open" else []
    await Publisher(connection).events(events)
    with open_tables(
        await committed(), views=["evaluation_tasks", "evaluation_cells", "evaluation_runs"]
    ) as tables:
        results = read_results(tables, "small")
        rows = tables.sql(
            "select task_set, harness, model, requested, aborted, blocked, pass_at_1 from evaluation_cells"
        )
        shown = {tuple(row[:3]): row[3:] for row in rows.fetchall()}
    found = {(cell.task_set, cell.harness, cell.model): cell for cell in results.cells}
    ungraded = ("aborted", "blocked", "open")
    assert results.k == (2,)
    assert set(found) == set(product(("Easy", "hard"), ("h1", "h2"), ("m1", "m2")))
    for (title, harness, model), cell in found.items():
        mine = [
            (request.task.task_id, outcome)
            for request, outcome in zip(requests, outcomes, strict=True)
            if (request.task.source.lower(), request.harness, request.model.name)
            == (title.lower(), harness, model)
        ]
        by_task = {
            task: [outcome for name, outcome in mine if name == task and outcome not in ungraded]
            for task, _ in mine
        }
        assert (cell.requested, cell.malformed, cell.aborted, cell.blocked, cell.open) == (
            len(mine),
            sum(outcome == "malformed" for _, outcome in mine),
            sum(outcome == "aborted" for _, outcome in mine),
            sum(outcome == "blocked" for _, outcome in mine),
            sum(outcome == "open" for _, outcome in mine),
        )
        assert cell.graded == sum(map(len, by_task.values()))
        rates = [graded.count("resolved") / len(graded) for graded in by_task.values() if graded]
        first = cell.pass_at(1)
        assert first is not None
        assert first.value == pytest.approx(sum(rates) / len(rates))
        assert shown[title, harness, model] == (
            *(cell.requested, cell.aborted, cell.blocked),
            pytest.approx(first.value),
        )
        assert cell.any_resolved == sum("resolved" in graded for graded in by_task.values())
        assert cell.all_resolved == sum(set(graded) == {"resolved"} for graded in by_task.values())


async def test_a_rollout_that_ended_without_its_worker_counts_what_its_calls_have_cost(
    connection: Connection, committed
) -> None:
    """One was cancelled after two calls, one before it began."""
    suite = msgspec.convert(SMALL_SUITE, Suite)
    ref = TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
    whole, begun, waiting = rollout_requests(campaign_of(suite, [ref]))
    planned = EvaluationPlanned(suite=BlobRef(sha256="1" * 64, size=1), task_sets={"s": "s"}, k=(1,))
    publisher = Publisher(connection)
    await publisher.events(
        [
            _event(planned, "small"),
            *(_event(request, "small", request.rollout_id) for request in (whole, begun, waiting)),
            ended(whole, "resolved"),
            _event(
                e.RolloutStarted(worker="w", request_sequence=1, deliveries=1), "small", begun.rollout_id, 1
            ),
        ]
    )
    calls = [
        msgspec.structs.replace(_event(llm_call(turn), "small", begun.rollout_id, 1), id=f"call-{turn}")
        for turn in (1, 2)
    ]
    await publisher.events(calls)
    (started,) = await publisher.starts([begun.rollout_id])
    await publisher.events([cancelled(begun, started, "test"), cancelled(waiting, None, "test")])

    with open_tables(await committed(), views=["evaluation_tasks", "evaluation_runs"]) as tables:
        (cell,) = read_results(tables, "small").cells
    assert (cell.requested, cell.graded, cell.aborted) == (3, 1, 2)
    assert (cell.turns, cell.tokens, cell.cost_usd) == (3 + 2, 100 + 220, pytest.approx(0.5 + 0.5))
    assert (cell.seconds, cell.timed) == (2.0, 2)


async def test_the_seed_is_the_unit_where_models_are_replicates_of_an_arm(
    connection: Connection, committed
) -> None:
    """And the sample, where a model is in no arm. Aborted rollouts are in no score."""
    tasks = [
        TaskRef(task_id=f"t{n}", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
        for n in range(4)
    ]
    suite = msgspec.convert(
        {
            "name": "small",
            "task_sets": [{"source": "s"}],
            "harnesses": ["h1", "h2"],
            "models": [{"name": name} for name in ("a0", "a1", "a2", "b0", "b1", "free")],
            "arms": {"A": ["a0", "a1", "a2"], "B": ["b0", "b1"]},
            "samples": 2,
        },
        Suite,
    )
    rates = {"a0": 0, "a1": 1, "a2": 2, "b0": 3, "b1": 3, "free": 4}
    """Tasks resolved under h1; under h2 one more."""
    requests = list(rollout_requests(campaign_of(suite, tasks)))
    events = [
        _event(
            EvaluationPlanned(
                suite=BlobRef(sha256="1" * 64, size=1), task_sets={"s": "s"}, k=(1,), arms=suite.arm_of
            ),
            "small",
        )
    ]
    for request in requests:
        solves = int(request.task.task_id[1:]) < rates[request.model.name] + (request.harness == "h2")
        aborted = request.model.name == "free" and request.sample == 1 and request.task.task_id == "t3"
        outcome = "aborted" if aborted else "resolved" if solves else "unresolved"
        if request.model.name == "free" and request.sample == 1 and request.task.task_id == "t0":
            outcome = "unresolved"
        events += [_event(request, "small", request.rollout_id), ended(request, outcome)]
    await Publisher(connection).events(events)
    with open_tables(await committed()) as tables:
        results = read_results(tables, "small")
    found = {(group.harness, group.arm): group for group in results.groups}
    assert list(found) == list(product(("h1", "h2"), ("A", "B", "free")))
    a, b, free = (found["h1", arm] for arm in ("A", "B", "free"))
    assert (a.scores, a.what) == ({"a0": 0.0, "a1": 0.25, "a2": 0.5}, "3 seeds of training")
    assert free.scores == {"0": 1.0, "1": pytest.approx(2 / 3)} and free.what == "2 samples"
    assert (a.tasks, free.tasks) == (4, 3), "t3 was aborted in one sample"
    assert a.mean() == (0.25, pytest.approx(4.303 * 0.25 / 3**0.5)), "Student's, two degrees of freedom"
    assert b.mean() == (0.75, None), "two equal seeds say nothing about a third"
    between = b.minus(a)
    assert (between.value, between.half_width) == (0.5, pytest.approx(4.303 * 0.25 / 3**0.5)), "Welch's"
    other = found["h2", "A"]
    assert other.paired_with(a) and other.minus(a) == (0.25, None), "each policy compared with itself"
    assert not found["h2", "free"].paired_with(free), "samples of two harnesses are not of one draw"
    text = markdown(results)
    assert "| s | h1 | A | 3 seeds of training | 4 | 25.0 [-37.1, 87.1] | 0.0 25.0 50.0 |" in text
    assert "| s | h1 / A | h2 / A | +25.0, no spread | by policy |" in text
    assert "Differences over replicates" not in markdown(msgspec.structs.replace(results, groups=()))


async def test_replicates_are_scored_over_the_tasks_that_each_of_them_graded(
    connection: Connection, committed
) -> None:
    """While a suite runs, the first sample is ahead of the second."""
    tasks = [
        TaskRef(task_id=f"t{n}", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
        for n in range(6)
    ]
    suite = msgspec.convert(SMALL_SUITE | {"harnesses": ["h1", "h2"], "samples": 2}, Suite)
    planned = EvaluationPlanned(suite=BlobRef(sha256="1" * 64, size=1), task_sets={"s": "s"}, k=(1,))
    events = [_event(planned, "small")]
    for request in rollout_requests(campaign_of(suite, tasks)):
        number = int(request.task.task_id[1:])
        events.append(_event(request, "small", request.rollout_id))
        graded = {"h1": (range(6), range(2)), "h2": (range(3), range(3, 6))}[request.harness][request.sample]
        if number in graded:
            events.append(ended(request, "resolved" if number == 0 or number > 2 else "unresolved"))
    await Publisher(connection).events(events)

    with open_tables(await committed(), views=["evaluation_tasks", "evaluation_runs"]) as tables:
        results = read_results(tables, "small")

    (group,) = results.groups
    assert (group.harness, group.scores, group.tasks) == ("h1", {"0": 0.5, "1": 0.5}, 2)


def cell(harness: str, model: str, **resolved: tuple[int, int]) -> Cell:
    return Cell(
        task_set="s",
        harness=harness,
        model=model,
        tasks={task: Tally(resolved=right, graded=graded) for task, (right, graded) in resolved.items()},
        requested=sum(graded for _, graded in resolved.values()),
        aborted=0,
        turns=0,
        tokens=0,
        cost_usd=None,
        seconds=0.0,
    )


def test_a_cell_with_a_rollout_of_unknown_cost_has_no_total() -> None:
    def row(task: str, ended: int, cost: float | None) -> TaskResult:
        return TaskResult("s", "h", "m", task, 2, ended, 0, 0, 0, 0, 0, 0, cost, 0.0, ended)

    known = [row("a", 2, 1.0), row("b", 1, 0.5), row("open", 0, None)]
    assert [cell.cost_usd for cell in cells_of(known)] == [1.5]
    assert [cell.cost_usd for cell in cells_of([*known, row("c", 1, None)])] == [None]
    assert [cell.cost_usd for cell in cells_of([row("open", 0, None)])] == [None]


def test_two_cells_differ_where_the_interval_and_the_sign_test_say_so() -> None:
    def cells(tasks: int) -> CellComparison | None:
        gained = {f"t{number}": (0, 1) for number in range(tasks)}
        return paired(cell("h1", "m", **gained), cell("h2", "m", **dict.fromkeys(gained, (1, 1))))

    few, many = cells(2), cells(8)
    assert few is not None and many is not None
    assert (few.p, few.differs) == (0.5, False) and (many.p < 0.05, many.differs) == (True, True)


def test_a_pair_is_over_the_tasks_that_both_graded_with_mcnemars_p() -> None:
    first = cell("h1", "m", **{f"t{n}": (0, 1) for n in range(8)}, lost=(1, 1), same=(1, 1), alone=(1, 1))
    second = cell("h2", "m", **{f"t{n}": (1, 1) for n in range(8)}, lost=(0, 1), same=(1, 1))
    pair = paired(first, second)
    assert pair is not None
    assert (pair.difference.tasks, pair.gained, pair.lost) == (10, 8, 1)
    assert pair.difference.value == pytest.approx(0.7)
    assert pair.p == pytest.approx(2 * (1 + 9) / 2**9)
    assert paired(first, cell("h2", "m", other=(1, 1))) is None


def test_cells_are_compared_that_differ_in_one_thing(tmp_path: Path) -> None:
    cells = tuple(cell(h, m, a=(1, 2), b=(2, 2)) for h in ("h1", "h2") for m in ("m1", "m|<2"))
    results = Results(campaign="c", k=(1, 2), cells=cells)
    assert {frozenset((pair.first, pair.second)) for pair in results.pairs()} == {
        frozenset((("h1", "m1"), ("h1", "m|<2"))),
        frozenset((("h2", "m1"), ("h2", "m|<2"))),
        frozenset((("h1", "m1"), ("h2", "m1"))),
        frozenset((("h1", "m|<2"), ("h2", "m|<2"))),
    }
    text = markdown(results)
    assert "| h1 | m\\|&lt;2 | 75.0%" in text
    assert all(len(row) == len(table.columns) for table in tables_of(results) for row in table.rows)
    assert tables_of(results)[-1].columns[1:4] == ("baseline", "compared", "compared - baseline")
    report, cells_file, picture = write_report(results, tmp_path / "out")
    assert report.read_text() == text
    with cells_file.open(newline="") as file:
        assert [(row["model"], row["pass_at_1"]) for row in csv.DictReader(file)][:2] == [
            ("m1", "0.75"),
            ("m|<2", "0.75"),
        ]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("samples = 0", "samples"),
        ("k = [3]\nsamples = 2", "k = 3 needs as many samples: there are 2"),
        ("steps = 3", "steps: there is no such key"),
        ("harnesses = []", "at least one harness"),
        ('harnesses = ["a", "a"]', "the harness 'a' is named twice"),
        ('models = [{ name = "m" }, { name = "m", endpoint = "b" }]', "the model 'm' is named twice"),
        (
            'task_sets = [{ source = "s" }, { source = "s", name = "b" }]',
            "source of tasks 's' is named twice",
        ),
        ('arms = { a = ["m", "n"] }', "the arm of 'n' names no model of the suite"),
        ('arms = { a = ["m"] }', "an arm has two or more models"),
        ('name = "a b"', "suite name 'a b' is not valid"),
        ("max_cost_usd = 0.0", "max_cost_usd is 0.0: it must be more than 0 USD"),
        ("budget = { steps = -", "cannot be read as TOML"),
    ],
)
def test_a_suite_that_cannot_be_is_refused_with_the_key(tmp_path: Path, change: str, says: str) -> None:
    file = tmp_path / "suite.toml"
    changed = change.partition(" ")[0]
    kept = [line for line in SMALL.splitlines() if not line.startswith(f"{changed} ")]
    file.write_text("\n".join([*kept, change]))
    with pytest.raises(EvaluationError, match=says.replace("[", r"\[")):
        read_suite(file)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"suite\.toml does not exist: write a suite there"):
        read_suite(tmp_path / "suite.toml")


@pytest.mark.long
async def test_published_suites_plan_over_rows_of_the_true_layout(connection: Connection, committed) -> None:
    """And what ran before says what they will cost."""
    suites = {name: read_suite(file) for name, file in published().items()}
    assert suite_file(Path("terminal-bench-2")) == published()["terminal-bench-2"]
    swe = {"swe-bench-verified", "swe-bench-multilingual", "terminal-bench-2"}
    assert set(suites) == swe | {"webvoyager", "online-mind2web", "deepshop"}
    store = await committed()
    suite = suites["swe-bench-verified"]
    with pytest.raises(EvaluationError, match=r"no task of source 'swe-bench-verified': .*tasks import"):
        plan_suite(suite, store)
    registry = TaskRegistry(Publisher(connection), BlobStore(store))
    given = Given(source="swe-bench-verified")
    rows = [SWE_BENCH | {"instance_id": f"psf__requests-{number}"} for number in range(5)]
    await registry.register([task_from_row(row, n, given=given) for n, row in enumerate(rows, 1)])
    unknown = plan_suite(suite, await committed())
    assert (unknown.spec.size, unknown.most_usd, unknown.expected_usd) == (5, 15.0, None)
    with console.capture() as shown:
        show_plan(unknown, [])
        show_plan(unknown, ["m"])
    priced, unpriced = (line for line in shown.get().splitlines() if "of them done" in line)
    assert "5 rollouts, 0 of them done; cost at most 15.00 USD, expected not known" in priced
    assert "cost not known, as the configuration here has no price of m" in unpriced
    assert set(unknown.images) == {
        f"swebench/sweb.eval.x86_64.psf_1776_requests-{number}:latest" for number in range(5)
    }
    earlier = msgspec.structs.replace(unknown.spec, name="earlier", tasks=unknown.spec.tasks[:2])
    requests = list(rollout_requests(earlier))
    await Publisher(connection).events(
        [_event(request, "earlier", request.rollout_id) for request in requests]
        + [ended(request, "resolved") for request in requests]
    )
    drawn = msgspec.structs.replace(suite.task_sets[0], limit=3, seed=1)
    plan = plan_suite(msgspec.structs.replace(suite, task_sets=(drawn,)), await committed())
    assert (plan.spec.size, plan.expected_usd, plan.done) == (3, pytest.approx(1.5), 0)
    again = plan_suite(msgspec.structs.replace(suite, task_sets=(drawn,)), store)
    assert again.spec == plan.spec
    capped = plan_suite(msgspec.structs.replace(suite, task_sets=(drawn,), max_cost_usd=2.0), store)
    assert capped.spec == msgspec.structs.replace(plan.spec, max_cost_usd=2.0)
    made = msgspec.structs.replace(plan.spec, harness_versions={"orchard-bash": "1"})
    assert gone_on(made, None, plan.spec) == (plan.spec, None)
    assert gone_on(made, 1.0, capped.spec) == (plan.spec, 2.0)
    assert gone_on(made, 2.0, capped.spec) == (plan.spec, None)
    made = msgspec.structs.replace(made, max_cost_usd=1.0)
    assert gone_on(made, 1.0, plan.spec) == (msgspec.structs.replace(plan.spec, max_cost_usd=1.0), 0.0)
    other = msgspec.structs.replace(capped.spec, samples=9)
    assert gone_on(made, 1.0, other) == (other, None)
    drawn = msgspec.structs.replace(drawn, limit=9)
    with pytest.raises(EvaluationError, match="has 5 tasks, and limit = 9 asks for more"):
        plan_suite(msgspec.structs.replace(suite, task_sets=(drawn,)), store)


async def test_a_plan_says_what_is_not_known_of_earlier_rollouts(connection: Connection, committed) -> None:
    store, given = await committed(), Given(source="s")
    await TaskRegistry(Publisher(connection), BlobStore(store)).register(
        [task_from_row(SWE_BENCH, 1, given=given)]
    )
    suite = msgspec.convert(
        SMALL_SUITE
        | {"harnesses": ["h1", "h2"], "samples": 2, "task_sets": [{"source": "s", "unproven": True}]},
        Suite,
    )
    plan = plan_suite(suite, await committed())
    requests = list(rollout_requests(msgspec.structs.replace(plan.spec, name="earlier")))
    events = [_event(request, "earlier", request.rollout_id) for request in requests]
    lacking_of = {"h1": ("prompt_tokens", "seconds", "cost_usd"), "h2": ("cost_usd",)}
    for request in requests:
        outcome = ended(request, "resolved")
        if request.harness == "h1" or request.sample:
            data = msgspec.json.decode(outcome.data) | dict.fromkeys(lacking_of[request.harness])
            outcome = msgspec.structs.replace(outcome, data=msgspec.Raw(msgspec.json.encode(data)))
        events.append(outcome)
    await Publisher(connection).events(events)

    plan = plan_suite(suite, await committed())
    with console.capture() as shown:
        show_plan(plan, ())

    first, second = (cell.like for cell in plan.cells)
    assert first is not None and (first.tokens, first.seconds, first.cost_usd) == (None, None, None)
    assert second is not None and (second.cost_usd, second.priced, second.rollouts) == (0.5, 1, 2)
    assert "1 of them with known cost" in " ".join(shown.get().replace("│", " ").split())
    plan_facts(plan, (), [])


async def test_every_published_suite_says_rollouts_images_and_expected_cost(
    connection: Connection, committed, tmp_path: Path
) -> None:
    """Of rows and directories in the true layout, after two rollouts of the model."""
    store = await committed()
    given = Given(source="swe-bench-multilingual")
    image = "alexgshaw/fix-git:20251031"
    harbor = {**HARBOR, "task.toml": f'{TASK_TOML}docker_image = "{image}"\n'}
    directory = read_directory(_written(tmp_path / "fix-git", harbor))
    assert directory.image == image
    tasks = [
        task_from_row(SWE_BENCH, 1, given=Given(source="swe-bench-verified")),
        task_from_row(_row("redis/redis", "tests/unit/type/list.tcl"), 1, given=given),
        task_from_row(_row("sharkdp/bat", "tests/integration_tests.rs"), 2, given=given),
        msgspec.structs.replace(directory_task(directory, image), source="terminal-bench-2"),
    ]
    await TaskRegistry(Publisher(connection), BlobStore(store)).register(tasks)
    suites = {name: read_suite(file) for name, file in published().items()}
    spec = plan_suite(suites["swe-bench-multilingual"], await committed()).spec
    requests = list(rollout_requests(msgspec.structs.replace(spec, name="earlier")))
    await Publisher(connection).events(
        [_event(request, "earlier", request.rollout_id) for request in requests]
        + [ended(request, "resolved") for request in requests]
    )
    store = await committed()
    for name, images, says in (
        ("swe-bench-verified", ["psf_1776_requests-1963"], "1 rollouts, 0 of them done; cost at most 3.00"),
        ("swe-bench-multilingual", ["redis_1776_redis-4711", "sharkdp_1776_bat-4711"], "at most 6.00"),
        ("terminal-bench-2", [image], "1 rollouts, 0 of them done; cost at most 3.00"),
    ):
        plan = plan_suite(suites[name], store)
        with console.capture() as shown:
            show_plan(plan, ())
        assert all(image in shown.get() for image in images), name
        expected = 0.5 * plan.spec.size
        assert says in shown.get() and f"expected about {expected:,.2f} USD" in shown.get(), name
        absent, published_tasks = lacking(plan, ["host"]), name == "terminal-bench-2"
        assert f"{plan.spec.size} tasks need {len(images)} images that are not here" in absent[-1]
        assert bool(lacking(plan, plan.images)) is published_tasks
        assert not published_tasks or absent[0].startswith("Terminal-Bench 2.0 has 89 tasks, and 88 of them")


async def test_predictions_are_those_of_rollouts_with_an_outcome(
    connection: Connection, committed, tmp_path: Path
) -> None:
    blobs = BlobStore(await committed())
    long = blobs.put(b"diff --git long", "text/x-diff")
    tasks = [
        TaskRef(task_id=f"t{n}", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
        for n in range(3)
    ]
    suite = msgspec.convert(
        {"name": "small", "task_sets": [{"source": "s"}], "harnesses": ["h"], "models": [{"name": "org/m"}]},
        Suite,
    )
    requests = list(rollout_requests(campaign_of(suite, tasks)))
    await Publisher(connection).events(
        [_event(request, "small", request.rollout_id) for request in requests]
        + [
            ended(requests[0], "unresolved", "diff --git short"),
            ended(requests[1], "resolved", blob=long),
            ended(requests[2], "aborted"),
        ]
    )
    with open_tables(await committed()) as tables:
        (file,) = write_predictions(tables, blobs, "small", tmp_path)
    assert file.name == "org%2Fm--h.0.json"
    assert json.loads(file.read_text()) == {
        task: {"instance_id": task, "model_name_or_path": "org/m--h", "model_patch": patch}
        for task, patch in (("t0", "diff --git short"), ("t1", "diff --git long"))
    }
