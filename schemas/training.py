"""Training runs in the log: what was trained on what, each optimizer step, and what came of it."""

import msgspec

from orchard.schemas.blobs import BlobRef


class TrainingStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A run began, or went on from a checkpoint (`resumed_step` > 0)."""

    run: str
    config_hash: str
    dataset_sha256: str
    """Of the canonical rows, as in the dataset's manifest."""
    model: str
    """Name or architecture of what is trained, for example `Qwen/Qwen3-30B-A3B` or `qwen3-tiny`."""
    parameters: int
    """Number of parameters."""
    steps: int
    """Optimizer steps planned for the whole run."""
    code_version: str = ""
    device: str = "cpu"
    """`cpu`, `cuda`, ..."""
    dtype: str = "float32"
    """Of the matrix products."""
    world_size: int = 1
    """Processes."""
    global_batch: int = 1
    """Examples in one optimizer step."""
    context: int = 0
    """Tokens of one packed sequence."""
    seed: int = 0
    resumed_step: int = 0
    """Step of the checkpoint that it resumed from; 0: from the start."""
    frozen_sha256: str | None = None
    """Of the weights that do not train, as `freeze` chose them; None where it chose none."""


class TrainingStep(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer step; `step` counts from 1."""

    run: str
    step: int
    loss: float
    """Mean negative log-likelihood over the step's trained tokens, in nats."""
    lr: float
    grad_norm: float
    """Before clipping."""
    tokens: int
    """Of this step, padding excluded."""
    trained_tokens: int
    seconds: float
    epoch: float = 0.0
    """Epochs so far."""
    examples: int = 0
    """Examples of this step."""
    memory_bytes: int = 0
    """Peak of the device, where it is known."""


class TrainingFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The run reached its last step; `checkpoint` names the result."""

    run: str
    checkpoint: str
    """Directory or name of the last checkpoint, without a machine's own path."""
    checkpoint_sha256: str = ""
    steps: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0
    final_loss: float = 0.0
    """Loss of the last step."""
    frozen_sha256: str | None = None
    """Of the weights that did not train, as they are in the result: that of the start, or the run failed."""
    manifest: BlobRef | None = None
    """What the result is made of."""


class PolicyStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of reinforcement learning; token figures are means over the step's trained tokens."""

    run: str
    step: int
    """From 1."""
    version: int
    """Policy version that the step made."""
    groups: int
    rollouts: int
    reward: float
    """Mean over the rollouts trained on."""
    resolved: float
    """Share of these with a positive reward; BAR keeps it near its interval."""
    pass_rate: float
    """Share of all graded rollouts that the groups cost: what the policy really does."""
    generated: int
    """Graded rollouts that the groups cost, trained on or not."""
    aborted: int
    balanced: float
    """Share of the groups that are balanced."""
    dropped: int
    """Groups dropped since the step before."""
    staleness: float
    """Mean number of policy versions that sampled tokens were behind."""
    loss: float
    lr: float
    grad_norm: float
    entropy: float
    """Of the sampled distributions, in nats."""
    clipped: float
    """Share of tokens where a clip decided, so that no gradient flows."""
    ratio: float
    """Probability ratio of the trained and the old policy."""
    kl: float
    """k3 estimate of the divergence from the old policy, in nats."""
    importance: float
    """Weight that mends the mismatch of the trainer's and the server's probabilities."""
    truncated: float
    """Share of tokens whose importance weight was at its limit, or outside its range."""
    tokens: int
    trained_tokens: int
    seconds: float
    """Of the optimizer's work."""
    waited: float
    """Seconds for groups before it."""
    masked: float | None = None
    """Share of tokens in failed sequences that were masked as off-policy."""
    reference_kl: float | None = None
    """Estimate of the divergence from the reference policy, in nats; 0 where none is asked for."""
