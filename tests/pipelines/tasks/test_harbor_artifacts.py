"""What a Harbor verifier of its own gets, of which sandbox, and which artifacts are refused."""

import pytest

from orchard.pipelines.tasks.harbor_artifacts import ARTIFACTS, brought
from orchard.pipelines.tasks.harbor_definition import Artifact
from orchard.schemas.tasks import ServiceArtifact


def test_artifacts_come_once_each_in_their_order_after_the_directory_for_them() -> None:
    given = [
        Artifact("/a/"),
        Artifact("/a"),
        Artifact("/a/b"),
        Artifact("/c", service=" db "),
        Artifact("/d", "x"),
    ]
    rows = ServiceArtifact(service="db", path="/c")
    assert brought(given) == (ARTIFACTS, "/a", "/a/b", rows, "/d")
    assert brought([Artifact("/a"), Artifact(f"{ARTIFACTS}/", service="main")]) == ("/a", ARTIFACTS)


@pytest.mark.parametrize(
    "given",
    [
        [Artifact("/a/b"), Artifact("/a")],
        [Artifact("/a", "x"), Artifact("/b", "x/y")],
        [Artifact("/a", "b"), Artifact("/b")],
        [Artifact("/a"), Artifact("/a", service="db")],
        [Artifact("/logs")],
        [Artifact(ARTIFACTS, service="db")],
    ],
)
def test_two_at_one_place_are_refused(given: list[Artifact]) -> None:
    with pytest.raises(ValueError, match="give one of them another destination"):
        brought(given)


@pytest.mark.parametrize("source", ["a/b", "/", "/.", "//a", " /a", "C:/a"])
def test_a_path_is_absolute_and_below_the_root(source: str) -> None:
    with pytest.raises(ValueError, match="is no absolute path below /"):
        brought([Artifact(source)])
