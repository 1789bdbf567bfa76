"""What images are built of and what `make` installs: by version, whole, and what pyproject.toml asks for."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.infra.conftest import INFRA

LOCK = INFRA / "requirements.txt"
CONSTRAINTS = INFRA / "constraints.txt"
PROJECT = tomllib.loads((INFRA.parent / "pyproject.toml").read_text())
IMAGE = {**default_environment(), "python_version": "3.11", "python_full_version": "3.11.14", "extra": ""}
"""What markers are compared with: the Python of the images."""
REMEDY = "run `make lock`"


@pytest.fixture(scope="module")
def locked() -> dict[str, tuple[str, int]]:
    """Version and number of hashes by name."""
    found = {}
    for entry in re.split(r"\n(?=[a-zA-Z])", LOCK.read_text().strip()):
        name, version = re.match(r"([\w.-]+)==(\S+)", entry).groups()  # type: ignore[union-attr]
        found[canonicalize_name(name)] = (version, len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)))
    return found


def asked(texts: list[str], extras: set[str]) -> list[Requirement]:
    """The requirements that hold in the images."""
    parsed = [Requirement(text) for text in texts]
    return [
        each
        for each in parsed
        if each.marker is None or any(each.marker.evaluate({**IMAGE, "extra": one}) for one in extras | {""})
    ]


def installed(name: str) -> str | None:
    """The version that is here."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def test_each_package_is_named_by_version_and_hashes(locked: dict[str, tuple[str, int]]) -> None:
    assert len(locked) > 30
    assert [name for name, (_, hashes) in locked.items() if not hashes] == []


def test_it_has_all_that_the_project_and_its_packages_ask_for(locked: dict[str, tuple[str, int]]) -> None:
    """What a package asks for is read of the one installed here, where that is of the locked version."""
    waiting = asked(PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"], set())
    read: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        assert name in locked, f"{name} is not locked: {REMEDY}"
        pinned, _ = locked[name]
        assert wanted.specifier.contains(pinned, prereleases=True), f"{wanted}, not {pinned}: {REMEDY}"
        if (key := (name, frozenset(wanted.extras))) not in read and installed(name) == pinned:
            read.add(key)
            waiting += asked(requires(name) or [], wanted.extras)


def test_the_images_have_no_other_package() -> None:
    text = (INFRA / "Containerfile").read_text()

    assert re.findall(r"^FROM (\S+)", text, re.M) == ["${PYTHON}", "${PYTHON}", *["installed"] * 4, "scratch"]
    for line in re.findall(r"pip (?:install|wheel) .*", text):
        assert "--require-hashes" in line or "--no-index" in line, line


def test_make_installs_by_version_all_that_the_project_names() -> None:
    """A release that comes tomorrow cannot break what was tested today."""
    pinned = {
        canonicalize_name(each.name): each
        for line in CONSTRAINTS.read_text().splitlines()
        for each in [Requirement(line)]
        if each.marker is None or each.marker.evaluate(IMAGE)
    }
    groups = PROJECT["dependency-groups"]
    named = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["train"]]
    for wanted in asked([*named, *groups["dev"], *groups["consumers"], "mini-swe-agent>=2.4,<3"], set()):
        name = canonicalize_name(wanted.name)
        (exact,) = pinned[name].specifier
        assert exact.operator == "==" and wanted.specifier.contains(exact.version), f"{wanted}: {REMEDY}"
