"""From a task's known solution to a rubric, and by it to rewards of turns: real queue and log, and a teacher
and a judge over their wire."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from examples.domains import rubric_rules
from orchard.actions.rubrics import write_rubrics
from orchard.actions.session import Session
from orchard.actions.values import annotate_campaign
from orchard.configuration.config import Config, ConfigError
from orchard.pipelines.datasets.candidates import candidates
from orchard.pipelines.datasets.examples import segments_of
from orchard.pipelines.datasets.settings import CandidateSource, DatasetSettings, Values
from orchard.pipelines.values.cases import Case, CaseStep
from orchard.pipelines.values.replies import BadReply, Fault
from orchard.pipelines.values.requests import Asking
from orchard.pipelines.values.rubric_writer import Teaching
from orchard.pipelines.values.rubrics import JUDGE_VERSION, RubricJudge, met, read_rubric, teacher_prompt
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.values import Criterion, Rubric
from orchard.storage.reader import open_tables
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams.settings import NatsSettings
from orchard.streams.tasks import end
from orchard.workers.llm.settings import EndpointSettings, Price
from tests.pipelines.values.test_annotator import COMMANDS, TASK, observation
from tests.trajectory_log import Author

CANARY = "the sum of both operands 7f3a"
WRITTEN = json.dumps(
    [
        {"criterion": "It opens the module.", "weight": 1},
        {"criterion": "It runs the failing test.", "weight": 1},
        {"criterion": f"It makes the result {CANARY}.", "weight": 2},
    ]
)
SCORED = json.dumps(
    [
        {"step": 0, "criterion": 0, "score": 1, "reasoning": "reads it"},
        {"step": 1, "criterion": 1, "score": 0.5, "reasoning": "runs it"},
        {"step": 2, "criterion": 2, "score": -0.5, "reasoning": "multiplies"},
    ]
)
RUBRIC = Rubric(
    task_id="t",
    task_hash="0" * 64,
    prompt_version="rubric-1",
    criteria=tuple(Criterion(text=name, weight=weight) for name, weight in (("a", 0.25), ("b", 0.75))),
)


@pytest.fixture
async def session(pipeline: Any, teacher: Any, nats_server: Any) -> Any:
    """A pipeline that writes its tables as it goes, with two failed and one solved rollout of one task."""
    author = Author()
    blob = pipeline.blobs.put(msgspec.json.encode(TASK))
    for sample, resolved in enumerate((False, False, True)):
        commands = COMMANDS if resolved else COMMANDS[:3]
        tests = dict.fromkeys(TASK.grading.fail_to_pass, "PASSED" if resolved else "FAILED")
        await pipeline.publisher.events(
            author.rollout(
                sample,
                commands,
                resolved=resolved,
                blob=blob,
                user=TASK.statement,
                observation=observation,
                task=TASK.task_id,
                tests=tests,
            )
        )
    stop = asyncio.Event()
    writer = Writer(pipeline.store, pipeline.connection, WriterSettings(commit_seconds=0.1))
    writing = asyncio.create_task(writer.run(stop))
    prices = {"judge": Price(prompt=1.0, completion=10.0)}
    yield Session(
        Config(
            store=pipeline.store,
            nats=NatsSettings(url=nats_server.url),
            endpoints={"default": EndpointSettings(base_url=teacher.url, prices=prices)},
        )
    )
    stop.set()
    await end(writing)


def rows(session: Any, query: str) -> list[Any]:
    with open_tables(session.config.store, views=query) as tables:
        return tables.execute(query).fetchall()


TEACHING = Teaching(ModelSpec(name="judge"), "teacher")
ASKING = Asking(model="judge", judge=JUDGE_VERSION, annotator="scores", rubric="teacher")


@pytest.mark.long
async def test_a_rubric_is_written_once_and_scores_the_turns_of_all_graded_rollouts(
    session: Any, teacher: Any
) -> None:
    teacher.replies += ["I will.", WRITTEN, SCORED]
    assert (await write_rubrics(session, TEACHING, campaign="demo")).written == 1
    assert (await write_rubrics(session, TEACHING, campaign="demo")).written == 1
    assert len(teacher.asked) == 2, "the refused reply and the rubric, and nothing for the second round"
    assert TASK.gold_patch.splitlines()[-1] in teacher.asked[0]["messages"][1]["content"]
    ((sha256, criteria, tries, input_hash),) = rows(
        session, "select rubric_sha256, criteria, tries, input_hash from rubrics"
    )
    assert (criteria, tries) == (3, 2)
    assert [one["weight"] for one in json.loads(session.blobs.read(sha256))["criteria"]] == [0.25, 0.25, 0.5]
    assert json.loads(session.blobs.read(input_hash)) == teacher.asked[0]["messages"]

    done = await annotate_campaign(session, "demo", ASKING, 2)
    assert done.verdicts == {"value.annotated": 3}
    assert (await annotate_campaign(session, "demo", ASKING, 2)).verdicts == {}
    scored = rows(
        session, "select base, curve, turn_rewards, rubric_sha256, input_hash from values order by 2"
    )
    assert [len(curve) for _, curve, *_ in scored] == [3, 3, 4]
    for base, curve, rewards, rubric, prompt in scored:
        assert base == 0.0 and rubric == sha256
        assert rewards[:3] == pytest.approx([0.25, 0.125, -0.25])
        assert curve[:3] == pytest.approx([0.25, 0.375, 0.125])
        said = "".join(message["content"] for message in json.loads(session.blobs.read(prompt)))
        assert CANARY in said and "Step 2" in said
        assert "# The result" not in said, "the judge is not told the grade"
        assert TASK.gold_patch not in said and TASK.grading.fail_to_pass[0] not in said


@pytest.mark.long
async def test_a_rubric_reaches_nothing_that_a_student_reads(session: Any, teacher: Any) -> None:
    """Not the task, not the conversation of a rollout, and so no row of a dataset."""
    teacher.replies += [WRITTEN, SCORED]
    await write_rubrics(session, TEACHING, campaign="demo")
    await annotate_campaign(session, "demo", ASKING, 2)
    tables = ("messages", "requests", "tasks", "rollouts")
    assert not any(CANARY in str(rows(session, f"select * from {table}")) for table in tables)
    ((task,),) = rows(session, "select distinct task_sha256 from requests")
    assert CANARY not in session.blobs.read(task).decode()


@pytest.mark.long
async def test_a_dataset_takes_scores_as_it_takes_values(session: Any, teacher: Any) -> None:
    """Steps of unresolved rollouts that bring the rubric nearer train: 0 and 1, and not the wrong edit."""
    teacher.replies += [WRITTEN, SCORED]
    await write_rubrics(session, TEACHING, campaign="demo")
    await annotate_campaign(session, "demo", ASKING, 2)
    source = CandidateSource(unproven=True)
    settings = DatasetSettings(
        name="scored", tokenizer="", source=source, values=Values(annotator="scores", eps=0.1)
    )
    counts = Counter[str]()
    with open_tables(session.config.store) as tables:
        chosen = candidates(tables, session.blobs, settings, counts).candidates
    assert (counts["resolved"], counts["unresolved"], counts["unresolved_without_values"]) == (1, 2, 0)
    rising = [segments_of(one, settings) for one in chosen if not one.resolved]
    assert [[(run.first, run.last) for run in runs] for runs in rising] == [[(0, 1)], [(0, 1)]]


@pytest.mark.long
async def test_a_cap_stops_the_questions_and_the_next_round_counts_what_was_paid(
    session: Any, teacher: Any
) -> None:
    """An answer costs 0.0002 USD: with one at a time, two answers reach the cap."""
    teacher.replies += [WRITTEN, SCORED]
    await write_rubrics(session, TEACHING, campaign="demo")
    asking = replace(ASKING, max_cost_usd=0.0003)
    done = await annotate_campaign(session, "demo", asking, 1)
    assert (done.verdicts.total(), done.left_out, done.cost_usd) == (2, 1, pytest.approx(0.0004))
    again = await annotate_campaign(session, "demo", asking, 1)
    assert (again.verdicts.total(), again.left_out) == (0, 1)
    full = await write_rubrics(session, Teaching(TEACHING.model, "second"), campaign="demo", max_cost_usd=0.0)
    assert (full.written, full.left_out) == (0, 1)
    over = await write_rubrics(session, TEACHING, campaign="demo", max_cost_usd=0.0)
    assert (over.written, over.left_out, over.cost_usd) == (1, 0, 0.0), "what is written needs no money"
    with pytest.raises(ConfigError, match="the model cheap has no price"):
        unpriced = Teaching(ModelSpec(name="cheap"), "cheap")
        await write_rubrics(session, unpriced, campaign="demo", max_cost_usd=1.0)


@pytest.mark.long
async def test_what_failed_is_asked_about_again_only_where_that_is_wanted(session: Any, teacher: Any) -> None:
    teacher.replies += ["[]"] * 6 + [WRITTEN] + ["no"] * 3 + [SCORED]
    assert (await write_rubrics(session, TEACHING, campaign="demo")).faults.total() == 1
    assert (await write_rubrics(session, TEACHING, campaign="demo")).faults.total() == 1
    assert len(teacher.asked) == 3
    del teacher.replies[3:6]
    again = Teaching(TEACHING.model, "teacher", again=True)
    assert (await write_rubrics(session, again, campaign="demo")).written == 1
    one = replace(ASKING, max_cost_usd=0.0001)
    failed = await annotate_campaign(session, "demo", one, 1)
    assert failed.faults.total() == 1
    rest = await annotate_campaign(session, "demo", ASKING, 1)
    assert rest.verdicts == {"value.annotated": 2}
    repeated = replace(ASKING, again=True)
    assert (await annotate_campaign(session, "demo", repeated, 1)).verdicts == {"value.annotated": 1}


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        ("[]", Fault.BAD_CRITERION),
        (json.dumps([{"criterion": "a", "weight": 1}] * 3), Fault.BAD_CRITERION),
        (WRITTEN.replace('"weight": 2', '"weight": 0'), Fault.BAD_CRITERION),
        (WRITTEN.replace('"weight": 2', '"weight": true'), Fault.BAD_CRITERION),
        (WRITTEN.replace(CANARY, "x" * 600), Fault.BAD_CRITERION),
        (WRITTEN.replace("It opens the module.", " "), Fault.BAD_CRITERION),
        ("[1, 2, 3]", Fault.NOT_OBJECT),
        ("The task is easy.", Fault.NOT_JSON_ARRAY),
    ],
)
def test_what_is_no_rubric_is_refused_by_its_rule(reply: str, fault: Fault) -> None:
    with pytest.raises(BadReply) as refused:
        read_rubric(reply, TASK)
    assert refused.value.fault is fault


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([{"step": 3, "criterion": 0, "score": 1}], Fault.STEP_OUT_OF_RANGE),
        ([{"step": True, "criterion": 0, "score": 1}], Fault.STEP_OUT_OF_RANGE),
        ([{"step": 0, "criterion": 2, "score": 1}], Fault.BAD_CRITERION),
        ([{"step": 0, "criterion": 0, "score": 1.5}], Fault.BAD_SCORE),
        ([{"step": 0, "criterion": 0, "score": "1"}], Fault.BAD_SCORE),
        ([{"step": step, "criterion": 0, "score": 0.6} for step in (0, 1)], Fault.BAD_SCORE),
        ([{"step": step, "criterion": 0, "score": -0.6} for step in (0, 1)], Fault.BAD_SCORE),
        ([{"step": 0, "criterion": 0, "score": 1, "reasoning": 1}], Fault.REASONING_NOT_TEXT),
    ],
)
def test_scores_outside_the_rules_are_refused(entries: list[Any], fault: Fault) -> None:
    """Among them a criterion that is credited more than once: a judge cannot pay for repetition."""
    with pytest.raises(BadReply) as refused:
        RubricJudge(RUBRIC).read(json.dumps(entries), 3)
    assert refused.value.fault is fault


def test_rewards_are_weighed_scores_and_their_sum_is_what_is_met() -> None:
    entries = [
        {"step": 0, "criterion": 0, "score": 1},
        {"step": 2, "criterion": 1, "score": 0.8},
        {"step": 2, "criterion": 0, "score": -1},
    ]
    read = RubricJudge(RUBRIC).read(f"Here it is: {json.dumps(entries)}", 4)
    assert read.turn_rewards == pytest.approx((0.25, 0.0, 0.35, 0.0))
    assert read.curve == pytest.approx((0.25, 0.25, 0.6, 0.6))
    assert [key.step for key in read.key_steps] == [0, 2]
    assert met([-1.0, 0.5, 1.0]) == (0.0, 0.5, 1.0)


def test_rules_stand_in_for_teacher_and_judge() -> None:
    """The rules of the example answer with a rubric, credit the repair and blame a wrong edit."""
    rubric = read_rubric(rubric_rules.answer(teacher_prompt(TASK)[1]["content"]), TASK)
    judge = RubricJudge(rubric)
    repair = "sed -i '6c\\    total = left + right' arithmetic/mod_1.py"
    for commands, last in (([COMMANDS[0], COMMANDS[1], repair], 0.5), (COMMANDS[:3], -0.5)):
        steps = tuple(CaseStep("", (("bash", command),), ("ok",)) for command in commands)
        case = Case("r", 1, "demo", TASK.statement, steps, "submitted", (), (), 0, "", "")
        read = judge.read(rubric_rules.answer(judge.prompt(case, 50_000).messages[1]["content"]), 3)
        assert read.turn_rewards[0] > 0 and read.turn_rewards[1] > 0
        assert read.turn_rewards[2] * last >= 0.25, read.turn_rewards
