"""The whole path of a new user, with the time of each step: from a clone to a report that colleagues open.

The model of their own endpoint is a fake that the oracle plays. Run as `python -m tests.benchmarks.new_user`,
which writes a page of docs/benchmarks; nothing should run beside it.
"""

import argparse
import asyncio
import os
import platform
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil

from orchard.configuration.run_files import running
from tests.fake_endpoint import serving
from tests.orchard.test_followed_documents import ROOT, Reader, StandIn

PAGE = ROOT / "docs" / "benchmarks" / "new-user.md"
ENDPOINT = '[endpoints.default]\nbase_url = "{url}"\napi_key_env = "OPENAI_API_KEY"\n'
DATASET = (
    'name = "first"\ntokenizer = "tokenizers/first"\n[source]\ncampaigns = ["first"]\n'
    "[filters]\nmax_tokens = 32768\n"
)
FIRST_RESULT = "select epoch(min(time)) from events where type = 'rollout.finished'"


class Step(NamedTuple):
    name: str
    seconds: float


class NewUser:
    """Someone who follows the path in an empty folder.

    `tasks` are those of the quick start, `installed` is an environment that is used instead of a new one.
    """

    def __init__(self, folder: Path, model: StandIn, tasks: int, installed: Path | None) -> None:
        self.steps: list[Step] = []
        self._clone = folder / "orchard"
        self._folder = folder
        self._model = model
        self._tasks = tasks
        self._installed = installed

    def follow(self) -> None:
        start = Reader(self._folder, {}, _environment())
        with self._timed("clone"):
            start.bash(f"git clone --quiet {ROOT} {self._clone}")
        if self._installed is not None:
            (self._clone / ".venv").symlink_to(self._installed)
        reader = Reader(self._clone, {}, _environment())
        make = "make" if self._installed is None else "make --old-file=.venv/.product"
        with self._timed("install"):
            reader.bash(f"{make} .venv/.product debian")
        reader.environment["PATH"] = f"{self._clone}/.venv/bin:{reader.environment['PATH']}"
        began = time.time()
        with self._timed("quick start: whole"):
            reader.bash(f'{make} quickstart ARGS="--tasks {self._tasks}"')
        first = float(reader.bash(f'orchard sql --format csv "{FIRST_RESULT}"').split()[-1])
        self.steps.insert(-1, Step("quick start: first graded rollout", first - began))
        try:
            self._own_model(reader)
        finally:
            reader.stop()

    def _own_model(self, reader: Reader) -> None:
        (self._clone / "orchard.toml").write_text(ENDPOINT.format(url=self._model.url))
        (self._clone / "dataset.toml").write_text(DATASET)
        reader.environment["OPENAI_API_KEY"] = "a key"
        with self._timed("up, and the page open"):
            reader.start("orchard up --workers 2")
            up = running(self._clone / ".orchard")
            assert up is not None and up.page_url is not None
            with urllib.request.urlopen(up.page_url) as page:
                assert page.status == 200
        for name, command in {
            "try": "orchard try --model my-model",
            "submit": "orchard submit first --model my-model --samples 3",
            "watch": "orchard watch first",
            "install for training": "true" if self._installed else 'pip install --quiet -e ".[train]"',
            "tokenizer": "orchard dataset tokenizer --out tokenizers/first --vocab-size 400",
            "dataset build": "orchard dataset build dataset.toml --out datasets/first",
            "report": "orchard report first --out first.html",
        }.items():
            with self._timed(name):
                reader.bash(command)
        assert b"my-model" in (self._clone / "first.html").read_bytes()

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.steps.append(Step(name, time.monotonic() - began))


def _environment() -> dict[str, str]:
    """This one without what would be the settings of another Orchard or of a `make` around it."""
    others = re.compile("ORCHARD_|OPENAI_|MAKE|VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not others.match(name)}


async def measured(folder: Path, tasks: int, installed: Path | None = None) -> list[Step]:
    """Steps of the path, in order, followed in an empty folder."""
    model = StandIn()
    async with serving(model.models, model.chat) as model.url:
        model.folder = folder / "orchard"
        user = NewUser(folder, model, tasks, installed)
        await asyncio.to_thread(user.follow)
        return user.steps


PAGE_TEXT = """\
# The path of a new user

Read here how long each step takes, from a clone to a report for colleagues. The model is a fake that the
oracle plays. `python -m tests.benchmarks.new_user` measures it again.

| step | seconds |
|---|---:|
{rows}

{day:%Y-%m-%d}, {cores} cores, {memory:.0f} GiB, Python {python}, {tasks} tasks in the quick start; load
average before: {load:.1f}.
"""


def _page(steps: list[Step], tasks: int, load: float) -> str:
    return PAGE_TEXT.format(
        rows="\n".join(f"| {step.name} | {step.seconds:.1f} |" for step in steps),
        day=datetime.now(UTC),
        cores=psutil.cpu_count(),
        memory=psutil.virtual_memory().total / 2**30,
        python=platform.python_version(),
        tasks=tasks,
        load=load,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--installed", type=Path, help="environment that is used instead of a new one")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="orchard-new-user-") as folder:
        steps = asyncio.run(measured(Path(folder), options.tasks, options.installed))
    PAGE.write_text(_page(steps, options.tasks, load))
    sys.stdout.write(PAGE.read_text())


if __name__ == "__main__":
    main()
