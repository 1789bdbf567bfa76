"""Other people's machines: `up` refuses what cannot work, `doctor` before it in the same words, and what is
odd but enough works. Each condition is made in namespaces of its own."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchard.injector.agent.local.cgroups import layout
from orchard.streams.server import find_binary

pytestmark = pytest.mark.needs_root("makes mounts and namespaces")

ROOT = Path(__file__).parents[2]
READ_ONLY = "mount -t tmpfs tmpfs . && mount -o remount,ro ."
SMALL = "mount -t tmpfs -o size=50m tmpfs ."
OVERLAY = (
    'mount -t tmpfs tmpfs . && cd "$PWD" && mkdir lower upper work point && '
    "mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay point && cd point"
)
NOEXEC = f"mount --bind {find_binary()} {find_binary()} && mount -o remount,bind,noexec {find_binary()}"
ONLY_IPV6 = "ip link set lo up && ip address delete 127.0.0.1/8 dev lo"
BARE_ROOT = (
    "awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts | xargs -n 1 mount -o remount,bind,ro && "
    "exec setpriv --bounding-set -all --inh-caps -all"
)
CHROOT = (
    "mkdir -p new/tmp && for d in /*; do if [ -L $d ]; then cp -d $d new$d; elif [ -d $d ] && "
    "[ $d != /tmp ]; then mkdir -p new$d && mount --rbind $d new$d; fi; done; exec chroot new"
)
REFUSED = {
    "chroot": (CHROOT, "/ is not a mount point, as in a chroot: `mount --bind DIRECTORY DIRECTORY` before"),
    "read-only state": (READ_ONLY, "cannot be used (Read-only file system): choose another --state"),
    "overlay": (OVERLAY, "an overlay cannot be mounted with its changes in"),
    "50 MiB of disk": (SMALL, "bytes free, less than the 536870912 of nats.reserve_bytes"),
    "noexec programs": (NOEXEC, "may not be executed: install on a file system that is not mounted with"),
    "noexec checkout": (
        f"mount --bind {ROOT} {ROOT} && mount -o remount,bind,noexec {ROOT}",
        "install on a file system that is not mounted with `noexec`",
    ),
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
    "read-only checkout": (
        f"ip link set lo up && mount --bind {ROOT} {ROOT} && mount -o remount,bind,ro {ROOT}",
        {},
    ),
}


def run(
    directory: Path,
    made: str,
    *words: str,
    beside: "subprocess.Popen[str] | None" = None,
    **variables: str,
) -> "subprocess.Popen[str]":
    """`orchard` in a condition: shell that runs in new mount and network namespaces, or `beside` another."""
    command = shlex.join([sys.executable, "-m", "orchard", *words])
    script = f"{made} {command}" if "exec" in made.split() else f'{made} && cd "$PWD" && exec {command}'
    namespaces = ["unshare", "--mount", "--net"]
    if beside is not None:
        namespaces = ["nsenter", "--target", str(beside.pid), "--net"]
    environment = {**os.environ, "COLUMNS": "2000", "PIP_INDEX_URL": "file:///nowhere", **variables}
    return subprocess.Popen(
        [*namespaces, "bash", "-c", script],
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


@pytest.mark.long
@pytest.mark.parametrize("name", REFUSED)
def test_up_and_doctor_refuse_in_the_same_words(name: str, tmp_path: Path) -> None:
    made, sentence = REFUSED[name]
    shown, refused = (told(run(tmp_path, made, command)) for command in ("doctor", "up"))
    assert sentence in shown and sentence in refused


@pytest.mark.long
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


def greeted(process: "subprocess.Popen[str]") -> str:
    """What `up` says until it is ready."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if "Ctrl-C drains" in line:
            return said
    raise AssertionError(said)


def drained(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "stopped" in out, out


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_odd_but_enough(name: str, tmp_path: Path) -> None:
    made, variables = WORKS[name]
    process = run(tmp_path, made, "up", "--workers", "1", PYTHONUNBUFFERED="1", **variables)
    greeted(process)
    drained(process)


@pytest.mark.parametrize("mount", ["noexec", "ro"])
def test_make_names_a_checkout_where_no_program_can_run(mount: str, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    script = f"mount --bind . . && mount -o remount,bind,{mount} . && cd $PWD && make .venv/bin/python"
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode and f"Programs cannot run in {tmp_path} (read-only" in done.stdout
    assert not (tmp_path / ".venv").exists()


def test_make_names_the_python_that_is_too_old(tmp_path: Path) -> None:
    old = tmp_path / "python3.10"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    command = [
        "make",
        "--file",
        ROOT / "Makefile",
        f"PYTHON={old}",
        f"VENV={tmp_path}/venv",
        f"{tmp_path}/venv/bin/python",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode and "Orchard needs Python 3.11 or later: set PYTHON=" in done.stdout


LISTENER = (
    "import socket, time; s = socket.create_server(('127.0.0.1', 8780)); print(flush=True); time.sleep(600)"
)
TAKEN = {
    "page": ["-m", "orchard", "ui", "--port", "8780"],
    "oracle": ["-m", "orchard", "oracle", "--port", "8780"],
    "sandbox service": ["-m", "orchard.injector.orchestrator", "--state", "sandboxes", "--port", "8780"],
}


@pytest.mark.long
@pytest.mark.parametrize("name", TAKEN)
def test_a_port_that_is_taken(name: str, tmp_path: Path) -> None:
    (tmp_path / ".orchard" / "tables").mkdir(parents=True)
    script = f'coproc {{ exec {sys.executable} -c "{LISTENER}"; }}; read -u ${{COPROC[0]}} && exec $0 $*'
    namespaces = ["unshare", "--net", "--pid", "--fork", "--kill-child"]
    process = subprocess.Popen(
        [*namespaces, "bash", "-c", f"ip link set lo up; {script}", sys.executable, *TAKEN[name]],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    remedy = told(process).partition("address already in use")[2]
    assert re.search("pass (another )?--port|choose another port", remedy)


@pytest.mark.slow
def test_beside_another_up(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    theirs = run(tmp_path / "theirs", "ip link set lo up", "up", "--workers", "0", PYTHONUNBUFFERED="1")
    assert "page: http://127.0.0.1:8780/\n" in greeted(theirs)
    mine = run(tmp_path / "mine", "true", "up", "--workers", "1", beside=theirs, PYTHONUNBUFFERED="1")
    assert "/ (8780 is taken)" in greeted(mine)
    drained(mine)
    drained(theirs)


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


@pytest.mark.long
def test_the_first_run_on_the_unsafe_host_is_refused_at_once(tmp_path: Path) -> None:
    out = told(run(tmp_path, "true", "--sandbox", "unsafe-host", "quickstart"))
    assert "leave it out (`orchard doctor` says" in out
