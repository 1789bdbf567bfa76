"""Rows of web benchmarks as tasks, their suites, and `orchard tasks funnel` from rows to rows."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from orchard.actions.session import Session
from orchard.cli.evaluation import show_plan
from orchard.cli.tasks import app
from orchard.configuration.config import Config
from orchard.pipelines.domains.gui.web_rows import PROTOCOLS, task_from_web_row
from orchard.pipelines.evaluation.plan import plan_suite
from orchard.pipelines.evaluation.suite import published, read_suite
from orchard.pipelines.tasks.errors import MalformedRow, TaskError
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.pipelines.tasks.row_files import check_rows, read_rows
from orchard.schemas.gui import GuiWorld
from orchard.schemas.plugins import Kind
from orchard.schemas.tasks import PluginGrading, Task
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.terminal.console import console
from orchard.workers.domains.gui import DOMAIN
from orchard.workers.graders import check_grading
from orchard.workers.judges import get_protocol

ROWS: dict[str, dict[str, Any]] = {
    "webvoyager": {
        "web_name": "Amazon",
        "id": "Amazon--3",
        "ques": "Find a dog bed that is washable.",
        "web": "https://www.amazon.com/",
    },
    "online-mind2web": {
        "task_id": "0b1f",
        "confirmed_task": "Find the lowest fare to Lima.",
        "website": "https://www.kayak.com/flights",
        "reference_length": 7,
        "level": "hard",
    },
    "deepshop": {"id": "ds-1", "ques": "Find the cheapest red kettle.", "web": "https://www.ebay.com/"},
    "webgym": {
        "task_id": 17,
        "task_name": "Look up the opening hours.",
        "website": "example.org",
        "source": "insta-v3",
        "parent_task_id": None,
        "difficulty": 3,
    },
    "pae-webvoyager": {"id": "p1", "ques": "Compare two laptops.", "web": "https://www.apple.com/"},
    "insta": {"website": "example.net", "instruction": "Name the author.", "steps": [], "criteria": []},
}
"""A row of each family, in its columns."""


def world_of(task: Task) -> GuiWorld:
    assert not isinstance(task.world, msgspec.UnsetType) and task.world.kind == "browser"
    return msgspec.convert(task.world.settings, GuiWorld)


@pytest.mark.parametrize("family", sorted(PROTOCOLS))
def test_a_row_of_each_family_is_a_task(family: str) -> None:
    task = task_from_web_row(ROWS[family], 1, family=family)
    check_grading(task)
    assert isinstance(task.grading, PluginGrading)
    assert task.grading.settings["protocol"] == PROTOCOLS[family]
    assert get_protocol(PROTOCOLS[family]).version in DOMAIN.components[Kind.JUDGE]
    world = world_of(task)
    assert world.start_url.startswith("https://") and not world.block_network and world.site is None
    assert (task.source, task.task_id.startswith(f"{family}-")) == (family, True)
    assert task.statement in ROWS[family].values() and task.repo == task.labels["site"]


def test_columns_say_what_they_say() -> None:
    task = task_from_web_row(ROWS["webgym"], 1, family="webgym", source="mine")
    assert (task.task_id, task.source) == ("webgym-17", "mine")
    assert task.labels == {"site": "example.org", "split": "insta-v3", "level": "3"}
    assert world_of(task).start_url == "https://example.org"
    row = {"q": "Find tea.", "where": "http://tea.test:8080/a?b", "id": "x"}
    columns = {"intent": "q", "url": "where"}
    found = task_from_web_row(row, 1, family="insta", columns=columns)
    assert (found.statement, world_of(found).start_url) == ("Find tea.", "http://tea.test:8080/a?b")


@pytest.mark.parametrize(
    ("row", "columns", "says"),
    [
        ({"web": "a.com"}, {}, "column for the intent: is empty: --column intent=NAME"),
        ({"ques": " ", "web": "a.com"}, {}, "column ques: is empty"),
        ({"ques": "q"}, {"url": "where"}, "column where: is missing"),
        ({"ques": "q", "web": "nowhere at all"}, {}, "'nowhere at all' names no site"),
        ({"ques": "q", "web": "ftp://a.com"}, {}, "neither http nor https"),
        ({"ques": "q", "web": "file:///etc/passwd"}, {}, "names no site"),
    ],
)
def test_what_is_no_task_says_why(row: dict[str, Any], columns: dict[str, str], says: str) -> None:
    with pytest.raises(MalformedRow, match=says):
        task_from_web_row(row, 4, family="webvoyager", columns=columns)


def test_files_may_be_lines_a_list_or_parquet(tmp_path: Path) -> None:
    rows = [ROWS["webvoyager"], {**ROWS["webvoyager"], "id": "Amazon--4"}]
    lines, whole, table = (tmp_path / name for name in ("a.jsonl", "b.json", "c.parquet"))
    lines.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    whole.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), table)
    read = partial(task_from_web_row, family="webvoyager")
    found = [list(check_rows(file, read).tasks()) for file in (lines, whole, table)]
    assert found[0] == found[1] == found[2] and len(found[0]) == 2
    whole.write_text("[1, {}]", encoding="utf-8")
    assert check_rows(whole, read).left_out[0] == ("line 1", "must be a JSON object")
    whole.write_text("[{", encoding="utf-8")
    with pytest.raises(TaskError, match="cannot be read as a JSON list"):
        check_rows(whole, read)


async def test_suites_of_web_benchmarks_plan_over_imported_rows(
    connection: Connection, committed: Any
) -> None:
    store = await committed()
    tasks = [task_from_web_row(row, 1, family=family) for family, row in ROWS.items()]
    await TaskRegistry(Publisher(connection), BlobStore(store)).register(tasks)
    store = await committed()
    for name in ("webvoyager", "online-mind2web", "deepshop"):
        suite = read_suite(published()[name])
        assert (suite.domain, suite.harnesses, suite.budget.steps) == ("gui", ("browser",), 30)
        plan = plan_suite(suite, store)
        with console.capture() as shown:
            show_plan(plan, [])
        assert plan.spec.size == 1 and "1 rollouts, 0 of them done" in shown.get()


@pytest.mark.long
def test_rows_go_through_the_funnel_and_out_as_they_came(tmp_path: Path) -> None:
    texts = ["Find a bed.", "find a BED", "Buy green tea in a tin", "Read the latest news of Oslo"]
    pool = [
        {"task_id": n, "task_name": text, "website": site, "source": split, "parent_task_id": parent}
        for n, (text, site, split, parent) in enumerate(
            [(text, "https://shop.a.com/x", "pae", None) for text in texts]
            + [
                ("Held out.", "a.com", "pae", None),
                ("Elsewhere.", "a.com", "online-mind2web", None),
                ("A part of it.", "a.com", "pae", 3),
                ("Known to all.", "a.com", "pae", None),
                ("In the long tail.", "tail.org", "pae", None),
                ("Alone on its site.", "b.com", "pae", None),
            ]
        )
    ]
    rows, held, voyager, sites = (tmp_path / name for name in ("p.jsonl", "h.jsonl", "v.jsonl", "s.txt"))
    rows.write_text("".join(json.dumps(row) + "\n" for row in pool), encoding="utf-8")
    held.write_text(json.dumps({"confirmed_task": "held out", "website": "x.com"}), encoding="utf-8")
    voyager.write_text(json.dumps({"ques": "Known to all!", "web": "x.com"}), encoding="utf-8")
    sites.write_text("a.com\nb.com\n", encoding="utf-8")
    out = tmp_path / "out"
    arguments = ["funnel", str(rows), "--out", str(out), "--split", "pae", "--evaluation", str(held)]
    arguments += ["--webvoyager", str(voyager), "--sites", str(sites)]
    for _ in range(2):  # the second finds all of it done
        ran = CliRunner().invoke(app, arguments, obj=Session(Config(store=str(tmp_path / "store"))))
        assert ran.exit_code == 0, ran.output
    dropped = [json.loads(line) for line in (out / "dropped-sft.jsonl").read_text().splitlines()]
    assert [(one["id"], one["stage"]) for one in dropped] == [
        ("1", "duplicates"),
        ("4", "evaluation"),
        ("5", "evaluation"),
        ("6", "parents"),
        ("7", "webvoyager"),
        ("8", "sites"),
        ("9", "sites"),
    ]
    assert dropped[0]["like"] == "0" and dropped[0]["similarity"] == pytest.approx(1.0)
    assert dropped[5]["reason"] == "tail.org is in no list of popular sites"
    assert dropped[6]["reason"] == "the only task of b.com"
    kept = [row for _, row in read_rows(out / "kept-sft.jsonl")]
    assert kept == [pool[0], pool[2], pool[3]]
    report = json.loads((out / "report-rl.json").read_text())
    assert [stage["after"] for stage in report["stages"]] == [8, 7, 6, 4, 3] and report["kept"] == 3


async def test_tasks_of_the_store_go_through_the_funnel(
    connection: Connection, committed: Any, tmp_path: Path
) -> None:
    store = await committed()
    texts = {"1": "Find a bed.", "2": "Find a bed!", "3": "Buy tea."}
    tasks = [
        task_from_web_row({"id": name, "ques": text, "web": "a.com"}, 1, family="webgym")
        for name, text in texts.items()
    ]
    await TaskRegistry(Publisher(connection), BlobStore(store)).register(tasks)
    session = Session(Config(store=await committed()))
    arguments = ["funnel", "--source", "webgym", "--purpose", "rl", "--out", str(tmp_path / "out")]
    ran = await asyncio.to_thread(CliRunner().invoke, app, arguments, obj=session)
    assert ran.exit_code == 0, ran.output
    kept = [row["task_id"] for _, row in read_rows(tmp_path / "out" / "kept-rl.jsonl")]  # type: ignore[index]
    assert kept == ["webgym-1", "webgym-3"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--source", "webgym"], "either as files of rows or with --source"),
        (["--column", "intent"], "must be PART=COLUMN"),
        (["--column", "color=red"], "must be PART=COLUMN"),
        (["--purpose", "eval"], "choose from sft, rl"),
        (["--embeddings", "m", "--endpoint", "none"], "no endpoint is named 'none'"),
        (["--strict"], "row 2, column for the intent"),
    ],
)
def test_mistakes_are_sentences(tmp_path: Path, arguments: list[str], says: str) -> None:
    rows = tmp_path / "p.jsonl"
    good = {"task_name": "Find tea.", "website": "a.com"}
    bad = {"website": "a.com"} if "--strict" in arguments else good
    rows.write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n", encoding="utf-8")
    given = ["funnel", str(rows), "--out", str(tmp_path / "out"), *arguments]
    ran = CliRunner().invoke(app, given, obj=Session(Config(store=str(tmp_path / "store"))))
    assert says in str(ran.exception)


def test_malformed_rows_of_a_pool_and_of_a_benchmark_are_left_out_and_counted(tmp_path: Path) -> None:
    rows, held = tmp_path / "p.jsonl", tmp_path / "h.jsonl"
    pool = [{"task_name": f"Find {what}.", "website": "a.com"} for what in ("tea", "a bed", "rice")]
    rows.write_text(
        "".join(f"{json.dumps(row)}\n" for row in [*pool, {"website": "a.com"}]), encoding="utf-8"
    )
    held.write_text(
        "{\n" + json.dumps({"confirmed_task": "Find rice.", "website": "a.com"}), encoding="utf-8"
    )
    given = ["funnel", str(rows), "--out", str(tmp_path / "out"), "--evaluation", str(held)]
    ran = CliRunner().invoke(app, given, obj=Session(Config(store=str(tmp_path / "store"))))
    assert ran.exit_code == 3, ran.output
    assert "p.jsonl, row 4, column for the intent: " in ran.output and "h.jsonl, line 1: " in ran.output
    assert ran.output.splitlines()[-1] == "3 tasks filtered, 2 left out"
    kept = [row["task_name"] for _, row in read_rows(tmp_path / "out" / "kept-rl.jsonl")]  # type: ignore[index]
    assert kept == ["Find tea.", "Find a bed."]
