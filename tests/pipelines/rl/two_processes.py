"""Under `torchrun`: two steps of the learner, sharded; the first process prints their figures as JSON."""

import msgspec

from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.rl.learner import Learner
from orchard.pipelines.sft.processes import joined
from tests.pipelines.rl.test_learner import rollouts, settings
from tests.pipelines.sft.small_runs import SHAPE, VOCABULARY

if __name__ == "__main__":
    with joined(1) as processes:
        learner = Learner(
            settings(context=60, updates=2), new_model(SHAPE, vocabulary=VOCABULARY, seed=3), processes
        )
        figures = [learner.step(number, rollouts(number)) for number in range(2)]
        if processes.first:
            print(msgspec.json.encode(figures).decode())  # noqa: T201
