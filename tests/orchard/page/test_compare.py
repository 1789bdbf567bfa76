"""Compare, failures, tasks, runs and actions: equal to SQL and to scipy, and only done where it was asked."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import duckdb
import numpy as np
import pytest
import pytest_asyncio
from scipy.stats import binomtest, bootstrap

from orchard.actions.rollout_index import RolloutIndex
from orchard.page.compare import ComparedArm, compare, matrix, tallied
from orchard.page.failures import failures, last_error
from orchard.page.runs import runs
from orchard.page.tasks import listed
from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.training import PolicyStep
from orchard.storage.reader import open_tables, position, rows
from tests.orchard.page.conftest import TOKEN, served, stored
from tests.trajectory_log import Author

FIRST, SECOND = ComparedArm("first", "mini-swe-agent", "m"), ComparedArm("second", "mini-swe-agent", "m")


def _events() -> list[e.Event]:
    found: list[e.Event] = []
    for name, solved in (("first", lambda n: n % 3 == 0), ("second", lambda n: n % 2 == 0)):
        author = Author(name)
        for number in range(60):
            tests = {"a": "PASSED", f"b{number % 2}": "PASSED" if solved(number) else "FAILED"}
            commands = ["ls"] if number % 20 else ["make"] * 5
            resolved = solved(number)
            task = f"task-{number}"
            repo = f"o/r{number % 4}"
            found += author.rollout(0, commands, resolved=resolved, task=task, repo=repo, tests=tests)
    for number in range(60):
        imported = e.TaskImported(
            task_id=f"task-{number}",
            task_hash="h",
            source="swe-bench",
            repo="o/r",
            image="i",
            blob=BlobRef(sha256="0" * 64, size=1),
            fail_to_pass=1,
            pass_to_pass=1,
            labels={"difficulty": "easy" if number < 10 else "hard"},
        )
        found.append(author.event(imported, "", None))
    author = Author("rl-run")
    found += [author.event(_step(step), "", None) for step in range(1, 900)]
    return found


LEVELS = {"easy": "task-_", "hard": "task-__"}


def _step(step: int) -> PolicyStep:
    facts = dict.fromkeys(PolicyStep.__struct_fields__, 0)
    return PolicyStep(
        **{**facts, "run": "rl-run", "step": step, "version": step, "loss": 1.0 / step, "pass_rate": 0.5}
    )  # type: ignore[arg-type]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def store(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    yield await stored(tmp_path_factory.mktemp("compare"), _events())


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tables(store: Path) -> AsyncIterator[duckdb.DuckDBPyConnection]:
    with open_tables(str(store)) as connection:
        index = RolloutIndex(connection)
        index.follow(position(str(store)))
        yield connection
    index.close()


@pytest.mark.long
async def test_a_comparison_is_that_of_sql_and_of_mcnemar(tables: duckdb.DuckDBPyConnection) -> None:
    found = compare(tallied(tables, FIRST), tallied(tables, SECOND))
    assert found is not None
    changed = tables.sql(
        "select a.task_id, b.resolved from rollouts a join rollouts b using (task_id) "
        "where a.campaign = 'first' and b.campaign = 'second' and a.resolved <> b.resolved"
    ).fetchall()
    assert {each.task_id for each in found.gained} == {task for task, after in changed if after}
    assert {each.task_id for each in found.lost} == {task for task, after in changed if not after}
    assert found.pair.p == pytest.approx(binomtest(len(found.gained), len(changed)).pvalue)
    ((difference,),) = tables.sql(
        "select avg(resolved::int) filter (campaign = 'second') - avg(resolved::int) "
        "filter (campaign = 'first') from rollouts"
    ).fetchall()
    assert found.pair.difference.value == pytest.approx(difference)
    asked = "select task_id, resolved::int from rollouts where campaign = $campaign order by 1"
    before, after = (
        np.array([row[1] for row in tables.execute(asked, {"campaign": arm.campaign}).fetchall()])
        for arm in (FIRST, SECOND)
    )
    reference = bootstrap(
        (after - before,), np.mean, method="percentile", n_resamples=20_000, random_state=7
    ).confidence_interval
    step = 1 / 60  # the means of 60 tasks are multiples of it
    assert found.pair.difference.low == pytest.approx(reference.low, abs=1.01 * step)
    assert found.pair.difference.high == pytest.approx(reference.high, abs=1.01 * step)
    assert found.both + found.neither + len(found.gained) + len(found.lost) == 60
    for repo in found.repos:
        asked = {"repo": repo.name}
        expected = rows(
            tables,
            "select avg(resolved::int) as x from rollouts where campaign = 'second' and repo = $repo",
            asked,
        )
        assert repo.second == pytest.approx(expected[0]["x"])
    for part in found.difficulties:
        asked = "select avg(resolved::int) from rollouts where campaign = 'second' and task_id like $like"
        ((expected_rate,),) = tables.execute(asked, {"like": LEVELS[part.name]}).fetchall()
        assert part.second == pytest.approx(expected_rate)
    assert {part.name: part.tasks for part in found.difficulties} == {"easy": 10, "hard": 50}


async def test_the_matrix_has_the_pass_rates(tables: duckdb.DuckDBPyConnection) -> None:
    expected = rows(tables, "select campaign, rollouts, resolved, graded, aborted from pass_rates order by 1")
    found = sorted(matrix(tables), key=lambda entry: entry.arm)
    assert [
        {
            "campaign": entry.arm.campaign,
            "rollouts": entry.rollouts,
            "resolved": entry.resolved,
            "graded": entry.graded,
            "aborted": entry.aborted,
        }
        for entry in found
    ] == expected


async def test_failures_are_in_clusters_that_say_why(tables: duckdb.DuckDBPyConnection) -> None:
    found = failures(tables, "first")
    by_title = {each.title: len(each.rollouts) for each in found.clusters}
    repeats = [n for n in range(0, 60, 20) if n % 3]
    assert by_title == {
        "submitted, repeats a command": len(repeats),
        "submitted, one test failed": 40 - len(repeats),
    }
    assert found.complete and found.looked == 40
    assert last_error("x\nTraceback\nValueError: 1\nmake: done") == "ValueError: 1"


async def test_the_hardest_tasks_come_first(tables: duckdb.DuckDBPyConnection) -> None:
    found = listed(tables, None, "task-", "hardest", 0)
    rates = [row["pass_rate"] for row in found.rows]
    assert rates == sorted(rates) and len(rates) == 60 and not found.more


async def test_curves_of_a_run_are_thinned_and_end_at_the_last_step(
    tables: duckdb.DuckDBPyConnection,
) -> None:
    found = runs(tables, ["rl-run"])
    line = found.curves["loss"]["rl-run"]
    assert len(line) <= 401 and line[0] == (1, 1.0) and line[-1] == (899, pytest.approx(1 / 899))


async def test_every_page_answers(store: Path) -> None:
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        arms = {"a": FIRST.key, "b": SECOND.key}
        for path, said in (
            ("/compare", "95 % interval over 60 tasks"),
            ("/failures", "repeats a command"),
            ("/tasks", "task-59"),
            ("/tasks/task-7", "mini-swe-agent"),
            ("/runs", "rl-run"),
            ("/status", "No pipeline runs"),
        ):
            async with http.get(path, params=arms if path == "/compare" else {}) as reply:
                assert reply.status == 200 and said in await reply.text(), path
        async with http.get("/compare?a=[1]&b=x") as reply:
            assert reply.status == 400


async def test_changes_need_the_token_and_a_form_of_the_page(store: Path) -> None:
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        async with http.get("/do/pause?of=first") as reply:
            assert "This needs the token" in await reply.text()
        form, mine = {"of": "first"}, {"Origin": url}
        async with http.post("/do/pause", data=form, headers=mine) as reply:
            assert reply.status == 403
        async with http.get(f"/?token={TOKEN}", allow_redirects=False) as reply:
            cookie = {"Cookie": reply.headers["Set-Cookie"].partition(";")[0]}
        for headers in ({}, {"Origin": "https://pages.example"}, {"Origin": "null"}):
            async with http.post("/do/pause", data=form, headers=cookie | headers) as reply:
                assert reply.status == 403
        async with http.post("/do/pause", data=form, headers=cookie | mine) as reply:
            assert reply.status == 503 and "nothing runs on store" in await reply.text()
