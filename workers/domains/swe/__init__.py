"""Software agents: harnesses that hand in a patch, and grading by a repository's own tests."""

from orchard.workers.domain import WorkerDomain

DOMAIN = WorkerDomain(
    name="swe",
    package=__name__,
    oracle=f"{__name__}.oracle.player:ShellPlayer",
    gradings={"swe-tests": f"{__name__}.grader:grade_swe"},
    patch_harness="orchard-bash",
    text_harness="mini-swe-agent-text",
    # Until there was the exact one, `mini-swe-agent` were Orchard's own words (decision 0039).
    unversioned={"mini-swe-agent": "orchard-bash"},
    sources=("harnesses/*.py",),
)
