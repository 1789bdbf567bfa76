"""Real commands in a temporary git repository, a fake endpoint over real HTTP, and a small task to solve."""

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from orchard.injector.agent.output import BoundedOutput
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.sandboxes import OUTPUT_LIMIT
from orchard.schemas.tasks import SWETests, Task
from orchard.storage.blobs import BlobStore
from orchard.workers.episode import agent_clock
from orchard.workers.episode.machine import READ_LIMIT, CommandOutcome, FileTooLarge
from orchard.workers.failures import NotWritable
from orchard.workers.gateway import recording
from orchard.workers.graders.judgement import Pristine
from orchard.workers.llm import circuit_breaker, connection
from orchard.workers.llm import endpoint as endpoint_module
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings

MODULE = """\
\"\"\"Arithmetic for shops.\"\"\"


def total(prices):
    result = 0
    for price in prices:
        result = result + price
    return result


def average(prices):
    return total(prices) / len(prices)


def label(name):
    return name
"""

FIXED = MODULE.replace(
    "    return total(prices) / len(prices)\n",
    "    if not prices:\n        return 0\n    return total(prices) / len(prices)\n",
).replace("    return name\n", "    return name.strip()\n")

OLD_TEST = """\
from shop.sums import average, total


def test_total():
    assert total([1, 2]) == 3


def test_average():
    assert average([1, 3]) == 2
"""

NEW_TEST = (
    OLD_TEST.replace("import average, total", "import average, label, total")
    + """

def test_average_of_nothing():
    assert average([]) == 0


def test_label():
    assert label(" tea ") == "tea"
"""
)


RUNNER = """python -c "
import sys, tests.test_sums as module
failed = False
for name, test in sorted(vars(module).items()):
    if name.startswith('test_'):
        try:
            test()
        except Exception:
            failed = True
            print('FAILED tests/test_sums.py::' + name)
        else:
            print('PASSED tests/test_sums.py::' + name)
sys.exit(failed)"
"""
"""A test runner that starts at once and writes what pytest -rA would."""


class MovedTime:
    """The module `time` with a monotonic clock that a test moves."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def move(self, seconds: float) -> None:
        self._ahead += seconds

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def moved_time(monkeypatch: pytest.MonkeyPatch) -> MovedTime:
    """The clock of programs and of calls of models."""
    moved = MovedTime()
    for module in (agent_clock, recording, circuit_breaker, connection, endpoint_module):
        monkeypatch.setattr(module, "time", moved)
    return moved


class SubprocessMachine:
    """The Machine protocol with plain subprocesses: no isolation, for tests only."""

    def __init__(self, programs: Path = Path(sys.executable).parent) -> None:
        self.programs = programs
        self.commands: list[str] = []
        self.takes: float | None = None
        """Seconds that each command says it took; None: as long as it did."""
        self.keeps = OUTPUT_LIMIT
        """Bytes that are kept of a command's output."""
        self.scratch: set[Path] = set()
        self.written: set[Path] = set()

    async def run(
        self,
        command: str,
        *,
        timeout: float,
        cwd: str,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
        user: str | None = None,
    ) -> CommandOutcome:
        self.commands.append(command)
        if env and "SCRATCH" in env:
            self.scratch.add(Path(env["SCRATCH"]))
        started = time.monotonic()
        path = f"{self.programs}:{os.environ['PATH']}"
        if not Path(cwd).is_dir():
            return CommandOutcome(output=f"{cwd}: no such directory\n", returncode=126, seconds=0.0)
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            command,
            cwd=cwd,
            env={"PATH": path, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            user=user,
        )
        collected = BoundedOutput(self.keeps)

        async def talk() -> None:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write((stdin or "").encode())
            process.stdin.close()
            while chunk := await process.stdout.read(65536):
                collected.add(chunk)

        timed_out = False
        try:
            async with asyncio.timeout(timeout):
                await talk()
        except TimeoutError:
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
        returncode = await process.wait()
        return CommandOutcome(
            output=collected.text(),
            cut=collected.total > self.keeps,
            returncode=-1 if timed_out else returncode if returncode >= 0 else 128 - returncode,
            seconds=time.monotonic() - started if self.takes is None else self.takes,
            timed_out=timed_out,
        )

    async def write(self, path: str, content: bytes) -> None:
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except OSError as error:
            raise NotWritable(AbortCause.INTERNAL_ERROR, str(error)) from error
        self.written.add(target)

    async def read(self, path: str, *, limit: int = READ_LIMIT) -> bytes:
        if Path(path).stat().st_size > limit:
            raise FileTooLarge(path)
        return Path(path).read_bytes()


class MovedMachine:
    """Another machine of the same image: what a task calls `here` lies `there`."""

    def __init__(self, machine: SubprocessMachine, here: Path, there: Path) -> None:
        self.machine = machine
        self._here, self._there = str(here), str(there)

    def _moved(self, path: str) -> str:
        inside = path == self._here or path.startswith(f"{self._here}/")
        return self._there + path[len(self._here) :] if inside else path

    async def run(self, command: str, *, cwd: str, **more: Any) -> CommandOutcome:
        return await self.machine.run(command, cwd=self._moved(cwd), **more)

    async def write(self, path: str, content: bytes) -> None:
        await self.machine.write(self._moved(path), content)

    async def read(self, path: str, **more: Any) -> bytes:
        return await self.machine.read(self._moved(path), **more)


class Shop:
    """A git repository with a module that has two defects, and its tests."""

    MODULE = MODULE
    FIXED = FIXED
    NEW_TEST = NEW_TEST

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.write(
            {
                "shop/__init__.py": "",
                "shop/sums.py": MODULE,
                "tests/test_sums.py": OLD_TEST,
                ".gitignore": "__pycache__/\n.pytest_cache/\n",
            }
        )
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "start")

    def git(self, *arguments: str) -> str:
        """Run git there; its output."""
        return subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments],
            cwd=self.directory,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def write(self, files: dict[str, str]) -> None:
        """Create or replace text files by relative path."""
        for name, text in files.items():
            target = self.directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

    def diff(self, files: dict[str, str]) -> str:
        """The diff that these changes make, leaving the repository as it was."""
        self.write(files)
        self.git("add", "-A")
        diff = self.git("diff", "--cached", "--binary", "HEAD")
        self.git("reset", "-q", "--hard", "HEAD")
        return diff


def image_with(directory: Path, *libraries: str) -> Path:
    """Where the python of an image is that has pytest and these libraries, and no other plug-in."""
    venv.create(directory, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments", *libraries):
        installed = metadata.distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(installed.locate_file(top))
    return directory / "bin"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_with(tmp_path_factory.mktemp("image"))


@pytest.fixture
def machine(programs: Path) -> Iterator[SubprocessMachine]:
    machine = SubprocessMachine(programs)
    yield machine
    for file in machine.written:
        file.unlink(missing_ok=True)
    for directory in machine.scratch:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "repository")


@pytest.fixture
def pristine(machine: SubprocessMachine, shop: Shop, tmp_path: Path) -> Pristine:
    """Opens a machine with what was committed last in the shop."""
    numbers = itertools.count()

    @asynccontextmanager
    async def opened() -> AsyncIterator[MovedMachine]:
        there = tmp_path / "machines" / str(next(numbers))
        shop.git("clone", "-q", ".", str(there))
        yield MovedMachine(machine, shop.directory, there)

    return opened


@pytest.fixture
def task(shop: Shop) -> Task:
    """Solved by FIXED, judged by two new tests and two old ones."""
    return Task(
        task_id="shop__1",
        source="test",
        repo="example/shop",
        image="host",
        statement="Averages of nothing\n\n`average([])` divides by zero; it should be 0. Labels keep blanks.",
        base_commit=shop.git("rev-parse", "HEAD").strip(),
        workdir=str(shop.directory),
        gold_patch=shop.diff({"shop/sums.py": FIXED}),
        grading=SWETests(
            test_patch=shop.diff({"tests/test_sums.py": NEW_TEST}),
            test_command="python -m pytest -p no:cacheprovider -rA tests/test_sums.py",
            pre_commands=("export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1",),
            fail_to_pass=(
                "tests/test_sums.py::test_average_of_nothing",
                "tests/test_sums.py::test_label",
            ),
            pass_to_pass=("tests/test_sums.py::test_total", "tests/test_sums.py::test_average"),
            test_files=("tests/test_sums.py",),
            timeout_seconds=60.0,
        ),
    )


@pytest.fixture
def quick_task(task: Task) -> Task:
    """The same task where it does not matter that the tests are run by pytest."""
    grading = msgspec.structs.replace(task.grading, test_command=RUNNER)
    return msgspec.structs.replace(task, grading=grading)


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "store")


class Endpoint:
    """A chat endpoint that answers each request with the next of `replies`; the last one stays."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: list[Callable[[web.Request], Awaitable[web.StreamResponse]]] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    def answer(self, body: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Queue a reply: JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)

        async def reply(_: web.Request) -> web.StreamResponse:
            return web.Response(body=data, status=status, headers=headers, content_type="application/json")

        self.replies.append(reply)

    def says(self, text: str = "", *commands: str, **fields: Any) -> None:
        """Queue a completion with a text and `bash` calls."""
        calls = [
            {
                "id": f"call-{number}",
                "type": "function",
                "function": {"name": "bash", "arguments": msgspec.json.encode({"command": command}).decode()},
            }
            for number, command in enumerate(commands)
        ]
        self.answer(self.completion(text, calls, **fields))

    @staticmethod
    def completion(text: str = "", calls: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
        """A chat completion as OpenAI writes it, with `fields` replacing or added at the top."""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = calls
        reason = "tool_calls" if calls else "stop"
        return {
            "id": "c",
            "object": "chat.completion",
            "model": "served",
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
            **fields,
        }

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return await reply(request)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    fake = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", fake.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield fake
    await runner.cleanup()


@pytest.fixture
async def models(endpoint: Endpoint) -> AsyncIterator[ModelClient]:
    """A client whose `default` endpoint is the fake one."""
    async with ModelClient({"default": EndpointSettings(base_url=endpoint.url)}) as client:
        yield client
