"""Pages count as the view `pass_rates` and the graders do."""

from pathlib import Path

import pytest

from orchard.actions.rollout_index import RolloutIndex
from orchard.page.evaluations import known_evaluations
from orchard.page.failures import failures
from orchard.page.rollouts import Query, summary_of
from orchard.page.search_index import SearchIndex
from orchard.page.searching import answer
from orchard.page.tasks import known, listed
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import EvaluationPlanned, RolloutRequest
from orchard.schemas.events import Event, payload
from orchard.schemas.outcomes import AbortCause, Reward
from orchard.storage.reader import open_tables, position, rows
from orchard.workers.attempts.reopen import aborted
from tests.orchard.page.conftest import stored
from tests.trajectory_log import CAMPAIGN, Author


def _aborted(author: Author, sample: int, cause: AbortCause) -> list[Event]:
    request, started, *_ = author.rollout(sample, ["ls"], resolved=True)
    data = payload(request)
    assert isinstance(data, RolloutRequest)
    return [request, started, author.event(aborted(data, cause, "why", None), data.rollout_id)]


async def test_a_rollout_that_its_site_blocked_is_nowhere_among_the_aborted(tmp_path: Path) -> None:
    author = Author()
    planned = EvaluationPlanned(suite=BlobRef(sha256="1" * 64, size=1), task_sets={"swe-bench": "s"}, k=(1,))
    events = [
        author.event(planned, "", None),
        *author.rollout(0, ["ls"], resolved=True),
        *_aborted(author, 1, AbortCause.BLOCKED),
        *_aborted(author, 2, AbortCause.LLM_UNAVAILABLE),
    ]
    store = str(await stored(tmp_path, events))
    with open_tables(store) as tables:
        index = RolloutIndex(tables)
        index.follow(position(store))
        (rate,) = rows(tables, "select aborted, blocked from pass_rates")
        summary = summary_of(tables, Query.of({"campaign": CAMPAIGN}))
        (evaluation,) = known_evaluations(tables)
        (task,) = listed(tables, CAMPAIGN, "", "name", 0).rows
        (cell,) = known(tables, "t1").cells
        index.close()
    assert (rate["aborted"], rate["blocked"]) == (1, 1)
    assert (summary.aborted, summary.blocked) == (1, 1)
    assert (evaluation["aborted"], evaluation["blocked"]) == (1, 1)
    assert (task["aborted"], cell["aborted"]) == (1, 1)


@pytest.mark.parametrize(
    ("tests", "failing"),
    [
        ({"new": "FAILED", "kept": "SKIPPED"}, {"new"}),  # a skipped test of pass_to_pass is kept
        ({"new": "SKIPPED", "kept": "PASSED"}, {"new"}),  # one of fail_to_pass is not
        ({"new": "ERROR", "old": "MISSING"}, {"new", "old"}),
    ],
)
async def test_a_skipped_test_failed_only_where_it_had_to_pass(
    tmp_path: Path, tests: dict[str, str], failing: set[str]
) -> None:
    author = Author()
    store = str(await stored(tmp_path, author.rollout(0, ["ls"], resolved=False, tests=tests)))
    words = SearchIndex(store, tmp_path / "words.sqlite")
    with open_tables(store) as tables:
        index = RolloutIndex(tables)
        index.follow(position(store))
        (cluster,) = failures(tables).clusters
        found = {
            test
            for test in tests
            if answer(tables, words, Query.of({"failing": test}), position(store)).summary.total
        }
        index.close()
    words.close()
    number = len(failing)
    assert any(said.startswith(f"{number} test{'s' * (number > 1)}, the first") for said in cluster.why)
    assert found == failing


async def test_a_test_that_an_abandoned_attempt_failed_is_not_one_of_the_rollout(tmp_path: Path) -> None:
    author = Author()
    *events, outcome = author.rollout(0, ["ls"], resolved=True, attempt=2, tests={"new": "PASSED"})
    dead = Reward(value=-1.0, resolved=False, grader="swe-tests", tests={"new": "FAILED"})
    store = str(await stored(tmp_path, [*events, author.event(dead, outcome.rollout_id or "", 1), outcome]))
    words = SearchIndex(store, tmp_path / "words.sqlite")
    with open_tables(store) as tables:
        index = RolloutIndex(tables)
        index.follow(position(store))
        found = answer(tables, words, Query.of({"failing": "new"}), position(store))
        index.close()
    words.close()
    assert found.summary.total == 0
