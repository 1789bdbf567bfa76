"""A GPU node needs torch, transformers, numpy, pyarrow, msgspec and aiohttp alone."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NEEDED = ("torch", "transformers", "numpy", "pyarrow", "msgspec", "aiohttp")
MODULES = (
    "orchard.pipelines.sft.trainer",
    "orchard.pipelines.rl.learner",
    "orchard.pipelines.policy.server",
    "tests.benchmarks.gpu",
)
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"{{name}} is not installed on a GPU node")
sys.meta_path.insert(0, Blocked())
import {modules}
"""


def required_by(name: str) -> set[str]:
    """Distributions that one requires without extras."""
    try:
        found = [Requirement(line) for line in requires(name) or ()]
    except PackageNotFoundError:  # for another system
        return set()
    return {
        canonicalize_name(each.name)
        for each in found
        if each.marker is None or each.marker.evaluate({"extra": ""})
    }


@pytest.mark.usefixtures("installed")
def test_training_and_serving_import_little() -> None:
    known, left = set[str](), list(NEEDED)
    while left:
        if (name := left.pop()) not in known:
            known.add(name)
            left += required_by(name)
    others = required_by("orchard-pipeline") - known - {"psutil"}  # transformers imports it where it is
    blocked = {
        top for top, names in packages_distributions().items() if others & set(map(canonicalize_name, names))
    }
    assert {"duckdb", "deltalake", "nats", "openai", "kubernetes_asyncio"} <= blocked
    code = BLOCKED.format(blocked=blocked, modules=", ".join(MODULES))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
