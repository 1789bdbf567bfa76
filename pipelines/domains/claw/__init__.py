"""Before and after assistants: synthesis of their tasks in four steps on a queue, their proof, presets."""

from orchard.pipelines.domain import PipelineDomain, RequestKind, TaskKind
from orchard.schemas.queues import Queue

DOMAIN = PipelineDomain(
    name="claw",
    package=__name__,
    provers={TaskKind("claw", "claw"): f"{__name__}.proof:prove_task"},
    request_kinds={
        "synthesis": RequestKind(Queue(kind="synthesis", domain="claw"), f"{__name__}.steps:step_worker")
    },
    dataset_preset={"pairs": True, "filters": {"max_tokens": 65_536}, "selection": {"resolved": 561}},
    sft_preset={
        "epochs": 1,
        "global_batch": 16,
        "context": 65_536,
        "lr": 1e-5,
        "min_lr": 1e-6,
        "precision": "bfloat16",
        "activation_checkpointing": True,
    },
    rl_preset={
        "harness": "claw-react",
        "untrained": ["time_limit"],
        "lr": 1e-6,
        "steps": 150,
        "prompts_per_step": 8,
        "precision": "bfloat16",
        "keep_degenerate": True,
        "bar": {"size": 8, "budget": 8, "interval": None},
        "loss": {"clip_low": 0.2, "clip_high": 0.2},
        "budget": {"steps": 0, "cost_usd": 0.0, "wall_seconds": 600.0},
    },
)
