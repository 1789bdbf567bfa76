"""Under `torchrun`: two steps of the learner, sharded; the first process prints their figures as JSON. With
`routed`, of a mixture of experts that replays its rollouts' experts."""

import sys

import msgspec

from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.rl.learner import Learner
from orchard.pipelines.sft.processes import joined
from tests.pipelines.rl.routed_rollouts import routed_learner, routed_rollouts
from tests.pipelines.rl.test_learner import rollouts, settings
from tests.pipelines.sft.small_runs import SHAPE, VOCABULARY

if __name__ == "__main__":
    with joined(1) as processes:
        if routed := sys.argv[1:] == ["routed"]:
            learner = routed_learner(processes)
        else:
            model = new_model(SHAPE, vocabulary=VOCABULARY, seed=3)
            learner = Learner(settings(context=60, updates=2), model, processes)
        batch = routed_rollouts if routed else rollouts
        figures = [learner.step(number, batch(number)) for number in range(2)]
        if processes.first:
            print(msgspec.json.encode(figures).decode())  # noqa: T201
