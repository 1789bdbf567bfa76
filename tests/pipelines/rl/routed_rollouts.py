"""A small mixture of experts in training, and rollouts with random experts."""

import numpy as np

from orchard.pipelines.rl.learner import Learner, Trained
from orchard.pipelines.rl.settings import RouterReplay
from orchard.pipelines.sft.processes import Processes
from tests.pipelines.moe import tiny_moe
from tests.pipelines.rl.test_learner import VOCABULARY, rollouts, settings


def routed_learner(processes: Processes) -> Learner:
    made = settings(context=60, updates=2, router_replay=RouterReplay.ROLLOUT)
    return Learner(made, tiny_moe(VOCABULARY), processes)


def routed_rollouts(seed: int) -> list[Trained]:
    batch, random = rollouts(seed), np.random.default_rng(seed)
    for sequence in (sequence for rollout in batch for sequence in rollout.sequences):
        last = len(sequence.ids) - 1
        layers = [[random.permutation(8)[:2] for _ in range(2)] for _ in range(last)]
        sequence.experts = [np.concatenate(each).astype(np.uint8).tobytes() for each in layers] + [b""]
    return batch
