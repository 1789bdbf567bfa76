"""Other people's machines: `up` refuses what cannot work, `doctor` before it in the same words, and what is
odd but enough works. Each condition is made in namespaces of its own."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchard.injector.agent.local.cgroups import layout
from orchard.streams.server import find_binary

pytestmark = pytest.mark.needs_root("makes mounts and namespaces")

READ_ONLY = "mount -t tmpfs tmpfs . && mount -o remount,ro ."
SMALL = "mount -t tmpfs -o size=50m tmpfs ."
OVERLAY = (
    'mount -t tmpfs tmpfs . && cd "$PWD" && mkdir lower upper work point && '
    "mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay point && cd point"
)
NOEXEC = f"mount --bind {find_binary()} {find_binary()} && mount -o remount,bind,noexec {find_binary()}"
ONLY_IPV6 = "ip link set lo up && ip address delete 127.0.0.1/8 dev lo"
BARE_ROOT = "exec setpriv --bounding-set -all --inh-caps -all"
CHROOT = (
    "mkdir -p new/tmp && for d in /*; do if [ -L $d ]; then cp -d $d new$d; elif [ -d $d ] && "
    "[ $d != /tmp ]; then mkdir -p new$d && mount --rbind $d new$d; fi; done; exec chroot new"
)
REFUSED = {
    "chroot": (CHROOT, "/ is not a mount point, as in a chroot: `mount --bind DIRECTORY DIRECTORY` before"),
    "read-only state": (READ_ONLY, "cannot be used (Read-only file system): choose another --state"),
    "overlay": (OVERLAY, "an overlay cannot be mounted with its changes in"),
    "50 MiB of disk": (SMALL, "bytes free, less than the 536870912 of nats.reserve_bytes"),
    "noexec checkout": (NOEXEC, "may not be executed: install on a file system that is not mounted with"),
    "no loopback": ("true", "this machine has no loopback address: `ip link set lo up` gives it one"),
    "container without privileges": (BARE_ROOT, "start the container with `--privileged`"),
}
WORKS = {
    "only ::1": (ONLY_IPV6, {}),
    "C locale, folder with an accent": (
        "ip link set lo up && mkdir ñandú && cd ñandú",
        {"LC_ALL": "C", "PYTHONUTF8": "0"},
    ),
    "noexec state": ("ip link set lo up && mount -t tmpfs -o noexec tmpfs .", {}),
}


def run(directory: Path, made: str, *words: str, **variables: str) -> "subprocess.Popen[str]":
    """`orchard` in a condition: shell that runs in new mount and network namespaces."""
    command = shlex.join([sys.executable, "-m", "orchard", *words])
    script = f"{made} {command}" if "exec" in made.split() else f'{made} && cd "$PWD" && exec {command}'
    environment = {**os.environ, "COLUMNS": "2000", "PIP_INDEX_URL": "file:///nowhere", **variables}
    return subprocess.Popen(
        ["unshare", "--mount", "--net", "bash", "-c", script],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def told(process: "subprocess.Popen[str]") -> str:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 1, out
    assert "Traceback" not in out
    return " ".join(out.split())


@pytest.mark.parametrize("name", REFUSED)
def test_up_and_doctor_refuse_in_the_same_words(name: str, tmp_path: Path) -> None:
    made, sentence = REFUSED[name]
    shown, refused = (told(run(tmp_path, made, command)) for command in ("doctor", "up"))
    assert sentence in shown and sentence in refused


def test_too_few_processes(tmp_path: Path) -> None:
    text = Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    group = layout(*text).parents["pids"] / f"orchard-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "pids.max").write_text("100")
        enter = f"ip link set lo up && echo $$ > {group}/cgroup.procs"
        shown, refused = (told(run(tmp_path, enter, command)) for command in ("doctor", "up"))
    finally:
        group.rmdir()
    for text_ in (shown, refused):
        assert f"pids.max of {group} is 100, which leaves" in text_ and "2 workers need 320" in text_


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_odd_but_enough(name: str, tmp_path: Path) -> None:
    made, variables = WORKS[name]
    process = run(tmp_path, made, "up", "--workers", "1", PYTHONUNBUFFERED="1", **variables)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if "Ctrl-C drains" in line:
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "stopped" in out, "".join(said) + out


@pytest.mark.slow
def test_the_first_run_without_a_network_ends_at_the_first_failure(tmp_path: Path) -> None:
    network = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_RETRIES": "1"}
    process = run(
        tmp_path,
        "ip link set lo up",
        *("quickstart", "--tasks", "1", "--workers", "1"),
        PIP_INDEX_URL="https://pypi.org/simple",
        **network,
    )
    out = told(process)
    assert out.count("the package index cannot be reached") == 1 and "sdist_missing" not in out


def test_the_first_run_on_the_unsafe_host_is_refused_at_once(tmp_path: Path) -> None:
    out = told(run(tmp_path, "true", "--sandbox", "unsafe-host", "quickstart"))
    assert "leave it out (`orchard doctor` says" in out
