"""Claw-Eval's own runner, in a sandbox: `reference.py CHECKOUT < JSON`, a line of JSON for each run.

The one thing that is replaced is the container of its workspace: this sandbox is one, with `/workspace`
emptied before each run. Runs with the checkout's package; `agents.py` lies beside it.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import agents  # type: ignore[import-not-found]

from claw_eval import cli  # type: ignore[import-not-found]
from claw_eval.runner import sandbox_runner  # type: ignore[import-not-found]

PORT = 8080
WORKSPACE = Path("/workspace")


class Here(sandbox_runner.SandboxRunner):  # type: ignore[misc]
    """The runner's sandbox without docker: its own server, as a process."""

    def __init__(self, config: Any, *, image: str | None = None) -> None:
        del config, image

    def start_container(self, *, run_id: str) -> Any:
        """Its server in an empty workspace."""
        WORKSPACE.mkdir(exist_ok=True)
        for path in WORKSPACE.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        line = [sys.executable, f"{sys.argv[1]}/src/claw_eval/sandbox/server.py", "--port", str(PORT)]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(line, cwd=WORKSPACE, stdout=quiet, stderr=quiet)
        url = f"http://127.0.0.1:{PORT}"
        while True:
            with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2):
                break
            time.sleep(0.05)
        return sandbox_runner.ContainerHandle(process, PORT, run_id, url)

    def stop_container(self, handle: Any) -> None:
        """End it."""
        handle.container.kill()
        handle.container.wait()


def main(checkout: Path) -> None:
    """One line for each task and agent: the trial as its runner has it."""
    sandbox_runner.SandboxRunner = Here
    _, url = agents.serve()
    place = Path(tempfile.mkdtemp())
    config = place / "config.yaml"
    judge = {"api_key": "none", "base_url": url, "model_id": agents.JUDGE}
    config.write_text(json.dumps({"judge": judge}))
    for task, agent in json.load(sys.stdin):
        with redirect_stdout(sys.stderr):
            result = cli._run_single_task(
                str(checkout / "tasks" / task),
                str(config),
                agent,
                "none",
                url,
                str(place),
                port_offset=0,
                no_judge=False,
                judge_model=None,
                trials=1,
                sandbox=True,
            )
        trial = (result["trials"] or [{"error": result["error"]}])[0]
        sys.stdout.write(json.dumps({"task": task, "agent": agent, **trial}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
