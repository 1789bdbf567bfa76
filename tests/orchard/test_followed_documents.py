"""README.md and the how-to guides, followed line by line in an empty folder.

A block of commands without a language is run by bash; one that stays in the way of the next, as `orchard up`
does, runs on. An HTML comment before a block says what the reader knows from the text: `file: NAME`, where a
TOML block is written (its sections replace those of the same name), `runs on`, `stop first` (Ctrl-C at what
runs on), `drawing`, `needs: ...`, for what no test machine has, or `stands in: ...`, for what is run with the
programs in `stand_ins`, or in a clone that uses this installation. A fake endpoint, played by the oracle,
stands in for the model, and small numbers for large ones.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from orchard.configuration.run_files import running
from tests.fake_endpoint import serving
from tests.orchard.test_try import Server

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "how-to"
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
NEEDS = (
    "tasks of your own",
    "a trained model",
    "a dead letter",
    "a sign-in proxy",
    "a cluster's NATS server",
)
STAND_INS = ("kubernetes", "docker", "an installation")
MARKS = re.compile(
    r"file: [\w.-]+|runs on|stop first|drawing"
    rf"|needs: (?:{'|'.join(NEEDS)})|stands in: (?:{'|'.join(STAND_INS)})"
)
NEEDED, UP = "needs: ", "orchard up"
QUICKSTART = "make -C clone --old-file=.venv/.product quickstart"
SMALLER = {
    "--limit 20": "--limit 2",
    "--max-tokens 512": "--max-tokens 16",
    "policy --samples 4": "policy --samples 1",
    "--vocab-size 1024": "--vocab-size 400",
    "--port 8800": "--port 18800",
    ":8800/": ":18800/",
    "make quickstart\n": 'make quickstart ARGS=""\n',
    'make quickstart ARGS="': f'{QUICKSTART} ARGS="--tasks 2 --samples 1 --workers 1 ',
}
"""What would take long, or a port that may be taken, and what is run instead."""


A_ROLLOUT = '$(orchard sql --format csv "select rollout_id from rollouts limit 1" | tail -n 1)'


class Block(NamedTuple):
    mark: str
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """Fenced blocks of a page, with the comment before each."""
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield Block(found["mark"] or "", found["language"], found["text"])


class StandIn(Server):
    """The reader's model: answers what `orchard try` asks, and has the oracle play all else."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path()

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "my-model"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if sum(len(str(message.get("content"))) for message in asked["messages"]) < 200:
            return await super().chat(request)
        up = running(self.folder / ".orchard") or running(self.folder / "clone" / ".orchard")
        assert up is not None
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{up.oracle_url}/chat/completions", json={**asked, "model": "oracle"}) as reply,
        ):
            answer: dict[str, Any] = await reply.json()
            answer.pop("system_fingerprint", None)
            return web.json_response(answer, status=reply.status)


@dataclass
class Reader:
    """Someone who follows pages in one folder, with one shell and what runs on beside it."""

    folder: Path
    replaced: dict[str, str]
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    beside: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def follow(self, page: Path) -> int:
        """Follows a page and returns the number of blocks that were run."""
        ran = 0
        for block in blocks(page):
            if block.mark.startswith(NEEDED) or block.mark == "drawing":
                continue
            if block.mark.startswith("file: "):
                self.write(block.mark.removeprefix("file: "), self.small(block.text))
            elif block.language == "python":
                self.bash(f"python - <<'END'\n{block.text}END\n")
            elif not block.language:
                self.run(self.small(block.text), block.mark)
            else:
                raise AssertionError(f"{page.name}: what is to be done with\n{block.text}")
            ran += 1
        return ran

    def small(self, text: str) -> str:
        for long, short in {**SMALLER, **self.replaced}.items():
            text = text.replace(long, short)
        return text

    def run(self, text: str, mark: str) -> None:
        if mark == "stop first":
            self.stop()
        if mark == "runs on":
            self.start(text)
            return
        self.bash(text)

    def write(self, name: str, text: str) -> None:
        """Writes a TOML file; sections that it has already are replaced."""
        file = self.folder / name
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        sections = {**_sections(before), **_sections(text)} if name == "orchard.toml" else _sections(text)
        file.write_text("".join(sections.values()), encoding="utf-8")
        if name == "orchard.toml" and (up := [one for one in self.beside if UP in one.args[-1]]):
            self.stop(up)
            self.start(UP)

    def bash(self, text: str) -> str:
        """Runs commands in order, keeps what they export, and fails with the one that failed."""
        kept = self.folder / ".environment"
        script = f"set -eo pipefail\ntrap 'echo \"failed: $BASH_COMMAND\"' ERR\n{text}\nenv -0 > {kept}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{text}"
        lines = kept.read_text(encoding="utf-8").split("\0")
        self.environment = dict(line.split("=", 1) for line in lines if "=" in line)
        return done.stdout

    def start(self, text: str) -> None:
        """Starts what runs on, and waits until it serves."""
        *before, last = [line for line in text.splitlines() if line.strip()]
        self.bash("\n".join([*before, "true"]))
        with (self.folder / "beside.log").open("ab") as log:
            started = subprocess.Popen(
                ["bash", "-c", f"exec {last}"], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
        self.beside.append(started)
        for _ in range(600):
            assert started.poll() is None, (self.folder / "beside.log").read_text(encoding="utf-8")[-3000:]
            if self.serves(last):
                return
            time.sleep(0.2)
        raise AssertionError(f"never ready: {last}")

    def serves(self, command: str) -> bool:
        if command.startswith(UP):
            return running(self.folder / ".orchard") is not None
        port = re.search(r"--port (\d+)", command)
        assert port is not None, f"how does one see that it runs? {command}"
        probe = f"exec 3<>/dev/tcp/127.0.0.1/{port[1]}"
        return subprocess.run(["bash", "-c", probe], stderr=subprocess.DEVNULL, check=False).returncode == 0

    def stop(self, which: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        for one in which or reversed(self.beside[:]):
            self.beside.remove(one)
            one.send_signal(signal.SIGINT)
            one.wait(timeout=100)


def _sections(text: str) -> dict[str, str]:
    """Parts of a TOML file by their headers."""
    found = {}
    for part in re.split(r"^(?=\[)", text, flags=re.M):
        header = part.partition("\n")[0].partition("#")[0].strip()
        found[header if header.startswith("[") else ""] = part
    return found


@pytest_asyncio.fixture
async def model() -> AsyncIterator[StandIn]:
    fake = StandIn()
    async with serving(fake.models, fake.chat) as fake.url:
        yield fake


@pytest.fixture
def reader(tmp_path: Path, model: StandIn) -> Iterator[Reader]:
    model.folder = tmp_path
    replaced = {"https://HOST/v1": model.url, "source .venv/bin/activate": "true"}
    replaced |= {"show 3f2a": f"show {A_ROLLOUT}", "show ROLLOUT": f"show {A_ROLLOUT}"}
    replaced |= {"REGISTRY": "registry.example", "BUCKET": "bucket"}
    replaced |= {"--model NAME": "--model my-model", "~/sandboxes": str(tmp_path / "sandboxes")}
    one = Reader(tmp_path, replaced)
    (tmp_path / "infra").symlink_to(ROOT / "infra")
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, tmp_path / "clone"], check=True)
    (tmp_path / "clone" / ".venv").symlink_to(sys.prefix)
    own = [str(Path(__file__).with_name("stand_ins")), str(Path(sys.executable).parent)]
    one.environment["PATH"] = ":".join([*own, one.environment["PATH"]])
    for name in [name for name in one.environment if name.startswith(("ORCHARD_", "OPENAI_"))]:
        one.environment.pop(name)
    yield one
    one.stop()
    if (sandboxes := tmp_path / "sandboxes").exists():  # their agent outlives the service
        one.bash(f"python -m orchard.injector.agent --state {sandboxes} --stop")


def test_each_mark_of_a_block_is_one_that_is_known() -> None:
    for page in (ROOT / "README.md", *GUIDES.glob("*.md")):
        assert [block.mark for block in blocks(page) if block.mark and not MARKS.fullmatch(block.mark)] == []


FOLLOWED = {
    "README": ["README.md"],
    "sandboxes": ["docs/how-to/sandboxes.md"],
    "campaign": [f"docs/how-to/{name}.md" for name in ("campaign", "dataset", "fine-tune", "recover")],
    "teams": ["docs/how-to/campaign.md", "docs/how-to/teams.md"],
    "what needs more": ["docs/how-to/reinforcement-learning.md", "docs/how-to/cluster.md"],
}
"""Pages that are followed one after the other, in one folder."""


def test_every_guide_is_followed() -> None:
    followed = {ROOT / page for pages in FOLLOWED.values() for page in pages}
    assert followed == {ROOT / "README.md", *GUIDES.glob("*.md")}


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("pages", FOLLOWED.values(), ids=FOLLOWED)
async def test_no_command_of_a_page_fails(reader: Reader, pages: list[str]) -> None:
    for page in pages:
        await asyncio.to_thread(reader.follow, ROOT / page)
