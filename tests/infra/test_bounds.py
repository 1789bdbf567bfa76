"""`make test-oldest` tries the lower bounds that pyproject.toml has now."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def test_the_lowest_versions_are_those_of_the_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    tried = {
        canonicalize_name(name): Version(version)
        for name, version in re.findall(
            r"^([^=\s]+)==(\S+)$", (ROOT / "infra/oldest.txt").read_text(), re.MULTILINE
        )
    }
    wrong = []
    for text in (*project["dependencies"], *optional["train"], *optional["gui"]):
        requirement = Requirement(text)
        (lowest,) = (Version(one.version) for one in requirement.specifier if one.operator == ">=")
        version = tried[canonicalize_name(requirement.name)]
        # A bound of fewer parts, such as `>=14`, stands for the first release that it allows.
        if version.release[: len(lowest.release)] != lowest.release:
            wrong.append(f"{requirement.name} {version}, and the bound is {lowest}: run `make lock`")
    assert wrong == []
