"""An ordinary container of podman, without privileges: the first run says what to add, and works with that.

The image has empty folders, into which this machine's programs are mounted: no registry is needed.
"""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.machines.test_conditions import ROOT, drained, greeted, told

pytestmark = [pytest.mark.needs_root("keeps images on an overlay"), pytest.mark.slow]

FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp", "usr", "var/tmp")
LINKS = ("bin", "lib", "lib64", "sbin")
MOUNTED = dict.fromkeys(
    ["/usr", "/etc/alternatives", "/etc/ssl", str(ROOT), *sorted({sys.prefix, sys.base_prefix})]
)
ADDED = re.compile(r"`(--(?:privileged|volume)[^`]*)`")


class Podman:
    """Containers with storage of their own."""

    def __init__(self, place: Path) -> None:
        image = place / "image.tar"
        with tarfile.open(image, "w") as archive:
            for name in FOLDERS:
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if "tmp" in name else 0o755
                archive.addfile(folder)
            for name in LINKS:
                archive.add(f"/{name}", name, recursive=False)
        storage = place / "storage.conf"
        storage.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{place}/graph"\nrunroot = "{place}/run"\n'
        )
        self._environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage)}
        imported = self._start("import", str(image), "bare")
        assert imported.wait() == 0, imported.communicate()

    def orchard(self, *words: str, options: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
        limits = [f"--ulimit={name}=20000:20000" for name in ("nofile", "nproc")]
        mounts = [f"--volume={path}:{path}:ro" for path in MOUNTED]
        variables = ["--env=PYTHONUNBUFFERED=1", "--env=COLUMNS=2000", "--env=PIP_INDEX_URL=file:///nowhere"]
        command = ["bare", sys.executable, "-m", "orchard", *words]
        run = ("run", "--rm", "--network=none", *limits, *mounts, *variables, *options)
        return self._start(*run, *command)

    def _start(self, *words: str) -> "subprocess.Popen[str]":
        podman = ["podman", "--cgroup-manager=cgroupfs", "--events-backend=none", "--runtime=runc"]
        return subprocess.Popen(
            ["unshare", "--mount", *podman, *words],  # its mounts end with it
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def test_the_first_run_says_what_to_add_and_works_with_that(tmp_path: Path) -> None:
    podman = Podman(tmp_path)
    shown, refused = (told(podman.orchard(command)) for command in ("doctor", "up"))
    added = ADDED.findall(refused)
    assert added == ["--privileged", "--volume orchard:/.orchard"] == ADDED.findall(shown)
    options = tuple(option for each in added for option in each.split())
    running = podman.orchard("up", "--workers", "1", options=options)
    greeted(running)
    drained(running)


def test_a_container_with_privileges_alone_says_what_is_missing(tmp_path: Path) -> None:
    refused = told(Podman(tmp_path).orchard("up", options=("--privileged",)))
    assert "/.orchard, which is on overlay (Invalid argument): put the state directory on" in refused
    assert ADDED.findall(refused) == ["--volume orchard:/.orchard"]
