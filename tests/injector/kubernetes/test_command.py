"""`python -m orchard.injector.orchestrator --backend kubernetes` says what it lacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

SECRET = "ORCHARD_AGENT_SECRET"
GOOD = "0123456789" * 4


@pytest.mark.parametrize(
    ("settings", "secret", "sentence"),
    [
        ('agent_image = "x"', "short", f"{SECRET} must hold a secret of at least 32 characters"),
        ('agent_imag = "x"', GOOD, "agent_imag"),
        ('agent_image = "x"\nkubeconfig = "/nowhere/config"', GOOD, "/nowhere/config"),
    ],
)
def test_what_it_lacks_is_one_sentence(tmp_path: Path, settings: str, secret: str, sentence: str) -> None:
    file = tmp_path / "kubernetes.toml"
    file.write_text(settings)
    command = [sys.executable, "-m", "orchard.injector.orchestrator", "--backend", "kubernetes"]
    run = subprocess.run(
        [*command, "--kubernetes-settings", str(file)],
        env={**os.environ, SECRET: secret, "SANDBOX_API_KEY": GOOD},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 1
    assert sentence in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr
