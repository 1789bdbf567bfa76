"""Applies a patch: data on the standard input of a program of the image, never part of a shell line."""

from typing import Any

from orchard.injector.agent.jobs import CommandResult, SandboxJobs, TrackedJob
from orchard.injector.agent.protocol import CommandEnding

# Outside a repository, so that nothing is left out silently because it lies beside the current directory,
# and no configuration of the repository has a say. All or nothing: git writes no file unless every hunk
# applies.
_GIT = ["git", "apply", "--whitespace=nowarn", "-"]
_GIT_ENVIRONMENT = {
    "GIT_DIR": "/dev/null",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}
# Only options that busybox knows too. Nothing is asked, because there is no terminal.
_PATCH = ["patch", "-p1", "-N"]


async def apply(jobs: SandboxJobs, request: dict[str, Any], key: str | None) -> dict[str, Any]:
    """Apply `patch` in `cwd`, by git if the image has it, else by patch. Returns the contract's record."""
    job, ended = await _run(jobs, request, _GIT, _GIT_ENVIRONMENT, key)
    if ended.ending in (CommandEnding.NOT_FOUND, CommandEnding.NOT_PERMITTED):
        job, ended = await _run(jobs, request, _PATCH, {}, None if key is None else f"{key} patch")
    error = ended.error
    if ended.ending is CommandEnding.NOT_FOUND:
        error = "the image has neither git nor patch; apply the change with exec or upload the files"
    elif error is None and ended.exit_code != 0:
        error = "the patch does not apply"
    return {
        "success": job.status == "succeeded",
        "stdout": job.out.text(),
        "stderr": job.err.text(),
        "exit_code": ended.exit_code,
        "error": error,
    }


async def _run(
    jobs: SandboxJobs, request: dict[str, Any], command: list[str], env: dict[str, str], key: str | None
) -> tuple[TrackedJob, CommandResult]:
    job = await jobs.start(
        {
            "command": command,
            "stdin": request["patch"],
            "cwd": request.get("cwd"),
            "env": env,
            "timeout_seconds": request.get("timeout_seconds") or 30.0,
        },
        key,
    )
    with job.kept():
        await job.done.wait()
    assert job.verdict is not None, "it has ended"
    return job, job.verdict
