"""slime's rollout function, with the types that slime documents.

slime is not on PyPI (a package of that name is another project), so a stand-in has the fields and the
`from_dict` of its `Sample` (github.com/THUDM/slime: slime/utils/types.py, slime/rollout/base_types.py; 2026).
"""

import asyncio
import sys
from dataclasses import dataclass, field, fields
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchard.adapters import slime
from orchard.configuration.config import ConfigError
from orchard.pipelines.rl.coordinator import begin
from orchard.pipelines.rl.sequences import sequences
from orchard.pipelines.rl.settings import read_settings, settings_from
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.pipelines.rl.written_log import conversation, plan_of, whole_group


@dataclass
class Sample:
    """What slime's trainer reads of a sample."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = (
        None  # siblings of one rollout have the same; versions without it keep it as it is
    )
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    train_metadata: dict[str, Any] | None = None

    @staticmethod
    def from_dict(data):
        unknown = data.keys() - {each.name for each in fields(Sample)}
        assert not unknown, f"slime documents no {unknown}"
        return Sample(**data | {"status": Sample.Status(data["status"])})


@dataclass
class RolloutFnTrainOutput:
    samples: list[list[Sample]]
    metrics: dict[str, Any] | None = None


@pytest.fixture
def installed(monkeypatch):
    for name, content in (
        ("slime", {}),
        ("slime.utils", {}),
        ("slime.utils.types", {"Sample": Sample}),
        ("slime.rollout", {}),
        ("slime.rollout.base_types", {"RolloutFnTrainOutput": RolloutFnTrainOutput}),
    ):
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(slime, "_runs", {})


@pytest.fixture
async def arguments(nats_server, tmp_path, monkeypatch):
    """slime's arguments for a run whose groups are in the log."""
    file = tmp_path / "rl.toml"
    file.write_text(
        'run = "run"\nmethod = "fixed"\nmodel = "m"\nout = "o"\nprompts_per_step = 2\nsteps = 3\n'
        "bar = { size = 2, budget = 2 }\ncontext = 512\n"
    )
    plan = plan_of(read_settings(file))
    monkeypatch.setenv("ORCHARD_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("ORCHARD_NATS__URL", nats_server.url)
    async with connect(NatsSettings(), name="test", url=nats_server.url) as connection:
        await declare(connection, NatsSettings(), [])
        await begin(connection, BlobStore(str(tmp_path / "store")), plan)
        await Publisher(connection).events([e for prompt in range(4) for e in whole_group(plan, prompt)])
    return SimpleNamespace(
        orchard_run=str(file),
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        rewards_normalization=True,
        reward_key=None,
    )


@pytest.mark.long
@pytest.mark.usefixtures("installed")
async def test_slime_gets_groups_of_exactly_n_samples(arguments):
    output = await asyncio.to_thread(slime.generate_rollout, arguments, 0, None)
    assert isinstance(output, RolloutFnTrainOutput)
    assert [len(group) for group in output.samples] == [2, 2]
    flat = [sample for group in output.samples for sample in group]
    assert [sample.group_index for sample in flat] == [0, 0, 1, 1]
    assert [sample.reward for sample in flat] == [1.0, -1.0, 1.0, -1.0]
    rows = [sequences(conversation(100 * prompt + slot))[0] for prompt in (0, 1) for slot in (0, 1)]
    for sample, row in zip(flat, rows, strict=True):
        assert sample.status is Sample.Status.COMPLETED
        assert sample.tokens == row.ids
        assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs)
        assert sum(sample.loss_mask) == sum(row.mask)
        sampled = [value for value, trains in zip(row.logprobs, row.mask, strict=True) if trains]
        pairs = zip(sample.rollout_log_probs, sample.loss_mask, strict=True)
        assert [value for value, trains in pairs if trains] == sampled
    assert output.metrics["orchard/generated"] == 4


@pytest.mark.long
@pytest.mark.usefixtures("installed")
async def test_our_advantages_take_the_place_of_rewards_that_are_kept(arguments):
    arguments.orchard_advantages, arguments.rewards_normalization = True, False
    first = slime.generate_rollout(arguments, 0, None)  # where an event loop runs in the same thread
    flat = [sample for group in first.samples for sample in group]
    assert [sample.reward for sample in flat] == pytest.approx([2**-0.5, -(2**-0.5)] * 2, rel=1e-5)
    assert [sample.metadata["raw_reward"] for sample in flat] == [1.0, -1.0] * 2
    assert slime.generate_rollout(arguments, 0, None) == first, "the same step again"


@pytest.mark.parametrize(
    ("changes", "evaluation", "says"),
    [
        ({"n_samples_per_prompt": 8}, False, "--n-samples-per-prompt is 8 and the run's is 2"),
        ({"orchard_run": None}, False, "name the run's TOML file"),
        ({"orchard_advantages": True}, False, "--disable-rewards-normalization"),
        ({}, True, "no evaluation"),
    ],
    ids=str,
)
async def test_arguments_that_do_not_fit_are_refused(arguments, changes, evaluation, says):
    vars(arguments).update(changes)
    with pytest.raises(ConfigError, match=says):
        slime.generate_rollout(arguments, 0, None, evaluation=evaluation)


def test_a_frugal_run_is_refused():
    settings = settings_from({"run": "r", "model": "m", "out": "o", "method": "frugal"})
    with pytest.raises(ConfigError, match="unequal sizes"):
        slime.check_arguments(None, settings, True)
