"""Checks at start what the local backend needs of a machine; each problem is a sentence with its remedy."""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchard.injector.agent import kernel, seccomp
from orchard.injector.agent.errors import MachineUnfit
from orchard.injector.agent.local import network


@dataclass(frozen=True, kw_only=True)
class Requirements:
    slirp: str
    """Path of slirp4netns, or empty."""
    problems: tuple[str, ...]
    """One sentence each; empty when sandboxes can be made."""

    def document(self) -> dict[str, Any]:
        return {
            "isolation": "namespaces" if not self.problems else "none",
            "network": self.network_problem or "outbound, by slirp4netns",
            "kernel": os.uname().release,
            "python": sys.version.split()[0],
            "problems": list(self.problems),
        }

    @property
    def network_problem(self) -> str:
        """Why there are no sandboxes with a network, or empty."""
        return network.lacking(self.slirp)

    def insist(self) -> None:
        if self.problems:
            raise MachineUnfit("no sandboxes on this machine: " + "; ".join(self.problems))


def inspect(state: Path) -> Requirements:
    """Check the machine; a child process tries an overlay mount with its changes in `state`, or in the first
    directory above it that exists."""
    problems: list[str] = []
    kind = filesystem(nearest(state))
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in seccomp.REFUSED:
        problems.append(
            f"local sandboxes need Linux on x86_64 or aarch64, this is {sys.platform} on {machine}"
        )
    if os.geteuid() == 0 and not kernel.may_mount():
        volume = f" and a volume for the state directory (`--volume orchard:{state}`)"
        problems.append(
            f"this root lacks CAP_SYS_ADMIN: start the container with `--privileged`"
            f"{volume if kind == 'overlay' else ''}, or use a sandbox service elsewhere "
            "(`--sandbox http://HOST:PORT`)"
        )
    elif complaint := _overlay_complaint(state, kind):
        problems.append(complaint)
    return Requirements(
        slirp=shutil.which("slirp4netns") or "",
        problems=tuple(problems),
    )


_CHROOT = (
    "/ is not a mount point, as in a chroot: `mount --bind DIRECTORY DIRECTORY` before `chroot DIRECTORY` "
    "makes it one"
)


def nearest(directory: Path) -> Path:
    """The directory, or the first above it that exists."""
    return next(each for each in (directory, *directory.parents) if each.exists())


def filesystem(path: Path) -> str:
    """Type of the file system that an existing path is on, such as `ext4`."""
    path = path.resolve()
    found = {}
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        before, _, after = line.partition(b" - ")
        point = Path(os.fsdecode(before.split()[4].decode("unicode_escape").encode("latin-1")))
        found[point] = os.fsdecode(after.split()[0])  # what was mounted last on a point is what is seen
    return next((found[each] for each in (path, *path.parents) if each in found), "an unknown file system")


def _overlay_complaint(state: Path, kind: str) -> str:
    """Say why no overlay can be mounted with its changes in `state`; empty when one can."""
    script = (
        "import sys; from pathlib import Path\n"
        "from orchard.injector.agent import kernel\n"
        "from orchard.injector.agent.errors import MachineUnfit\n"
        "from orchard.injector.agent.local import overlay, user_namespace\n"
        "import os; os.geteuid() == 0 or user_namespace.enter()\n"
        "kernel.unshare(kernel.CLONE_NEWNS)\n"
        "try: kernel.mount('', '/', None, kernel.MS_REC | kernel.MS_SLAVE)\n"
        "except OSError as error: raise MachineUnfit(sys.argv[2]) from error\n"
        "base = Path(sys.argv[1])\n"
        "overlay.mount(base / 'root', [base / 'lower'], upper=base / 'upper', work=base / 'work')\n"
    )
    with tempfile.TemporaryDirectory(prefix="probe-", dir=nearest(state)) as place:
        for name in ("lower", "upper", "work", "root"):
            Path(place, name).mkdir()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-P", "-c", script, place, _CHROOT],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
    if done.returncode == 0:
        return ""
    reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    _, unfit, sentence = reason.partition("MachineUnfit: ")
    if unfit:
        return sentence
    reason = reason.partition("] ")[2].partition(": ")[0] or reason  # OSError: [Errno N] REASON: PATH
    volume = f" (in a container on a volume: `--volume orchard:{state}`)" if kind == "overlay" else ""
    return (
        f"an overlay cannot be mounted with its changes in {state}, which is on {kind} ({reason}): put the "
        f"state directory on a file system such as ext4, xfs or tmpfs{volume}"
    )
