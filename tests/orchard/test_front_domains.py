"""A domain from a package of its own: its commands, its ways to make tasks, how its rollouts read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ORBIT = '''
from typing import Annotated

import typer

from orchard.actions.domain import FrontDomain, TaskRoute

DOMAIN = FrontDomain(
    name="orbit",
    commands={"dock": ("orbit", "Dock a craft.")},
    task_commands=("orbit_tasks",),
    synthesis=TaskRoute(
        run="orbit:synthesize",
        words=("orbit",),
        title="orbit",
        argument="`orbit`: tasks of crafts",
        summary="of crafts (`orbit`)",
        details="Of orbit: they fly.",
        examples=("orbit --burns 3",),
        limit=7,
    ),
    submission="orbit:submission",
)


def register(app: typer.Typer) -> None:
    @app.command()
    def dock() -> None:
        """Dock a craft."""
        typer.echo("docked")


def synthesize(
    session, words, limit, concurrency, *, burns: Annotated[int, typer.Option(help="of the engine.")] = 1
):
    typer.echo(f"{words} {limit} {concurrency} {burns}")


def submission(text):
    return "an orbit" if text.startswith("orbit:") else None
'''
ORBIT_TASKS = '''
def register(app):
    @app.command("orbits")
    def orbits() -> None:
        """List orbits."""
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed package with a record, and one whose record cannot be loaded."""
    site = tmp_path_factory.mktemp("site")
    (site / "orbit.py").write_text(ORBIT)
    (site / "orbit_tasks.py").write_text(ORBIT_TASKS)
    for name, record in (("orbit", "orbit:DOMAIN"), ("lost", "nowhere:DOMAIN")):
        info = site / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[orchard.front_domains]\n{name} = {record}\n")
    return site


def done(package: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(package), "COLUMNS": "200"}
    line = [sys.executable, "-m", "orchard", "--store", str(package / "store"), *words]
    found = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=120)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.long
def test_its_commands_stand_beside_the_others(package: Path) -> None:
    assert done(package, "dock").strip() == "docked"
    listed = done(package, "--help")
    assert "Dock a craft." in listed and "quickstart" in listed
    assert "orbits" in done(package, "tasks", "--help")


@pytest.mark.long
def test_its_way_of_synthesis_is_chosen_by_its_word_and_has_its_own_options(package: Path) -> None:
    said = done(package, "tasks", "synthesize", "--help")
    assert "With orbit: of the engine." in said and "of crafts (orbit)" in said and "they fly" in said
    assert done(package, "tasks", "synthesize", "orbit", "--burns", "3").strip() == "['orbit'] 7 3 3"
    assert done(package, "tasks", "synthesize", "orbit", "--limit", "2").strip() == "['orbit'] 2 3 1"


def test_its_submissions_are_read_by_it_and_no_others(package: Path) -> None:
    code = (
        "from orchard.actions.domain import submission_text as s; print(s('orbit: 7'), s('diff --git a b'))"
    )
    line = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    found = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert found.stdout.split("\n")[0] == "an orbit None"
