"""On-policy distillation: what a teacher's log-probabilities of sampled tokens make of their advantages. No
torch.

With one update a step, the gradient of the clipped objective with the advantage log p_teacher - log p_student
is, in the mean over what the student samples, that of the divergence KL(student || teacher) of each token's
distribution in its context. What a token does to later ones does not count (as in
https://arxiv.org/abs/2306.13649, which has no gradient through sampling).
"""

from enum import StrEnum
from typing import Annotated

import msgspec
import numpy as np

from orchard.pipelines.sft.settings import Count
from orchard.schemas.quantities import Unit
from orchard.workers.llm.settings import ScoringWire

LIMIT = 20.0
"""Maximum size of a token's advantage by the teacher, in nats, as of log-ratios in the losses."""


class RunObjective(StrEnum):
    """What the policy of a run learns from."""

    REWARD = "reward"
    """The rewards of its rollouts."""
    DISTILL = "distill"
    """A teacher's log-probabilities of the tokens that the policy sampled, and rewards as far as
    `distill.reward` says."""


class Distillation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The teacher of `objective = "distill"`; its tokenizer must be the policy's."""

    teacher: str
    """Name of the teacher at its endpoint."""
    endpoint: str = "teacher"
    """Endpoint of the configuration at which the trainer finds the teacher."""
    wire: ScoringWire = ScoringWire.VLLM
    """How it is asked: `vllm`, also for Orchard's policy server, or `sglang`."""
    reward: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Weight of the outcome's advantage, which is added to log p_teacher - log p_student; 0: the teacher
    alone decides."""
    batch_tokens: Annotated[Count, Unit("tokens")] = 65_536
    """Maximum tokens of one request to the teacher, unless one sequence alone is longer."""


def token_advantages(teacher: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """log p_teacher - log p_student of each sampled token, within +-LIMIT. Both arrays are [tokens], in nats;
    the student's are those of the policy that sampled."""
    found: np.ndarray = np.clip(teacher - sampled, -LIMIT, LIMIT)
    return found
