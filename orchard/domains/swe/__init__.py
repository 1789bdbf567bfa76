"""Commands of the domain SWE: tasks from releases, benchmarks and repositories; the quick start."""

from orchard.actions.domain import FrontDomain, TaskRoute

DOMAIN = FrontDomain(
    name="swe",
    commands={
        "quickstart": (
            "orchard.domains.swe.quickstart",
            "The first run: makes and proves real tasks, runs a campaign on them, shows the results.",
        )
    },
    task_commands=("orchard.domains.swe.from_repo",),
    checks="orchard.domains.swe.tasks:check_index",
    synthesis=TaskRoute(
        run="orchard.domains.swe.task_routes:synthesize",
        argument="PyPI packages, the built-in catalogue's when none is named",
        summary="from pairs of package releases",
        details="Of releases: old source, new tests, the source diff as gold patch; what fails before the "
        "diff and passes after it is found by running the tests in sandboxes.",
        examples=("six attrs",),
        limit=20,
    ),
    imports=TaskRoute(
        run="orchard.domains.swe.task_routes:import_rows",
        argument="SWE-bench family rows: .parquet or .jsonl",
        summary="rows of SWE-bench, SWE-rebench, SWE-rebench V2 or Scale-SWE",
        details="Rows with the columns of SWE-bench may be of any repository, where its test command "
        "is given.",
        examples=(
            "verified.parquet --source swe-bench-verified",
            'ours.jsonl --test-command "pytest -q {tests}"',
            'theirs.jsonl --test-command "make check" --parser junit',
        ),
    ),
)
