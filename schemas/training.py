"""Events of training runs: what was trained on what, each optimizer step, and the result."""

import msgspec

from orchard.schemas.blobs import BlobRef


class TrainingStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A run began, or resumed from a checkpoint (`resumed_step` > 0)."""

    run: str
    config_hash: str
    dataset_sha256: str
    """SHA-256 of the canonical rows, as in the dataset's manifest."""
    model: str
    """Name or architecture of the model that is trained, for example `Qwen/Qwen3-30B-A3B` or `qwen3-tiny`."""
    parameters: int
    """Number of the model's parameters."""
    steps: int
    """Optimizer steps planned for the whole run."""
    code_version: str = ""
    device: str = "cpu"
    """Kind of device: `cpu`, `cuda`, ..."""
    dtype: str = "float32"
    """Floating-point type of the matrix multiplications."""
    world_size: int = 1
    """Number of processes that train together."""
    global_batch: int = 1
    """Examples in one optimizer step."""
    context: int = 0
    """Tokens of one packed sequence."""
    seed: int = 0
    resumed_step: int = 0
    """Step of the checkpoint that the run resumed from; 0: from the start."""
    frozen_sha256: str | None = None
    """SHA-256 of the frozen weights, which `freeze` chose; None if it chose none."""


class TrainingStep(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer step; `step` counts from 1."""

    run: str
    step: int
    loss: float
    """Mean negative log-likelihood over the step's trained tokens, in nats."""
    lr: float
    grad_norm: float
    """Norm of the gradient before clipping."""
    tokens: int
    """Tokens of this step, padding excluded."""
    trained_tokens: int
    seconds: float
    epoch: float = 0.0
    """Number of epochs so far."""
    examples: int = 0
    """Number of this step's examples."""
    memory_bytes: int = 0
    """Peak memory of the device in bytes, where it is known."""


class TrainingFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The run reached its last step; `checkpoint` names the result."""

    run: str
    checkpoint: str
    """Directory or name of the last checkpoint, without the path on this machine."""
    checkpoint_sha256: str = ""
    steps: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0
    final_loss: float = 0.0
    """Loss of the last optimizer step."""
    frozen_sha256: str | None = None
    """SHA-256 of the frozen weights in the result; it equals that of the start, or the run failed."""
    manifest: BlobRef | None = None
    """Blob of the manifest, which says what the result is made of."""


class PolicyStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of reinforcement learning; token figures are means over the step's trained tokens."""

    run: str
    step: int
    """Number of the step, from 1."""
    version: int
    """Policy version that the step made."""
    groups: int
    rollouts: int
    reward: float
    """Mean reward of the rollouts trained on."""
    resolved: float
    """Share of the rollouts trained on whose grader found the task solved."""
    pass_rate: float
    """Share of resolved rollouts among all graded rollouts of the groups' prompts."""
    generated: int
    """Graded rollouts that the groups cost, trained on or not."""
    aborted: int
    balanced: float
    """Share of the groups that are balanced."""
    dropped: int
    """Number of groups dropped since the step before."""
    staleness: float
    """Mean number of policy versions that sampled tokens were behind."""
    loss: float
    lr: float
    grad_norm: float
    entropy: float
    """Entropy of the sampled distributions, in nats."""
    clipped: float
    """Share of tokens where a clip decided, so that no gradient flows."""
    ratio: float
    """Ratio of the trained and the old policy's probabilities."""
    kl: float
    """Divergence from the old policy (k3 estimate), in nats."""
    importance: float
    """Importance weight that corrects for the mismatch of the trainer's and the server's probabilities."""
    truncated: float
    """Share of tokens whose importance weight was at its limit, or outside its range."""
    tokens: int
    trained_tokens: int
    seconds: float
    """Seconds that the optimizer worked."""
    waited: float
    """Seconds that the trainer waited for groups before the step."""
    masked: float | None = None
    """Share of tokens in failed sequences that were masked as off-policy."""
    reference_kl: float | None = None
    """Estimate of the divergence from the reference policy, in nats; 0 where none is asked for."""
    unprotected: float | None = None
    """Share of the rollouts trained on whose reward has the label `inside` or `forgeable`, or none. None in
    older events."""
    teacher_kl: float | None = None
    """Estimate of the divergence of the policy that sampled from its teacher, in nats: mean of logp_sampled -
    logp_teacher. None without a teacher."""
    teacher_tokens: int | None = None
    """Tokens that the teacher read for the step's groups. None without a teacher."""
    teacher_cost_usd: float | None = None
    """Price of that; None where it is not known, and without a teacher."""
