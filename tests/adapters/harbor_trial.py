"""A real Harbor trial: its oracle agent solves a task in a sandbox, its verifier rewards it."""

import json
import subprocess
import sys
from pathlib import Path

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
