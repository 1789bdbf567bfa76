"""Before and after software agents: tasks from benchmarks, releases and repositories, their proof,
presets."""

from orchard.pipelines.domain import PipelineDomain, ReleasedLayout, TaskKind

_TESTS = TaskKind("swe-tests")

DOMAIN = PipelineDomain(
    name="swe",
    package=__name__,
    provers={_TESTS: f"{__name__}.proof:prove_task"},
    contradictions={_TESTS: f"{__name__}.impossible:contradict"},
    exporters={"orchard-swe": f"{__name__}.released_rows:RELEASED"},
    released_layouts={"orchard-swe": ReleasedLayout(reader=f"{__name__}.released_rows:read_swe_rows")},
    sft_preset={
        "epochs": 5,
        "global_batch": 128,
        "context": 65_536,
        "lr": 1e-5,
        "min_lr": 1e-6,
        "precision": "bfloat16",
        "activation_checkpointing": True,
    },
    rl_preset={
        "lr": 1e-6,
        "steps": 150,
        "prompts_per_step": 16,
        "precision": "bfloat16",
        "untrained": ["time_limit", "token_limit"],
    },
)
