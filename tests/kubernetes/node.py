"""The test node: one real Kubernetes node on this machine, for as long as the tests run."""

import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes.images import Workshop

ROOT = Path(__file__).parents[2]
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
TOOLS_VARIABLE = "TEST_KUBERNETES_TOOLS"
BINARIES_VARIABLE = "TEST_KUBERNETES_BIN"


class NoNode(Exception):
    """There is nothing to make a node of; one sentence says what to do."""


@dataclass(frozen=True)
class Node:
    """A node that runs."""

    kubeconfig: Path
    namespace: Path
    """The network namespace in which its API server and its Pods can be reached."""

    def inside(self, *command: str) -> list[str]:
        """The words that run a command where the node can be reached."""
        return ["nsenter", f"--net={self.namespace}", *command]


def tools() -> Path:
    """The folder of scripts that make a node. Raises NoNode."""
    place = Path(os.environ.get(TOOLS_VARIABLE, ROOT.parent / "shared" / "tools" / "kubernetes-node"))
    if not (place / "up.sh").is_file():
        raise NoNode(
            f"There is no cluster to test on: set KUBECONFIG, or {TOOLS_VARIABLE} to the folder with the "
            f"scripts of the test node (up.sh, down.sh, build.sh), which are not in {place}."
        )
    return place


def binaries(*needed: str) -> Path:
    """The folder with Kubernetes' own programs, all or those that are needed. Raises NoNode."""
    place = binaries_place()
    if missing := [name for name in missing_binaries() if name in (needed or PROGRAMS)]:
        raise NoNode(
            f"The test node lacks {', '.join(missing)} in {place}: run `make kubernetes-binaries` (about "
            f"five minutes, once), set {BINARIES_VARIABLE} to a folder that has them, or set KUBECONFIG."
        )
    return place


def binaries_place() -> Path:
    """Where Kubernetes' programs are looked for, and built to."""
    return Path(os.environ.get(BINARIES_VARIABLE) or ROOT / "build" / "kubernetes").resolve()


def missing_binaries() -> list[str]:
    """Which of the programs are not there."""
    return [name for name in PROGRAMS if not os.access(binaries_place() / name, os.X_OK)]


def build_binaries() -> None:
    """Build Kubernetes' programs from Debian's source package, unless they are there. Raises NoNode."""
    if not missing_binaries():
        print(f"Kubernetes' programs are in {binaries_place()}", flush=True)  # noqa: T201
        return
    script = tools() / "build.sh"
    with tempfile.TemporaryDirectory(prefix="orchard-kubernetes-") as scratch:
        # Go's module cache is read-only, which the removal of the directory must bear: root's does.
        run = subprocess.run(["bash", str(script), scratch, str(binaries_place())], check=False)
    if run.returncode or missing_binaries():
        raise NoNode(f"{script} could not build Kubernetes: its last lines above say why.")


@contextmanager
def running_node() -> Iterator[Node]:
    """A node with all images of the tests; nothing of it is left afterwards. Raises NoNode, NoImage."""
    if os.geteuid() != 0:
        raise NoNode("Only root can run the test node: run as root, or set KUBECONFIG.")
    scripts, programs = tools(), binaries()
    images = Workshop(scripts, programs / "images").all()
    place = Path(tempfile.mkdtemp(prefix="orchard-node-"))
    name = f"orchard-{secrets.token_hex(3)}"
    print(f"starting a Kubernetes node in the network namespace {name}", flush=True)  # noqa: T201
    try:
        apart = _apart(programs, place / "bin", name)
        _script(scripts / "up.sh", str(apart), str(place / "node"), name, IMAGES=" ".join(map(str, images)))
        yield Node(place / "node" / "kubeconfig", Path("/run/netns") / name)
    finally:
        print("removing the Kubernetes node", flush=True)  # noqa: T201
        _script(scripts / "down.sh", str(place / "node"), name)
        for root in filter(Path.is_dir, _control_groups(name)):
            for group in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
                group.rmdir()
            root.rmdir()
        shutil.rmtree(place)


def _apart(programs: Path, place: Path, name: str) -> Path:
    """The programs, with a kubelet whose control groups are below one of its own.

    Two kubelets of one machine would otherwise share theirs, and each would end the other's Pods as orphans.
    """
    for root in _control_groups(name):
        root.mkdir(exist_ok=True)  # a hierarchy may be mounted twice
    place.mkdir()
    for program in PROGRAMS:
        (place / program).symlink_to(programs / program)
    kubelet = place / "kubelet"
    kubelet.unlink()
    kubelet.write_text(
        f'#!/bin/sh\nexec {shlex.quote(str(programs / "kubelet"))} --cgroup-root=/{name} "$@"\n'
    )
    kubelet.chmod(0o755)
    return place


def _control_groups(name: str) -> list[Path]:
    """The directories of a control group in every hierarchy that is mounted."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [Path(mount[1]) / name for mount in mounts if mount[2] in ("cgroup", "cgroup2")]


def _script(script: Path, *arguments: str, **variables: str) -> None:
    """Run one of the tools, in a session of its own: Ctrl-C must not stop it half-way. Raises NoNode."""
    command = ["timeout", "300", "bash", str(script), *arguments]
    run = subprocess.run(
        command,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    if run.returncode:
        raise NoNode(
            f"{script.name} failed with status {run.returncode}: {(run.stdout + run.stderr)[-2000:]}"
        )
