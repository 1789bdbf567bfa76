"""What measures does not train, nor what is like it, in datasets and as prompts; each with a reason."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from orchard.cli.datasets import held_out_sentence
from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.candidates import candidates
from orchard.pipelines.datasets.manifest import read_manifest
from orchard.pipelines.datasets.rows import read_rows
from orchard.pipelines.datasets.settings import CandidateSource, DatasetSettings, Selection, read_settings
from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.runs import UNMATCHED, choose_tasks
from orchard.pipelines.rl.settings import TaskPool
from orchard.pipelines.rl.settings import read_settings as read_rl_settings
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.held_out import HeldOut, matches
from orchard.pipelines.tasks.registry import imported
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import EvaluationPlanned
from orchard.schemas.events import Event, TaskRejected, TaskValidated
from orchard.schemas.tasks import SWETests, Task, task_hash
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from tests.pipelines.tasks.test_tasks_overlap import code, patch, prose
from tests.trajectory_log import Author

HELD = ("held-1", "verified", "psf/requests", prose(1), patch(code(1)))
TASKS = (
    HELD,
    ("near", "mined", "someone/requests-fork", f"Repair this: {prose(1)}", patch(code(2))),
    ("sibling", "mined", "Requests", prose(3), patch(code(3))),
    ("unproven", "mined", "o/a", prose(4), patch(code(4))),
    ("rejected", "mined", "o/a", prose(5), patch(code(5))),
    ("good-1", "mined", "o/b", prose(6), patch(code(6))),
    ("good-2", "mined", "o/b", prose(7), patch(code(7))),
)
VERDICTS = {"unproven": None, "rejected": TaskRejected}


def stored(author: Author, store: Path) -> list[Event]:
    """The tasks as events, their blobs in the store, and two rollouts of each."""
    blobs = BlobStore(str(store))
    events = []
    for task_id, source, repo, statement, gold in TASKS:
        task = Task(
            task_id=task_id,
            source=source,
            repo=repo,
            image="i",
            statement=statement,
            gold_patch=gold,
            grading=SWETests(test_patch="", test_command="true", fail_to_pass=("t",)),
        )
        blob = blobs.put(msgspec.json.encode(task), "application/json")
        events.append(author.event(imported(task, blob), "", None))
        known = {"task_id": task_id, "task_hash": task_hash(task)}
        if task_id == "rejected":
            events.append(author.event(TaskRejected(**known, reason="flaky", detail=""), "", None))
        elif task_id != "unproven":
            events.append(author.event(TaskValidated(**known, runs=1, seconds=1.0), "", None))
        for sample in range(2):
            events += author.rollout(sample, ["ls", "submit"], resolved=True, task=task_id, repo=repo)
    # a trajectory of elsewhere, whose task the log does not have
    words = f"You are in /testbed. {prose(1)} Submit when done."
    return [
        *events,
        *author.rollout(9, ["ls", "submit"], resolved=True, task="theirs", repo="x/y", user=words),
    ]


def tasks_of(directory: Path) -> Counter[str]:
    return Counter(row.task_id for row in read_rows(directory))


@pytest.mark.long
async def test_a_dataset_has_nothing_that_measures_and_says_what_it_left_out(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    store = await keep(stored(author, tmp_path / "store"))
    plain = DatasetSettings(name="test", tokenizer=tokenizer)
    everything = build(store, plain, tmp_path / "everything")
    assert tasks_of(tmp_path / "everything").keys() == {
        "held-1",
        "near",
        "sibling",
        "good-1",
        "good-2",
        "theirs",
    }
    assert (everything.counts["dropped_task_unproven"], everything.counts["dropped_task_rejected"]) == (2, 2)

    held = msgspec.structs.replace(
        plain,
        source=CandidateSource(unproven=True, exclude=("good-2",)),
        held_out=HeldOut(tasks=("verified",), repos=True),
        selection=Selection(per_task=1),
    )
    made = build(store, held, tmp_path / "held")
    assert tasks_of(tmp_path / "held") == {"good-1": 1, "unproven": 1}
    wanted = {
        "held_out": 2,
        "near_held_out": 3,
        "held_out_repo": 2,
        "excluded": 2,
        "task_rejected": 2,
        "task_cap": 2,
    }
    assert {name: made.counts[f"dropped_{name}"] for name in wanted} == wanted
    assert held_out_sentence(made).startswith("7 rollouts of 4 tasks train nothing: ")
    assert "2 nearly equal one" in held_out_sentence(made) and not held_out_sentence(everything)
    left = read_manifest(tmp_path / "held").contaminated
    assert {task: (why.name, why.of) for task, why in left.items()} == {
        "held-1": ("held_out", "held-1"),
        "near": ("near_held_out", "held-1"),
        "sibling": ("held_out_repo", "held-1"),
        "theirs": ("near_held_out", "held-1"),
    }
    with pytest.raises(TaskError, match="no task's source, id or repository matches 'nosuch'"):
        build(store, msgspec.structs.replace(plain, held_out=HeldOut(tasks=("nosuch",))), tmp_path / "no")


@pytest.mark.long
async def test_prompts_are_drawn_without_it_and_the_reasons_are_counted(keep, author, tmp_path: Path) -> None:
    store = await keep(stored(author, tmp_path / "store"))
    counts: Counter[str] = Counter()
    pool = TaskPool(held_out=HeldOut(tasks=("held-*",)), exclude=("good-2",))
    assert [ref.task_id for ref in choose_tasks(store, pool, counts)] == ["good-1", "sibling"]
    assert +counts == {"held_out": 1, "near_held_out": 1, "excluded": 1}
    with pytest.raises(RunError, match=r"leave no task \(.*excluded.*\)"):
        choose_tasks(store, TaskPool(exclude=("*",)), Counter())


@pytest.mark.long
async def test_prompts_are_measured_often_enough_and_neither_too_easy_nor_too_hard(
    keep, author, tmp_path: Path
) -> None:
    solved = {"good-1": (4, 8), "good-2": (5, 8), "sibling": (0, 8), "near": (3, 7), "held-1": (1, 8)}
    measuring = Author("measuring")
    rollouts = [
        event
        for task, (resolved, graded) in solved.items()
        for sample in range(graded)
        for event in measuring.rollout(sample, ["submit"], resolved=sample < resolved, task=task)
    ]
    for sample in range(8, 16):  # whose outcome is a teacher's
        rollouts += measuring.rollout(sample, ["submit"], resolved=True, task="good-1", teacher="strong")
        rollouts += measuring.rollout(sample, ["submit"], resolved=True, task="near", teacher="strong")
    store = await keep([*stored(author, tmp_path / "store"), *rollouts])
    counts: Counter[str] = Counter()
    pool = TaskPool(measured_in="measuring", above=0.0, at_most=0.5, measured_rollouts=8)
    assert [ref.task_id for ref in choose_tasks(store, pool, counts)] == ["good-1", "held-1"]
    assert +counts == {"measured_too_rarely": 1}
    often = msgspec.structs.replace(pool, measured_rollouts=9)
    with pytest.raises(RunError, match=r"lower `tasks\.measured_rollouts`"):
        choose_tasks(store, often, Counter())
    with pytest.raises(RunError, match=r"widen `tasks\.above`"):
        choose_tasks(store, msgspec.structs.replace(pool, above=0.5, at_most=0.6), Counter())


@pytest.mark.long
async def test_what_an_evaluation_in_the_log_asked_for_is_held_out(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    other = Author("suite")
    planned = EvaluationPlanned(suite=BlobRef(sha256="0" * 64, size=1), task_sets={}, k=(1,))
    evaluated = [
        other.event(planned, "", None),
        *other.rollout(0, ["ls", "submit"], resolved=True, task="held-1", repo="psf/requests"),
    ]
    store = await keep([*stored(author, tmp_path / "store"), *evaluated])
    plain = DatasetSettings(name="test", tokenizer=tokenizer)
    made = build(store, plain, tmp_path / "out")
    assert tasks_of(tmp_path / "out").keys() == {"sibling", "good-1", "good-2"}
    assert (made.counts["dropped_held_out"], made.counts["dropped_near_held_out"]) == (3, 3)
    open_ = msgspec.structs.replace(plain, held_out=HeldOut(evaluations=False))
    assert build(store, open_, tmp_path / "open").rows == made.rows + 6


@pytest.mark.long
async def test_a_name_with_brackets_is_itself_and_patterns_that_name_nothing_are_counted(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    assert matches(("t[a]-1", "t", "t?"), {"t[a]-1", "ta-1", "T", "T1"}) == {
        "t[a]-1": {"t[a]-1", "ta-1"},
        "t": set(),
        "t?": set(),
    }
    store = await keep(stored(author, tmp_path / "store"))
    exclude = ("good-2", "o/*", "unproven", "theirs", "typo", "typo/*")
    made = build(
        store,
        DatasetSettings(name="test", tokenizer=tokenizer, source=CandidateSource(exclude=exclude)),
        tmp_path / "out",
    )
    assert made.counts["exclude_patterns_unmatched"] == 2
    counts: Counter[str] = Counter()
    choose_tasks(store, TaskPool(exclude=exclude), counts)
    assert counts[UNMATCHED] == 3, "the log has no task of the trajectory from elsewhere"


class Listed(tuple[str, ...]):
    """Patterns that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[str]:
        self.times += 1
        return super().__iter__()


async def test_a_long_list_of_exclusions_is_not_gone_through_for_every_rollout(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    store = await keep(stored(author, tmp_path / "store"))
    exclude = Listed(("good-2", "typo"))
    settings = DatasetSettings(name="test", tokenizer=tokenizer, source=CandidateSource(exclude=exclude))
    counts: Counter[str] = Counter()
    with open_tables(store) as tables:
        candidates(tables, BlobStore(store), settings, counts)
    assert (counts["dropped_excluded"], counts["exclude_patterns_unmatched"]) == (2, 1)
    assert exclude.times == 1


def test_a_list_of_exclusions_may_be_a_file_beside_the_settings(tmp_path: Path) -> None:
    lines = "django__*\r\n# held out\n\n  psf/requests \t# all of it\n a#b\n"
    (tmp_path / "out.txt").write_text(lines, encoding="utf-8-sig")  # as editors of Windows write it
    file = tmp_path / "d.toml"
    file.write_text('name = "d"\ntokenizer = "t"\n[source]\nexclude = ["x", "@out.txt"]\n')
    assert read_settings(file).source.exclude == ("x", "django__*", "psf/requests", "a#b")
    run = tmp_path / "r.toml"
    run.write_text('run = "r"\nmodel = "m"\nout = "o"\n[tasks]\nexclude = ["@out.txt"]\n')
    assert read_rl_settings(run).tasks.exclude == ("django__*", "psf/requests", "a#b")
    (tmp_path / "out.txt").unlink()
    with pytest.raises(Exception, match=r"source.exclude: .*out.txt.* cannot be read"):
        read_settings(file)
