"""Captures the state that an agent leaves behind in a repository as a patch."""

import logging
import secrets

from orchard.schemas.tasks import Task
from orchard.workers.episode.machine import FileTooLarge, Machine

log = logging.getLogger(__name__)

LARGEST_DIFF = 32 * 1024 * 1024
"""Largest patch that is taken, in bytes."""

_SETTINGS = {
    "safe.directory": "*",  # the checkout's owner may be another user than the one commands run as
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "submodule.recurse": "false",
}
ISOLATED_GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": str(len(_SETTINGS)),
    **{f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(_SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(_SETTINGS.values())},
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
"""Environment for git without the configuration of a machine or user, without hooks and monitors."""

_LEFT_BEHIND = """\
rm -rf "$SCRATCH"; mkdir -p "$SCRATCH" && index="$(git rev-parse --git-path index)" \
&& export GIT_INDEX_FILE="$SCRATCH/index" \
&& { [ ! -e "$index" ] || cp -p "$index" "$GIT_INDEX_FILE"; } && git add -A \
&& git -c diff.noprefix=false -c diff.mnemonicPrefix=false \
diff --cached --binary --no-color --no-ext-diff --no-textconv "$BASE" > "$SCRATCH/left.diff" \
&& [ "$(wc -c < "$SCRATCH/left.diff")" -le "$LARGEST" ]
"""
"""An index of its own, since a git that was killed may have left the repository's locked."""


async def state_left_behind(machine: Machine, task: Task, *, timeout: float) -> str:
    """Returns everything the agent changed against the base commit, as a diff.

    Empty if git cannot tell, as after an agent has removed the repository or left more than LARGEST_DIFF
    bytes behind: that is the agent's doing, also if one of its processes enlarges the file afterwards.
    `timeout` in seconds; a git that had too little time or memory is tried once more with three times as
    much time. Raises the machine's InfrastructureError.
    """
    scratch = f"/tmp/orchard-left-{secrets.token_hex(8)}"
    env = {
        **ISOLATED_GIT,
        "SCRATCH": scratch,
        "BASE": task.base_commit or "HEAD",
        "LARGEST": str(LARGEST_DIFF),
    }
    outcome = await machine.run(_LEFT_BEHIND, timeout=timeout, cwd=task.workdir, env=env)
    if outcome.timed_out or outcome.out_of_memory:
        outcome = await machine.run(_LEFT_BEHIND, timeout=3 * timeout, cwd=task.workdir, env=env)
    if outcome.returncode != 0:
        log.warning("no patch is taken, as git cannot tell what was changed: %s", outcome.output[-300:])
        return ""
    try:
        return (await machine.read(f"{scratch}/left.diff", limit=LARGEST_DIFF)).decode("utf-8", "replace")
    except (FileTooLarge, FileNotFoundError):  # a process that the agent left behind may have its hand in it
        return ""
