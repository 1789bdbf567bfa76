"""From graded rollouts in the log to a value model, and by it to the best of several attempts."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from orchard.cli.app import app
from orchard.pipelines.evaluation.best_of import Rival, best_of, chosen, normalized
from orchard.pipelines.evaluation.suite import EvaluationError
from orchard.pipelines.reranking.attempts import conversations, features, graded_attempts
from orchard.pipelines.reranking.errors import RerankError
from orchard.pipelines.reranking.model import (
    MANIFEST,
    WEIGHTS,
    Labelled,
    held_out_tasks,
    judged,
    load_reranker,
    train,
)
from orchard.pipelines.reranking.training import train_reranker
from orchard.schemas.campaigns import EvaluationPlanned
from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.values import ValueMeasured
from orchard.storage.reader import open_tables
from tests.orchard.test_facts import check
from tests.trajectory_log import Author

K = 4
TASKS = 8


def attempts(author: Author, tasks: range, of: str, **more: Any) -> list[Any]:
    """Four attempts at each task. Solved ones ran the tests to an end without failures; of three tasks all
    but one attempt hand in the same wrong patch."""
    events = []
    for number in tasks:
        for sample in range(K):
            good = sample == number % K
            word = "passed" if good else "failed"
            events += author.rollout(
                sample,
                ["cat file", "run tests", "submit"],
                resolved=good,
                task=f"{of}-{number}",
                observation=lambda command, word=word: f"{command}: 3 {word}",
                submission="right" if good else f"wrong {0 if number < 3 else sample}",
                tests={"hidden::test": "PASSED" if good else "FAILED"},
                **more,
            )
    return events


@pytest.fixture
async def store(pipeline: Any) -> Any:
    training, evaluation = Author("train"), Author("eval")
    planned = EvaluationPlanned(
        suite=pipeline.blobs.put(b"{}"), task_sets={"swe-bench": "Bench"}, k=(1,), arms={}
    )
    await pipeline.keep(
        *attempts(training, range(TASKS), "train"),
        *attempts(evaluation, range(TASKS), "eval"),
        evaluation.event(planned, "", None),
    )
    return pipeline


@pytest.mark.long
def test_the_best_of_eight_is_reported_beside_the_other_ways(store: Any, tmp_path: Path) -> None:
    """The whole path by commands: a model is trained on one campaign and reranks another."""
    model = tmp_path / "model"

    def orchard(*words: str) -> str:
        done = CliRunner().invoke(app, ["--store", store.store, *words])
        assert done.exit_code == 0, done.output
        return done.stdout

    said = orchard("values", "train", str(model), "train", "--without", "eval")
    assert "100.0% in their order" in said
    manifest = load_reranker(model)[1]
    assert manifest.digest[:12] in said and manifest.campaigns == ("train",)
    assert len(manifest.tasks) == 6 and manifest.held_out.tasks == 2
    options = ("--best-of", str(K), "--rerank", str(model))
    facts = orchard("eval", "report", "eval", *options, "--json")
    check("eval report", facts)
    (cell,) = json.loads(facts)["best_of"]
    found = {choice["by"]: choice["resolved"]["value"] for choice in cell["choices"]}
    assert (cell["task_set"], cell["tasks"], cell["short"], cell["trained_on"]) == ("Bench", TASKS, 0, 0)
    assert found["random"] == pytest.approx(0.25)
    assert found["majority"] == pytest.approx(0.25 * 5 / 8), "the majority is wrong where it is one"
    assert found["rerank"] == found["oracle"] == 1.0
    over = next(choice["over_random"] for choice in cell["choices"] if choice["by"] == "rerank")
    assert 0 < over["low"] < over["value"] == pytest.approx(0.75)
    assert "over random" in orchard("eval", "report", "eval", *options)
    refused = CliRunner().invoke(app, ["--store", store.store, "eval", "report", "eval", "--rerank", "x"])
    assert refused.exit_code and "--best-of" in str(refused.exception or refused.output)


async def test_scores_are_blind_to_tests_grade_and_solution(pipeline: Any) -> None:
    """Two attempts alike in what was said and done, one solved by its grade, get the same features."""
    author = Author("blind")
    for sample, resolved in enumerate((True, False)):
        status = "PASSED" if resolved else "FAILED"
        tests = {f"hidden::{status}": status}
        await pipeline.keep(*author.rollout(sample, ["ls"], resolved=resolved, task="t", tests=tests))
    with open_tables(pipeline.store) as tables:
        read = list(conversations(tables, pipeline.blobs, graded_attempts(tables, ["blind"])))
    first, second = (features(path, one.submission, one.exit_status) for one, path in read)
    assert {one.resolved for one, _ in read} == {True, False}
    assert np.array_equal(first, second) and len(first)


@pytest.mark.long
def test_tasks_that_trained_are_in_no_figure_and_what_cannot_train_is_refused(
    store: Any, tmp_path: Path
) -> None:
    with open_tables(store.store) as tables:
        manifest = train_reranker(tables, store.blobs, tmp_path, ["eval"], seed=1)
        (cell,) = best_of(tables, store.blobs, "eval", K, None, manifest.tasks)
        assert (cell.tasks, cell.trained_on) == (2, 6)
        with pytest.raises(EvaluationError, match="the value model, which saw 8"):
            best_of(tables, store.blobs, "eval", K, None, [f"eval-{n}" for n in range(TASKS)])
        with pytest.raises(EvaluationError, match="has 5 graded rollouts"):
            best_of(tables, store.blobs, "eval", 5)
        with pytest.raises(RerankError, match="no rollouts with outcomes"):
            train_reranker(tables, store.blobs, tmp_path, ["nosuch"])
        with pytest.raises(RerankError, match="no rollouts with measured"):
            train_reranker(tables, store.blobs, tmp_path, ["train"], labels="measured")
    check_seeds(store, tmp_path)


@pytest.mark.long
async def test_measured_values_of_steps_train_too(pipeline: Any, tmp_path: Path) -> None:
    author = Author("train")
    events = attempts(author, range(TASKS), "train")
    for done in [event for event in events if event.type == "rollout.finished"]:
        ended = payload(done)
        assert isinstance(ended, RolloutFinished)
        for step, value in ((0, 0.25), (1, 0.9 if ended.resolved else 0.1)):
            data = ValueMeasured(
                step=step,
                model="m",
                model_kind=ModelKind.MODEL,
                samples=8,
                resolved=round(8 * value),
                value=value,
                low=0.0,
                high=1.0,
            )
            events.append(author.event(data, done.rollout_id))
    await pipeline.keep(*events)
    with open_tables(pipeline.store) as tables:
        manifest = train_reranker(tables, pipeline.blobs, tmp_path, ["train"], labels="measured")
    assert manifest.labels == "measured" and manifest.examples == 6 * K * 2
    assert manifest.held_out.ordered == 1.0


def check_seeds(store: Any, tmp_path: Path) -> None:
    """The same seed makes the same model, and a changed one is refused."""
    with open_tables(store.store) as tables:
        made = [
            train_reranker(tables, store.blobs, tmp_path / name, ["train"], seed=seed)
            for name, seed in (("a", 0), ("b", 0), ("c", 1))
        ]
    assert made[0] == made[1] and made[0].weights_sha256 != made[2].weights_sha256
    weights = tmp_path / "a" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    manifest = tmp_path / "b" / MANIFEST
    manifest.write_text(manifest.read_text().replace('"train-', '"other-'))
    for changed in ("a", "b"):
        with pytest.raises(RerankError, match="was changed"):
            load_reranker(tmp_path / changed)
    with pytest.raises(RerankError, match="orchard values train"):
        load_reranker(tmp_path / "nosuch")
    other = msgspec.structs.replace(made[2], version="0")
    (tmp_path / "c" / MANIFEST).write_bytes(msgspec.json.encode(other))
    with pytest.raises(RerankError, match="version 0"):
        load_reranker(tmp_path / "c")


def test_a_dataset_without_contrast_is_refused() -> None:
    one = np.array([1, 2], dtype=np.int64)
    alike = [Labelled(task, one, float(task == "a")) for task in ("a", "a", "b")]
    with pytest.raises(RerankError, match="nothing to tell apart"):
        train(alike, 0)


def test_ways_to_choose_by_hand() -> None:
    rivals = [
        Rival(False, "a", 0.1),
        Rival(True, "b", 0.9),
        Rival(False, "c", 0.9),
        Rival(True, "c", 0.2),
    ]
    assert chosen(rivals) == {"random": 0.5, "majority": 0.5, "rerank": 0.5, "oracle": 1.0}
    assert chosen([Rival(False, "a"), Rival(True, "b")]) == {"random": 0.5, "majority": 0.5, "oracle": 1.0}
    assert normalized("diff\nindex 1..2\n+a  \n\n") == normalized("diff\nindex 3..4\n+a")
    assert normalized("+ a") != normalized("+  a")


def test_the_split_is_by_task_and_the_order_of_pairs_is_counted_by_task() -> None:
    tasks = [f"t{number}" for number in range(20)]
    assert held_out_tasks(tasks, 0.2, 0) == held_out_tasks(tasks[::-1], 0.2, 0)
    assert len(held_out_tasks(tasks, 0.2, 0)) == 4 != held_out_tasks(tasks, 0.2, 1)
    good, bad = np.array([1], dtype=np.int64), np.array([2], dtype=np.int64)
    examples = [Labelled(task, good if target else bad, target) for task in "ab" for target in (1.0, 0.0)]
    model = train(examples, 0)
    swapped = [Labelled("c", bad, 1.0), Labelled("c", good, 0.0), Labelled("c", good, 0.1)]
    found = judged(model, [*examples, *swapped])
    assert (found.tasks, found.pairs) == (3, 4) and found.ordered == pytest.approx(2 / 3)
    assert judged(model, swapped[1:]).ordered is None
