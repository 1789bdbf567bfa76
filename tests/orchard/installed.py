"""The package as a user gets it: a wheel in a fresh environment, beside what a plain install brings."""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
ROOMS = ("schemas", "streams", "storage", "injector", "workers", "pipelines", "orchard")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def build_wheel(place: Path) -> Path:
    """Build the wheel from a copy of what the repository has for it."""
    source, target = place / "source", place / "wheel"
    target.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-c", BUILD, str(target)], cwd=source, check=True, capture_output=True)
    (wheel,) = target.glob("*.whl")
    return wheel


class Installed:
    """A virtual environment with the wheel, and with links to what it requires without extras."""

    def __init__(self, place: Path, wheel: Path) -> None:
        self.place = place
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
        into = ["--python", str(self.program("python")), "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([sys.executable, "-m", "pip", *into, "--no-compile", str(wheel)], check=True)
        self.landed = {path.name for path in self.packages.iterdir()}
        """What the wheel put into site-packages."""
        plain = place / "plain"
        plain.mkdir()
        for path in {path for name in required() for path in parts(metadata.distribution(name))}:
            (plain / path.name).symlink_to(path)
        (self.packages / "plain.pth").write_text(f"{plain}\n")
        self.program("nats-server").symlink_to(Path(sysconfig.get_path("scripts")) / "nats-server")

    @property
    def packages(self) -> Path:
        return self.place / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"

    def program(self, name: str) -> Path:
        return self.place / "bin" / name


def required() -> set[str]:
    """Distributions that a plain install brings, by the metadata of those that are installed here."""
    found: set[str] = set()
    pending = [("orchard-pipeline", "")]
    while pending:
        name, extra = pending.pop()
        for text in metadata.requires(name) or []:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                wanted = [(need.name, each) for each in ("", *need.extras)]
                if need.name not in found or need.extras:
                    pending += wanted
                found.add(need.name)
    return found


def parts(distribution: metadata.Distribution) -> Iterator[Path]:
    """Files and folders at the top of site-packages that belong to a distribution."""
    tops = {file.parts[0] for file in distribution.files or []}
    for top in tops - {"..", "__pycache__"}:
        yield Path(str(distribution.locate_file(top)))
