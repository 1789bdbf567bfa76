"""A teacher takes over from a student in the middle of a rollout: a real queue, real sandboxes, two scripted
models over HTTP. What the teacher said trains, what the student said is context."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from orchard.actions.submission import check_prices, takeover_plan
from orchard.configuration.config import ConfigError
from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.rows import Row, read_rows
from orchard.pipelines.datasets.settings import CandidateSource, DatasetSettings
from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.pipelines.domains.swe.repairs import Split, repair_tasks
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import (
    Budget,
    CampaignSpec,
    ModelSpec,
    TakeoverPlan,
    TaskRef,
    rollout_requests,
    spec_hash,
)
from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.requests import InvalidRequest, read_rollout_request
from orchard.streams.server import EmbeddedServer
from orchard.workers.attempts import retries
from orchard.workers.domains.swe.oracle.repairs import play, recover
from orchard.workers.llm.settings import EndpointSettings, Price
from orchard.workers.oracle.behaviours import Behaviour
from tests.attempts_world import PRICE, QUICK_RETRIES, Script, World, seed_of, world
from tests.sandbox_service import LocalService
from tests.tiny_tasks import tiny_service, tiny_task

STUDENT = ("cat arithmetic/mod_1.py", "echo thinking > note.txt; ls", "ls -la")
TEACHER = (*STUDENT[:2], "rm note.txt", "sed -i 's/left - right/left + right/' arithmetic/mod_1.py")
AFTER = 2
PLAN = TakeoverPlan(teacher="teacher", teacher_endpoint="other", least=AFTER, most=AFTER)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    async with tiny_service(tmp_path_factory.mktemp("takeover") / "state") as service:
        yield service


@pytest.fixture
async def place(
    nats_server: EmbeddedServer, service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    async with world(nats_server.url, service.url, tmp_path / "store", STUDENT) as made:
        yield made


@pytest.fixture
async def teacher() -> AsyncIterator[Script]:
    async with Script(TEACHER).served() as served:
        yield served


def endpoints(teacher: Script) -> dict[str, EndpointSettings]:
    return {
        "other": EndpointSettings(
            base_url=teacher.url, prices={"teacher": Price(prompt=50.0, completion=200.0)}
        )
    }


async def finished(place: World, rollout: str) -> RolloutFinished:
    data = payload((await place.outcomes(rollout))[rollout])
    assert isinstance(data, RolloutFinished), data
    return data


def made(place: World, out: Path, tokenizer: Path, **changes: object) -> list[Row]:
    settings = DatasetSettings(
        name="taken-over", tokenizer=str(tokenizer), source=CandidateSource(unproven=True)
    )
    build(str(place.store), msgspec.structs.replace(settings, **changes), out)
    return list(read_rows(out))


def trained_text(row: Row, tokenizer: Path) -> str:
    from transformers import AutoTokenizer

    ids = row.input_ids[np.flatnonzero(row.loss_mask)]
    text: str = AutoTokenizer.from_pretrained(str(tokenizer)).decode(ids)
    return text


@pytest.mark.long
async def test_the_teacher_goes_on_from_the_students_state_and_its_turns_alone_train(
    place: World, teacher: Script, tmp_path: Path
) -> None:
    """The sandbox of one rollout dies under the teacher: no model is asked again for what is recorded."""
    calm, hit = await place.submit(tiny_task(1), samples=2, takeover=PLAN)

    async def die(seed: int) -> None:
        if seed == seed_of(hit) and teacher.asked[seed, 4] == 1:
            await place.left(hit, 3)
            await place.end_sandbox(hit)

    teacher.hooks[4] = die
    async with place.working(others=endpoints(teacher)):
        outcomes = [await finished(place, calm), await finished(place, hit)]
    assert [outcome.resolved for outcome in outcomes] == [True, True]
    assert [(outcome.model, outcome.teacher) for outcome in outcomes] == [("script", "teacher")] * 2
    assert [outcome.inherited_turns for outcome in outcomes] == [0, 3]
    assert place.model.turns(seed_of(hit)) == Counter({1: 1, 2: 1})
    assert teacher.turns(seed_of(hit)) == Counter({3: 1, 4: 2, 5: 1})
    assert await place.rows(
        "select rollout_id, list(model order by turn) from llm_calls group by 1 order by rollout_id"
    ) == [(name, ["script"] * 2 + ["teacher"] * 3) for name in sorted([calm, hit])]
    assert await place.rows("select distinct teacher, teacher_endpoint, after_turns from requests") == [
        ("teacher", "other", AFTER)
    ]
    tokenizer = tmp_path / "tokenizer"
    train_tokenizer([*STUDENT, *TEACHER, "Step 1."] * 4, 400, tokenizer)
    rows = made(place, tmp_path / "dataset", tokenizer)
    assert [row.trained_turns for row in rows] == [(2, 3, 4)] * 2
    said = trained_text(rows[0], tokenizer)
    assert "sed -i" in said and "rm note.txt" in said and "Step 5." in said
    assert "cat arithmetic" not in said and "thinking" not in said
    students = made(place, tmp_path / "students", tokenizer, authors=("script",))
    assert [row.trained_turns for row in students] == [(0, 1)] * 2
    both = made(place, tmp_path / "both", tokenizer, authors=("script", "teacher"))
    assert [row.trained_turns for row in both] == [(0, 1, 2, 3, 4)] * 2


@pytest.mark.long
async def test_both_models_count_against_the_cap_of_a_rollout(place: World, teacher: Script) -> None:
    (rollout,) = await place.submit(tiny_task(1), takeover=PLAN, budget=Budget(steps=60, cost_usd=0.02))
    async with place.working(others=endpoints(teacher)):
        outcome = await finished(place, rollout)
    assert outcome.exit_status is ExitStatus.COST_LIMIT
    ((spent,),) = await place.rows("select sum(cost_usd) from llm_calls")
    assert outcome.cost_usd == pytest.approx(spent)
    assert spent >= 0.02 and teacher.turns() == Counter({3: 1})


@pytest.mark.long
async def test_a_rollout_that_ends_before_it_has_no_teacher(place: World, teacher: Script) -> None:
    late = msgspec.structs.replace(PLAN, least=9, most=9)
    (rollout,) = await place.submit(tiny_task(1), takeover=late)
    async with place.working(others=endpoints(teacher)):
        outcome = await finished(place, rollout)
    assert outcome.teacher is None and not teacher.asked


def test_turns_before_it_are_drawn_for_each_rollout():
    task = TaskRef(task_id="t", source="s", repo="r", blob=BlobRef(sha256="0" * 64, size=1))
    plain = CampaignSpec(
        name="c", tasks=(task,), harnesses=("h",), models=(ModelSpec(name="m", logprobs=True),), samples=200
    )
    spec = msgspec.structs.replace(
        plain, takeover=TakeoverPlan(teacher="t", teacher_endpoint="e", least=1, most=4)
    )
    drawn = [request.takeover.after_turns for request in rollout_requests(spec) if request.takeover]
    assert set(drawn) == {1, 2, 3, 4} and max(Counter(drawn).values()) < 80
    assert drawn == [request.takeover.after_turns for request in rollout_requests(spec) if request.takeover]
    first = next(iter(rollout_requests(spec)))
    assert first.takeover is not None
    assert first.takeover.acting(first.model) == ModelSpec(name="t", endpoint="e")
    assert read_rollout_request(msgspec.json.encode(first)) == first
    wrong = msgspec.structs.replace(first, takeover=msgspec.structs.replace(first.takeover, after_turns=-1))
    with pytest.raises(InvalidRequest, match=r"takeover\.after_turns is -1"):
        read_rollout_request(msgspec.json.encode(wrong))
    assert spec_hash(spec) != spec_hash(plain)
    with pytest.raises(ConfigError, match="model t has no price"):
        capped = msgspec.structs.replace(spec, max_cost_usd=1.0)
        check_prices(capped, {"default": EndpointSettings(base_url="http://x/v1", prices={"m": PRICE})})


def test_options_of_a_takeover():
    assert takeover_plan(None, None, "1") is None
    assert takeover_plan("oracle/recovers", None, "0:3") == TakeoverPlan(
        teacher="oracle/recovers", teacher_endpoint="oracle", teacher_kind="oracle", least=0, most=3
    )
    assert takeover_plan("big", "e", "2") == TakeoverPlan(
        teacher="big", teacher_endpoint="e", least=2, most=2
    )
    for after in ("x", "3:1", "-1"):
        with pytest.raises(ConfigError, match="--takeover-after is"):
            takeover_plan("big", None, after)
    with pytest.raises(ConfigError, match="belong to --takeover"):
        takeover_plan(None, "e", "1")


def test_the_oracle_recovers_from_what_another_model_did():
    (task,) = list(repair_tasks(1, 0, Split.TRAIN, [], 8))
    turns = play(task, Behaviour.RESOLVES, 0)
    commands = ['"command"' in call.arguments and call for turn in turns for call in turn.calls]
    assert all(commands)
    said: list[str] = []

    def next_command() -> str:
        (call,) = recover(task, said).calls
        command: str = msgspec.json.decode(call.arguments)["command"]
        said.append(command)
        return command

    assert next_command().startswith("cat -n ")
    assert next_command().startswith("sed -i ")
    assert next_command().startswith("python3 -c ")
    assert "COMPLETE_TASK_AND_SUBMIT" in next_command()
    said[:] = ["sed -i '1c\\wrong' x.py"]
    assert next_command().startswith("cat -n ")
    assert next_command().startswith("git checkout -q -- . && sed -i ")
