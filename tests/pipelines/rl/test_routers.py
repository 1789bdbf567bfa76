"""Experts are chosen again as they were, and weighed by the weights that train."""

import copy

import numpy as np
import pytest
import torch

from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.models.routers import Routers
from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.rl.learner import Learner
from orchard.pipelines.rl.settings import RouterReplay, settings_from, settings_hash
from orchard.pipelines.sft.settings import TrainingError
from tests.pipelines.moe import tiny_moe
from tests.pipelines.rl.test_learner import ALONE, VOCABULARY, rollouts, settings
from tests.pipelines.sft.small_runs import SHAPE


def moved(model: torch.nn.Module) -> torch.nn.Module:
    """A copy with other routers."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in other.named_parameters():
            if name.endswith("mlp.gate.weight"):
                weight.add_(0.5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return other


def test_replayed_experts_are_weighed_by_equation_7_of_the_paper() -> None:
    model = tiny_moe(VOCABULARY)
    block, hidden = (
        model.model.layers[0].mlp,
        torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0)),
    )
    chosen = torch.tensor([[0, 1], [2, 3], [4, 5], [6, 7], [7, 0], [3, 1]])
    with torch.no_grad(), Routers(block).replaying([chosen]):
        found = block(hidden)[0].numpy()
        gate_up, down = block.experts.gate_up_proj.numpy(), block.experts.down_proj.numpy()
        logits = (hidden[0] @ block.gate.weight.T).numpy()
    for token, x in enumerate(hidden[0].numpy()):
        own = np.exp(logits[token, chosen[token]])
        expected = np.zeros(32)
        for expert, weight in zip(chosen[token], own / own.sum(), strict=True):
            gate, up = np.split(gate_up[expert] @ x, 2)
            expected += weight * (down[expert] @ (gate / (1 + np.exp(-gate)) * up))
        np.testing.assert_allclose(found[token], expected, rtol=1e-4, atol=1e-7)


def test_what_was_recorded_is_chosen_again_and_nothing_stays_behind() -> None:
    model, ids = tiny_moe(VOCABULARY), torch.arange(20)[None]
    other = moved(model)
    with torch.no_grad():
        with Routers(model).recording() as choices:
            plain = model(ids).logits
        free = other(ids).logits
        with Routers(other).recording() as own:
            other(ids)
        with Routers(model).replaying(choices):
            assert torch.equal(model(ids).logits, plain), "its own choices change nothing"
        routers = Routers(other)
        with routers.replaying(choices), routers.recording() as again:
            other(ids)
        assert torch.equal(other(ids).logits, free), "no hook is left"
    assert [each.shape for each in choices] == [(20, 2), (20, 2)]
    assert all(torch.equal(a, b) for a, b in zip(again, choices, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(own, choices, strict=True))


@pytest.mark.parametrize("again", [False, True], ids=["", "activation checkpointing"])
def test_later_updates_of_a_step_choose_the_experts_of_the_weights_before_it(again: bool) -> None:
    def chosen(**changes: object) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Of the second half's packs: by the weights before the step, and in its update."""
        trainer = Learner(
            settings(updates=2, lr=0.3, activation_checkpointing=again, **changes),
            tiny_moe(VOCABULARY),
            ALONE,
        )
        seen: list[torch.Tensor] = []
        for layer in trainer.model.model.layers:
            layer.mlp.experts.register_forward_pre_hook(lambda _, given: seen.append(given[1].detach()))
        trainer.step(0, rollouts())
        return seen[2:4], seen[-2:]

    before, after = chosen(router_replay=RouterReplay.UPDATES)
    assert all(torch.equal(a, b) for a, b in zip(sorted_(before), sorted_(after), strict=True))
    before, after = chosen()
    assert any(not torch.equal(a, b) for a, b in zip(sorted_(before), sorted_(after), strict=True))


def sorted_(some: list[torch.Tensor]) -> list[torch.Tensor]:
    """In an order that does not depend on which layer was computed again first."""
    return sorted(some, key=lambda each: each.flatten().tolist())


def test_models_and_settings_without_anything_to_replay_are_refused() -> None:
    with pytest.raises(ModelError, match="no routers whose choices can be replayed"):
        Routers(new_model(SHAPE, vocabulary=VOCABULARY, seed=0))
    least = {"run": "r", "model": "m", "out": "o"}
    with pytest.raises(TrainingError, match="`updates` is 1"):
        settings_from(least | {"router_replay": True})
    two = least | {"updates": 2}
    replays = ({}, {"router_replay": False}, {"router_replay": True}, {"router_replay": "updates"})
    hashes = [settings_hash(settings_from(two | more)) for more in replays]
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3]
    assert settings_from(least | {"router_replay": "rollout"}).router_replay is RouterReplay.ROLLOUT
