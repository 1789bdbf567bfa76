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
    dataset_preset={
        "values": {"eps": 0.05, "segments": "paper-closed"},
        "filters": {"max_tokens": 65_536, "bad_turns": "drop"},
    },
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
        "harness": "mini-swe-agent",
        "tasks": {"above": 0.0, "at_most": 0.5, "measured_rollouts": 8},
        "bar": {"size": 8, "budget": 16, "stride": 16, "interval": [0.375, 0.625]},
        "lr": 1e-6,
        "steps": 150,
        "prompts_per_step": 16,
        "context": 65_536,
        "precision": "bfloat16",
        "untrained": ["time_limit", "token_limit"],
    },
)
