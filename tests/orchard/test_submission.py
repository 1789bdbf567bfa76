"""What `submit` finds wrong before anything is queued: decided on what workers say of themselves."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from orchard.actions.needs import check_copies, check_network, default_harness
from orchard.actions.submission import check_prices, check_workers, endpoints_of, unpriced
from orchard.configuration.config import ConfigError
from orchard.pipelines.tasks.registry import Needs
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignSpec, ModelSpec, TaskRef
from orchard.schemas.health import ProcessReport
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.plugins import Kind
from orchard.workers.llm.settings import EndpointSettings, Price

NOTHING: dict[Kind, set[str]] = {}


def plan(
    priority: str = "normal", endpoint: str = "default", name: str = "c", samples: int = 1
) -> CampaignSpec:
    task = TaskRef(task_id="t", source="s", repo="r", blob=BlobRef(sha256="0" * 64, size=1))
    model = ModelSpec(name="m", endpoint=endpoint)
    return CampaignSpec(
        name=name, tasks=(task,), harnesses=("h",), models=(model,), samples=samples, priority=priority
    )


def worker(serves: str = "rollout-swe-normal", **says: Any) -> ProcessReport:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return ProcessReport(name="w", kind="worker", host="h", pid=1, started=now, serves=serves, **says)


def test_a_priority_that_no_worker_serves_is_told_with_the_command_that_serves_it() -> None:
    notes = check_workers(plan("nightly"), [worker()], NOTHING, ["default"])
    assert [note for note in notes if "`orchard worker --priority nightly`" in note] == notes != []


def test_an_endpoint_that_no_worker_has_is_refused_with_those_that_there_are() -> None:
    working = [worker(endpoints=["default", "oracle"]), worker("rollout-swe-other", endpoints=["gpt"])]
    with pytest.raises(ConfigError, match=r"no worker has the endpoint gpt \(there is: default, oracle\)"):
        check_workers(plan(endpoint="gpt"), working, NOTHING, ["gpt"])
    assert check_workers(plan(endpoint="oracle"), working, NOTHING, []) == []


def test_workers_that_do_not_say_their_endpoints_are_believed_to_have_them() -> None:
    assert check_workers(plan(endpoint="gpt"), [worker(), worker(endpoints=[])], NOTHING, []) == []


def test_where_no_worker_is_an_endpoint_that_is_not_here_is_told() -> None:
    notes = check_workers(plan(endpoint="gpt"), [], NOTHING, ["default"])
    assert any("no endpoint gpt" in note for note in notes)
    assert len(check_workers(plan(), [], NOTHING, ["default"])) == 1


def test_a_plugin_that_no_worker_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="no worker has the graders mine"):
        check_workers(plan(), [worker(plugins={"graders": ["other"]})], {Kind.GRADER: {"mine"}}, [])


def test_a_cap_is_refused_for_a_model_without_a_price() -> None:
    """By the configuration here, or, where workers serve the queue, by theirs: they price the calls."""
    without = EndpointSettings(base_url="http://h/v1")
    priced = EndpointSettings(base_url="http://h/v1", prices={"m": Price(prompt=1.0, completion=1.0)})
    capped = msgspec.structs.replace(plan(), max_cost_usd=5.0)
    knows, knows_not = worker(priced={"default": ["m"]}), worker(priced={"default": ["n"]})
    elsewhere = worker("rollout-swe-normal2,rollout-swe-other", priced={"default": []})
    check_prices(plan(), {"default": without})
    check_prices(capped, {"default": priced}, [worker(), elsewhere])
    check_prices(capped, {}, [knows])
    for endpoints, working in (
        ({"default": without}, []),
        ({"other": priced}, []),
        ({}, [worker(), elsewhere]),
        ({"default": priced}, [knows, knows_not]),
    ):
        with pytest.raises(ConfigError, match=r'model m has no price.*\[endpoints.default.prices."m"\]'):
            check_prices(capped, endpoints, working)
    oracle = ModelSpec(name="oracle", endpoint="oracle", kind=ModelKind.ORACLE)
    check_prices(msgspec.structs.replace(capped, models=(oracle,)), {"oracle": without})
    assert unpriced(plan(), {"default": without}) == unpriced(plan(), {}) == ["m"]
    assert unpriced(plan(), {"default": priced}) == []


def test_models_have_one_endpoint_or_one_each_in_their_order() -> None:
    assert endpoints_of(["m", "oracle"], []) == ["default", "oracle"]
    assert endpoints_of(["m", "n"], ["fast"]) == ["fast", "fast"]
    assert endpoints_of(["m", "claude@20260101"], ["fast", "vendor"]) == ["fast", "vendor"]
    with pytest.raises(ConfigError, match="--endpoint is given 2 times for 3 models"):
        endpoints_of(["m", "n", "o"], ["fast", "vendor"])


PATCH = Needs(grader=None, network=None, patch=True, repo="six")
CHECK = Needs(grader=None, network=None, patch=False, repo="prompts")
ONLINE = Needs(grader=None, network="any public address", patch=False, repo="harbor")
OFFLINE = Needs(grader=None, network="nothing", patch=False, repo="harbor")
STOPPED = Needs(grader=None, network=None, patch=False, repo="harbor", stopped=True)
UNREAD = Needs(grader=None, network=None, patch=False, repo="terminal-bench")


def test_tasks_that_ask_for_a_network_are_refused_with_their_count_and_the_setting() -> None:
    needs = {"a": ONLINE, "b": ONLINE, "c": OFFLINE, "d": PATCH}
    with pytest.raises(ConfigError, match=r"2 of 4 tasks ask for a network \(a, b\)") as refused:
        check_network(needs, "never")
    assert all(word in str(refused.value) for word in ("sandbox.task_network", '"as_asked"', "no-network"))
    assert check_network({"c": OFFLINE, "d": PATCH}, "never") == []
    [note] = check_network(needs, "as_asked")
    assert note == "2 of 4 tasks have a network, for agent and check: any public address"


def test_directories_that_were_imported_before_are_told_of_and_run() -> None:
    [note] = check_network({"a": UNREAD, "b": CHECK}, "never")
    assert "1 tasks (a) were imported before" in note


def test_the_default_harness_is_that_of_the_tasks_kind() -> None:
    assert default_harness("swe", {"a": PATCH}) == "orchard-bash"
    assert default_harness("swe", {"a": CHECK, "b": ONLINE}) == "orchard-task"
    assert default_harness("claw", {"a": CHECK}) == "claw-react"
    with pytest.raises(ConfigError, match="1 tasks are judged by a patch and 2 by what is left"):
        default_harness("swe", {"a": PATCH, "b": CHECK, "c": ONLINE})


def test_a_service_that_cannot_end_processes_gets_no_tasks_whose_checks_need_that() -> None:
    with pytest.raises(ConfigError, match=r"1 of 2 tasks \(b\) are judged after .* import these tasks again"):
        check_copies({"a": CHECK, "b": STOPPED}, copies=False)
    check_copies({"b": STOPPED}, copies=True)
    check_copies({"b": STOPPED}, copies=None)
    check_copies({"a": CHECK}, copies=False)
