"""A real Harbor trial: its oracle agent solves a task in a sandbox, its verifier rewards it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from orchard.adapters.harbor_environment import OrchardEnvironment
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxFailed

PLACE = "orchard.adapters.harbor_environment:OrchardEnvironment"
TASK = {
    "task.toml": 'version = "1.0"\n[environment]\ndocker_image = "host"\ncpus = 1\nmemory_mb = 512\n'
    'network_mode = "no-network"\n[environment.env]\nWORD = "forty-two"\n',
    "instruction.md": "Write the word to /workspace/answer.\n",
    "environment/Dockerfile": "FROM scratch\n",
    "solution/solve.sh": "#!/bin/bash\nprintf $WORD > /workspace/answer\n",
    "tests/test.sh": "#!/bin/bash\n"
    "[ $(cat /workspace/answer) = forty-two ] && echo 1 > /logs/verifier/reward.txt\n",
}


def test_the_oracle_is_rewarded(tmp_path: Path) -> None:
    for name, content in TASK.items():
        (tmp_path / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "task" / name).write_text(content)
    harbor = Path(sys.executable).with_name("harbor")
    command = [harbor, "trial", "start", "-p", tmp_path / "task", "-a", "oracle"]
    command += ["--trials-dir", tmp_path / "out", "--environment-import-path", PLACE]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    results = list((tmp_path / "out").glob("*/result.json"))
    assert done.returncode == 0 and results, done.stdout + done.stderr
    result = json.loads(results[0].read_text())
    assert result["verifier_result"]["rewards"] == {"reward": 1.0}, result


async def test_a_sandbox_that_ends_under_a_command_is_an_error_and_no_failed_command(tmp_path: Path) -> None:
    config = EnvironmentConfig(docker_image="host", cpus=1, memory_mb=512, network_mode="no-network")
    policy = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
    (tmp_path / "environment").mkdir()
    paths = TrialPaths(tmp_path / "trial")
    paths.mkdir()
    environment = OrchardEnvironment(
        tmp_path / "environment", "ends", "ends__1__env", paths, config, network_policy=policy
    )
    await environment.start(force_build=False)
    try:
        running = asyncio.create_task(environment.exec("touch /tmp/begun; sleep 600", timeout_sec=600))
        async with AsyncSandboxClient(auto_cleanup=False) as client:
            sandbox = await client.get_sandbox(environment._running.sandbox_id)
            await sandbox.exec("until [ -e /tmp/begun ]; do :; done")
            await sandbox.delete()
        with pytest.raises(SandboxFailed, match="ended under a command"):
            await running
    finally:
        await environment.stop(delete=True)
