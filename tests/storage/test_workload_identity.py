"""A store on S3 without keys: the identity of a Pod's account is exchanged, and the process ends."""

import json
import subprocess
import sys

import pytest

from tests import aws_cloud

pytestmark = [pytest.mark.long, pytest.mark.needs_root("a network of its own, where AWS has its names")]
SECONDS = 120.0
ARROW = """
from orchard.storage.location import Location
place = Location.parse("s3://orchard/x")
place.write(b"hello", "a", "b")
assert place.read("a", "b") == b"hello"
"""
"""Still holds the store as it ends."""


@pytest.mark.parametrize(
    "command",
    [
        ["-c", ARROW],
        ["-m", "orchard", "--store", "s3://orchard/x", "sql", "select count(*) from events"],
    ],
    ids=["arrow", "delta"],
)
def test_the_identity_of_an_account_is_exchanged_for_a_key_and_the_process_ends(command: list[str]) -> None:
    line = ["unshare", "--net", "--mount", sys.executable, "-m", "tests.aws_cloud", str(SECONDS)]
    done = subprocess.run([*line, sys.executable, *command], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["status"] == 0, done.stderr
    assert set(seen["exchanged"]) == {"token-of-the-account"}
    assert seen["keys"] == [[aws_cloud.KEY, aws_cloud.TOKEN]]
