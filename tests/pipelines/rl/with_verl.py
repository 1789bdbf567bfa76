"""`python -m tests.pipelines.rl.with_verl`: our groups in verl's own types, where verl is installed.

    pip install --target DIR verl tensordict ray && rm -rf DIR/tests
    PYTHONPATH=DIR python -m tests.pipelines.rl.with_verl

verl's own GRPO advantage of the batch must be the one that we export. A script, because verl needs ray.
"""

import sys

import numpy as np
import torch
from verl import DataProto, __version__
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from orchard.pipelines.rl.exchange import Terms, verl_batch, verl_rows
from orchard.pipelines.rl.loss_settings import Baseline
from orchard.pipelines.rl.sequences import sequences
from orchard.schemas.events import payload
from tests.pipelines.rl.written_log import assembled, conversation, plan_of, run_settings


def main() -> None:
    """Assertions; a line when they hold."""
    plan = plan_of(run_settings())
    rows, terms = [], Terms(plan.slots, Baseline.NORMALIZED)
    for prompt, rewards in enumerate(([1.0, -1.0, -1.0], [1.0, 1.0, -1.0])):
        group = payload(assembled(plan, prompt, [0, 1, 0], rewards))
        rows += verl_rows(group, [sequences(conversation(10 * prompt + at)) for at in range(3)], terms)
    arrays = verl_batch(rows, pad=0)
    batch = DataProto.from_single_dict(
        {name: value if value.dtype == object else torch.from_numpy(value) for name, value in arrays.items()}
    )
    found, _ = compute_grpo_outcome_advantage(
        batch.batch["rm_scores"], batch.batch["response_mask"], index=batch.non_tensor_batch["uid"]
    )
    expected = np.array([row["advantage"] for row in rows])[:, None] * arrays["response_mask"]
    assert np.allclose(found.numpy(), expected, atol=1e-5)
    for row in rows:  # what verl's own agent loops return for one trajectory
        names = {"min_global_steps", "max_global_steps"}
        output = AgentLoopOutput(
            prompt_ids=row["prompts"],
            response_ids=row["responses"],
            response_mask=row["response_mask"],
            response_logprobs=row["rollout_log_probs"],
            reward_score=row["reward"],
            metrics=AgentLoopMetrics(),
            extra_fields={name: row[name] for name in names},
        ).as_dict()
        for name in ("prompts", "responses", "response_mask", "rollout_log_probs"):
            assert torch.allclose(output[name], torch.tensor(row[name], dtype=output[name].dtype)), name
    sys.stdout.write(f"verl {__version__}: {len(batch)} rows, advantages equal\n")


if __name__ == "__main__":
    main()
