"""The client as a distribution of its own: what it holds, what it needs, that it works."""

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import orchard_env
import pytest

import orchard

if TYPE_CHECKING:
    from tests.injector.conftest import Service

SDK = Path(__file__).parents[2] / "injector" / "sdk"
PROGRAM = """
import asyncio, sys
from orchard_env import AsyncSandboxClient, SandboxClient, errors

with SandboxClient(sys.argv[1]) as client, client.create_sandbox("host") as sandbox:
    print(sandbox.exec(["echo", "blocking"]).stdout, end="")
    with sandbox.exec(["cat"], pty=True) as terminal:
        terminal.write_stdin("typed\\n")
        assert terminal.read(30)
    sandbox.upload_content("content", "/workspace/f")
    with sandbox.watch(), sandbox.forward(80):
        print(sandbox.download_content("/workspace/f").decode())
    try:
        sandbox.download_content("/nothing")
    except errors.SandboxFileMissing as error:
        print(error)

async def main():
    async with AsyncSandboxClient(sys.argv[1]) as client, await client.create_sandbox("host") as sandbox:
        print((await sandbox.exec(["echo", "awaited"])).stdout, end="")

asyncio.run(main())
ours = {name for name, module in sys.modules.items() if name.split(".")[0] == "orchard"}
print(all(sys.modules[name].__file__.startswith(sys.argv[2]) for name in ours))
"""


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    spec = importlib.util.spec_from_file_location("orchard_sdk_backend", SDK / "backend.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheel(backend: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    return place / str(backend.build_wheel(str(place)))


def needed(name: str) -> set[str]:
    """A distribution of this environment and all that it needs."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if one in found:
            continue
        found.add(one)
        for line in importlib.metadata.requires(one) or []:
            if "extra ==" not in line and 'python_version < "3.11"' not in line:
                waiting.append(re.match(r"[\w.-]+", line)[0])  # type: ignore[index]
    return found


def test_it_holds_what_the_client_imports_and_names_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    (metadata,) = (data.decode() for name, data in content.items() if name.endswith("METADATA"))
    assert {line.split(">=")[0] for line in metadata.splitlines() if line.startswith("Requires-Dist")} == {
        "Requires-Dist: aiohttp",
        "Requires-Dist: msgspec",
    }
    assert {name.partition("/")[2].partition("/")[0] for name in content if name.startswith("orchard/")} <= {
        *("__init__.py", "py.typed", "injector", "schemas")
    }
    assert not any("orchestrator" in name or "/local/" in name or "kubernetes" in name for name in content)
    assert wheel.stat().st_size < 100_000
    (record,) = (data.decode() for name, data in content.items() if name.endswith("RECORD"))
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(record))}
    assert set(rows) == set(content)
    for name, digest in rows.items():
        if digest:
            found = base64.urlsafe_b64encode(hashlib.sha256(content[name]).digest()).rstrip(b"=").decode()
            assert digest == f"sha256={found}"


@pytest.mark.long
def test_a_program_of_its_user_runs_where_nothing_else_is_installed(
    wheel: Path, service: "Service", tmp_path: Path
) -> None:
    installed, third = tmp_path / "installed", tmp_path / "third"
    third.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    for name in needed("aiohttp") | needed("msgspec"):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            (third / top).symlink_to(Path(str(distribution.locate_file(top))))
    start = f"import sys; sys.path[:0] = [{str(installed)!r}, {str(third)!r}]\n"
    line = [sys.executable, "-I", "-S", "-c", start + PROGRAM, service.url, str(installed)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.splitlines() == [
        "blocking",
        "content",
        "/nothing does not exist",
        "awaited",
        "True",
    ], done.stderr


def test_the_published_name_is_another_for_the_same() -> None:
    own = set(orchard.__all__) - {"Log"}
    assert set(orchard_env.__all__) == {*own, "errors"}
    assert all(getattr(orchard_env, name) == getattr(orchard, name) for name in own)


@pytest.mark.slow
def test_pip_installs_it_into_a_new_environment(service: "Service", tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "fresh"], check=True)
    python = tmp_path / "fresh" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", SDK], check=True)
    line = [python, "-I", "-c", PROGRAM, service.url, str(tmp_path / "fresh")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr
