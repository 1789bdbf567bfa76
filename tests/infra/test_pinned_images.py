"""`infra/pin-images.sh`: an overlay as it is, with every image named by what is behind its tag now."""

import hashlib
import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from tests.infra.conftest import INFRA, Manifests, containers
from tests.infra.test_manifests import sandbox_settings


def pinned(program: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    """What `pin-images.sh` makes of an overlay, with a registry that answers as `program` does."""
    registry = directory / "registry"
    registry.write_text(f"#!/bin/sh\n{program}\n")
    registry.chmod(0o755)
    return subprocess.run(
        [str(INFRA / "pin-images.sh"), str(INFRA / "overlays" / "spot")],
        env=os.environ | {"IMAGE_DIGEST": str(registry)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_every_image_can_be_named_by_digest(built: dict[str, Manifests], tmp_path: Path) -> None:
    """The agent's in the settings too, so that the backend may refuse all others; nothing else changes."""
    answer = pinned("printf sha256:; printf %s \"$1\" | sha256sum | cut -d' ' -f1", tmp_path)
    manifests = Manifests([each for each in yaml.safe_load_all(answer.stdout) if each])
    settings = msgspec.structs.replace(sandbox_settings(manifests), images_by_digest=True)
    settings.check()
    images = {box["image"] for _, pod in manifests.pods() for box in containers(pod)} | {settings.agent_image}
    for image in images:
        name, _, digest = image.partition("@sha256:")
        assert digest == hashlib.sha256(name.encode()).hexdigest()
    assert len(images) == 6
    as_before = re.sub("@sha256:[0-9a-f]{64}", "", answer.stdout)
    assert [each for each in yaml.safe_load_all(as_before) if each] == list(built["spot"].items)


@pytest.mark.parametrize(
    ("program", "says"), [("exit 1", "push it first"), ("echo latest", "latest is no digest of")]
)
def test_what_no_registry_has_is_named_and_nothing_is_written(
    tmp_path: Path, program: str, says: str
) -> None:
    refused = pinned(program, tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert says in refused.stderr
