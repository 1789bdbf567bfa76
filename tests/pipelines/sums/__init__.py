"""A tiny domain: an agent adds up to a number. The test of a fourth domain installs it as a package."""

from orchard.pipelines.domain import PipelineDomain, ReleasedLayout, TaskKind
from orchard.workers.domain import WorkerDomain

WORKER = WorkerDomain(
    name="sums",
    package="sums",
    default_harness="sums-loop",
    sources=("worker.py", "prompts/*.md"),
)
PIPELINE = PipelineDomain(
    name="sums",
    package="sums",
    provers={TaskKind("sums", "sums"): "sums.pipeline:prove"},
    task_sources={"sums": "sums.pipeline:Source"},
    exporters={"sums-lines": "sums.pipeline:LINES"},
    released_layouts={"sums-lines": ReleasedLayout(reader="sums.pipeline:read_lines", calls_in_texts=True)},
    dataset_preset={"filters": {"max_tokens": 1000}},
)
