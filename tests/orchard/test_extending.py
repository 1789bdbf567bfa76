"""docs/extending.md, followed word by word: the package that it shows is installed and used."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from orchard.schemas.plugins import Kind, PluginError, PluginSettings
from orchard.workers.plugins import NEEDS, check, configure, find, names, need
from tests.chaos.world import QUICK, pipeline

GUIDE = Path(__file__).parent.parent.parent / "docs" / "extending.md"
FILE = re.compile(r"^`(letters/[\w.]+)`:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest_asyncio.fixture
async def endpoint() -> AsyncIterator[str]:
    """A model that writes every letter but Joan's. The text that it is asked for is its own to quote."""

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        wanted = re.search(r"`(Dear \w+)`", body["messages"][-1]["content"])
        assert wanted is not None
        text = f"echo {shlex.quote(wanted[1] if wanted[1] != 'Dear joan' else 'Sir')} > /tmp/letter"
        choice = {"role": "assistant", "content": f"Here it is.\n```bash\n{text}\n```"}
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "model": "script",
                "choices": [{"index": 0, "finish_reason": "stop", "message": choice}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20},
            }
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


@pytest.mark.slow
async def test_the_guide_works_word_by_word(tmp_path: Path, endpoint: str) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for name, content in FILE.findall(text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    install, *later = [line for block in COMMANDS.findall(text) for line in block.splitlines()]
    assert install == "pip install ./letters"
    site = tmp_path / "site"
    alone = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
    pip = [sys.executable, "-m", "pip", *shlex.split(install)[1:], *alone]
    await asyncio.to_thread(subprocess.run, pip, cwd=tmp_path, check=True, capture_output=True)

    environment = {name: value for name, value in os.environ.items() if not name.startswith("ORCHARD_")}
    environment |= {**QUICK, "PYTHONPATH": str(site), "ORCHARD_STORE": str(tmp_path / "store")}
    environment |= {"ORCHARD_ENDPOINTS__DEFAULT__BASE_URL": endpoint, "NO_COLOR": "1", "COLUMNS": "200"}
    said = []
    async with pipeline(tmp_path / "store", 1, 4, environment):
        for line in later:
            process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", *shlex.split(line)],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            output, _ = await process.communicate()
            assert process.returncode == 0, f"{line}\n{output.decode()}"
            said.append(output.decode())
    imported, validated, listed, submitted, _, counted, layouts = said
    assert "3 new tasks" in imported
    assert "proven 3, rejected 0" in validated
    assert all(f"letter-{name}" in listed for name in ("ada", "grace", "joan"))
    assert "6 rollouts of 3 tasks" in submitted
    rows = [re.findall(r"[\w-]+", line) for line in counted.splitlines() if "letter-" in line]
    assert rows == [["letter-ada", "True", "2"], ["letter-grace", "True", "2"], ["letter-joan", "False", "2"]]
    assert "anybody who counts" in layouts


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A folder with a module: a harness, and one that lacks a part."""
    (tmp_path / "of_mine.py").write_text(
        """
class Whole:
    name, tools, replayable = "whole", (), False
    def run(self): ...
    def execute(self): ...

class Partial:
    name, tools = "partial", ()
    def run(self): ...

raised = Whole()
"""
    )
    return tmp_path


@pytest.mark.parametrize(
    ("name", "reference", "sentence"),
    [
        ("partial", "of_mine:Partial", "has no replayable, execute"),
        ("other", "of_mine:Whole", "says that its name is 'whole'"),
        ("gone", "of_mine:Gone", "cannot be loaded: AttributeError"),
        ("nowhere", "not_there:Whole", "cannot be loaded: ModuleNotFoundError"),
        ("mini-swe-agent", "of_mine:Whole", "has the name of a built-in one"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_named(
    module: Path, monkeypatch: pytest.MonkeyPatch, name: str, reference: str, sentence: str
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "of_mine", raising=False)
    configure(PluginSettings(harnesses={name: reference}), module)
    try:
        with pytest.raises(PluginError, match=re.escape(sentence)):
            check({Kind.HARNESS: ["mini-swe-agent"]})
    finally:
        configure(PluginSettings(), module)


def test_a_module_beside_the_configuration_is_found_and_hides_nothing(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "of_mine", raising=False)
    configure(PluginSettings(harnesses={"whole": "of_mine:Whole"}), module)
    try:
        assert sys.path[-1] == str(module)
        assert "whole" in names(Kind.HARNESS)
        assert find(Kind.HARNESS, "whole") is need(Kind.HARNESS, "whole")
        assert find(Kind.GRADER, "whole") is None
        with pytest.raises(PluginError, match="there is no plug-in 'hole' among the harnesses"):
            need(Kind.HARNESS, "hole", ["mini-swe-agent"])
    finally:
        configure(PluginSettings(), module)


def test_the_guide_has_a_row_for_each_kind() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert all(f"| `orchard.{kind.value}` |" in text for kind in NEEDS)
