"""Before and after browser agents: tasks on sites and the web, their proof, rows with pictures, presets."""

from orchard.pipelines.domain import PipelineDomain, ReleasedLayout, RequestKind, TaskKind
from orchard.schemas.queues import Queue

DOMAIN = PipelineDomain(
    name="gui",
    package=__name__,
    provers={TaskKind("sites", "browser"): f"{__name__}.proof:prove_task"},
    exporters={"orchard-gui": f"{__name__}.exporter:GUI"},
    released_layouts={
        "orchard-gui": ReleasedLayout(reader=f"{__name__}.released_rows:read_gui_rows", calls_in_texts=True)
    },
    request_kinds={
        "judge": RequestKind(
            Queue(kind="judge", domain="rollouts"), f"{__name__}.judging.again:outcome_judge"
        )
    },
    dataset_preset={
        "pairs": True,
        "pictures": "shown",
        "selection": {"strategy": "shortest", "per_task": 1, "per_repo": 20},
    },
    sft_preset={
        "epochs": 3,
        "global_batch": 128,
        "lr": 1e-5,
        "warmup": 0.1,
        "freeze": ["*visual*", "*vision*"],
        "precision": "bfloat16",
        "activation_checkpointing": True,
    },
    rl_preset={
        "harness": "browser",
        "untrained": ["time_limit", "token_limit"],
        "lr": 1e-6,
        "precision": "bfloat16",
        "keep_degenerate": False,
        "bar": {"size": 8, "budget": 8, "interval": None},
        "loss": {"reduction": "constant_sum", "constant": 524_288.0},
        "budget": {"steps": 15},
        "curriculum": {"steps": 30},
    },
)
