"""The payload runs in any image: with another libc, with none, with nothing; and it needs nothing of it.

Real roots made by bubblewrap, as root. Needs a static busybox (Debian: `apt-get install busybox-static`).
"""

import contextlib
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from orchard.injector.payload import elf, launch
from orchard.injector.payload.build import collect
from orchard.injector.payload.elf import PayloadError

DEADLINE = 30.0
PLACE = "/orchard"
"""Where the payload lies in all roots."""
LIBRARY = "libresolv.so.2"
"""A library of every machine with glibc that the payload does not have."""

BECOME_1000 = (
    "import os, sys; os.setgroups([]); os.setgid(1000); os.setuid(1000); os.execv(sys.argv[1], sys.argv[1:])"
)
SERVE = ("--serve", "--sandbox", "s1")
HEALTH = {"status": "healthy", "introduced": False}
OWN_MAPS = "print(open('/proc/self/maps').read())"


def build(archive: Path, **environment: str) -> Path:
    line = [sys.executable, "-m", "orchard.injector.payload", "build", str(archive)]
    subprocess.run(line, check=True, env={**os.environ, **environment})
    return archive


def in_root(payload: Path, *options: str) -> list[str]:
    """The beginning of a command in a root that has the payload, /proc, /dev and what the options add."""
    root = ["--ro-bind", str(payload), PLACE, "--proc", "/proc", "--dev", "/dev", *options]
    return ["bwrap", "--unshare-pid", "--unshare-ipc", "--as-pid-1", "--die-with-parent", "--clearenv", *root]


def python(code: str, *arguments: str) -> list[str]:
    """A command that runs this code by the payload's interpreter."""
    line = launch.command(PLACE)
    return [*line[:-1], "-c", code, *arguments]


class Served:
    """A payload that serves: its process id on this machine and its URL."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.url = f"http://127.0.0.1:{port}"

    def health(self) -> object:
        with urllib.request.urlopen(f"{self.url}/health", timeout=DEADLINE) as reply:
            return json.load(reply)

    def foreign_files(self) -> list[str]:
        """Files mapped into the process that are not the payload's."""
        return foreign(Path(f"/proc/{self.pid}/maps").read_text())


def foreign(maps: str) -> list[str]:
    fields = [line.split(maxsplit=5) for line in maps.splitlines()]
    paths = {field[5] for field in fields if len(field) == 6 and not field[5].startswith("[")}
    assert any(path.endswith("/libc.so.6") for path in paths), "the process has loaded something"
    return sorted(path for path in paths if not path.startswith(f"{PLACE}/"))


@contextlib.contextmanager
def serving(root: Sequence[str], start: Sequence[str] = ()) -> Iterator[Served]:
    """The payload, started in `root` through `start`; it must end by SIGTERM, and well."""
    told, tell = os.pipe()
    set_in_pod = [word for name, value in launch.ENVIRONMENT.items() for word in ("--setenv", name, value)]
    line = [*root, *set_in_pod, "--info-fd", str(tell), *start, *launch.command(PLACE, *SERVE, "--port", "0")]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, pass_fds=[tell])
    os.close(tell)
    assert process.stdout is not None
    try:
        assert select.select([process.stdout], [], [], DEADLINE)[0], "the payload says where it serves"
        port = int(process.stdout.readline())
        with os.fdopen(told) as information:
            served = Served(json.load(information)["child-pid"], port)
        yield served
        os.kill(served.pid, signal.SIGTERM)
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_two_builds_are_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()

    again = build(
        tmp_path / "again.tar", PYTHONHASHSEED="2", TMPDIR=str(tmp_path / "elsewhere"), TZ="Asia/Tokyo"
    )

    assert again.read_bytes() == archive.read_bytes()


@pytest.mark.long
def test_members_are_sorted_and_say_nothing_of_the_builder(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()

    paths = [Path(member.name) for member in members]
    assert paths == sorted(paths)
    assert {(member.uid, member.gid, member.mtime, member.uname) for member in members} == {(0, 0, 0, "")}
    assert {member.mode for member in members} == {0o644, 0o755}


@pytest.mark.long
def test_an_empty_root(payload: Path) -> None:
    with serving(in_root(payload)) as served:
        assert served.health() == HEALTH
        assert served.foreign_files() == []


def test_it_says_what_it_is(payload: Path) -> None:
    line = [*in_root(payload), *launch.command(PLACE, "--version")]
    said = json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE).stdout)

    assert said["python"] == platform.python_version()
    assert said["machine"] == platform.machine()


def test_a_root_of_nothing_but_busybox(payload: Path) -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None, "install a static busybox (Debian: `apt-get install busybox-static`)"
    with pytest.raises(PayloadError, match="statically"):
        elf.interpreter(Path(busybox).read_bytes())
    line = " ".join(launch.command(PLACE, *SERVE, "--port", "8080"))
    ask = "/busybox wget -qO- http://127.0.0.1:8080/health 2>/dev/null"
    script = f"{line} & until {ask}; do /busybox usleep 10000; done"
    root = in_root(payload, "--unshare-net", "--ro-bind", busybox, "/busybox")

    done = subprocess.run(
        [*root, "/busybox", "sh", "-c", script], check=True, stdout=subprocess.PIPE, timeout=DEADLINE
    )

    port, health = done.stdout.splitlines()
    assert (int(port), json.loads(health)) == (8080, HEALTH)


def as_1000(root: list[str]) -> list[str]:
    """The beginning of a command in this root that may do no more than become that user (`BECOME_1000`)."""
    return [*root, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


def test_any_user_without_capabilities_in_a_read_only_root(payload: Path) -> None:
    """As in a Pod under the restricted standard: uid 1000, all capabilities dropped, no new privileges."""
    with serving(as_1000(in_root(payload, "--remount-ro", "/")), python(BECOME_1000)) as served:
        lines = Path(f"/proc/{served.pid}/status").read_text().splitlines()
        status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}

        assert status["Uid"] == ["1000"] * 4
        assert status["NoNewPrivs"] == ["1"]
        assert int(status["CapPrm"][0], 16) == int(status["CapEff"][0], 16) == 0
        assert served.health() == HEALTH
        assert served.foreign_files() == []


@pytest.fixture
def laid_traps(tmp_path: Path) -> list[str]:
    """A root with this machine's glibc, told to load libraries of its own in every way that there is."""
    programs = [word for name in ("lib", "lib64", "bin") for word in ("--symlink", f"usr/{name}", f"/{name}")]
    etc = {"ld.so.preload": LIBRARY, "nsswitch.conf": "passwd: compat\nhosts: compat\n"}
    for name, text in etc.items():
        (tmp_path / name).write_text(text)
    shutil.copy("/etc/ld.so.cache", tmp_path)
    files = [word for file in tmp_path.iterdir() for word in ("--ro-bind", str(file), f"/etc/{file.name}")]
    libraries = str(Path(elf.interpreter(Path(sys.executable).resolve().read_bytes())).resolve().parent)
    told = {"LD_PRELOAD": LIBRARY, "LC_ALL": "C.UTF-8", "LD_LIBRARY_PATH": libraries}
    variables = [word for name, value in told.items() for word in ("--setenv", name, value)]
    return ["--ro-bind", "/usr", "/usr", *programs, *files, *variables]


def test_libraries_of_the_image_are_left_alone(payload: Path, laid_traps: list[str]) -> None:
    root = in_root(payload, *laid_traps)
    victim = subprocess.run(
        [*root, "/bin/cat", "/proc/self/maps"], check=True, capture_output=True, text=True
    )
    assert LIBRARY in victim.stdout, "the image's own programs obey"

    with serving(root) as served:
        assert served.health() == HEALTH
        assert served.foreign_files() == []


def test_name_services_of_the_image_are_left_alone(payload: Path, laid_traps: list[str]) -> None:
    obedient = [*laid_traps, "--unsetenv", "LD_PRELOAD"]
    root = [*in_root(payload, *obedient), *python(f"import pwd; pwd.getpwall(); {OWN_MAPS}")]
    done = subprocess.run(root, check=True, stdout=subprocess.PIPE, text=True)
    assert foreign(done.stdout) == []

    place = root.index("--library-path") + 1
    root[place] = f"{laid_traps[-1]}:{root[place]}"
    obeying = subprocess.run(root, check=True, stdout=subprocess.PIPE, text=True)
    assert any("libnss_compat" in path for path in foreign(obeying.stdout)), "with the image's libc it obeys"


def test_it_installs_itself(payload: Path, tmp_path: Path) -> None:
    """The init container of a Pod has the payload, root's empty directory, and no program to copy with."""
    volume = tmp_path / "volume"
    volume.mkdir()
    line = [
        *in_root(payload, "--bind", str(volume), "/volume"),
        *launch.command(PLACE, "--install", "/volume"),
    ]
    subprocess.run(line, check=True)

    installed = {path.relative_to(volume) for path in volume.rglob("*")}
    assert installed == {path.relative_to(payload) for path in payload.rglob("*")}
    with serving(in_root(volume)) as served:
        assert served.health() == HEALTH


@pytest.fixture(params=["--disable-new-dtags", "--enable-new-dtags"], ids=["RPATH", "RUNPATH"])
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """One that finds a library of its own, `found/libown.so`, by the path written into it."""
    (tmp_path / "found").mkdir()
    (tmp_path / "own.c").write_text("int own(void) { return 7; }")
    (tmp_path / "main.c").write_text("int own(void); int main(void) { return own(); }")
    library, made = tmp_path / "found/libown.so", tmp_path / "program"
    shared = ["-shared", "-fPIC", "-Wl,-soname,libown.so"]
    subprocess.run(["gcc", *shared, "-o", library, tmp_path / "own.c"], check=True)
    search = f"-Wl,{request.param},-rpath,{library.parent}"
    subprocess.run(["gcc", "-g", search, "-o", made, tmp_path / "main.c", library], check=True)
    return made


def test_files_lose_their_symbols_and_search_path(program: Path) -> None:
    whole = program.read_bytes()
    assert subprocess.run([program], check=False).returncode == 7

    program.write_bytes(elf.condensed(whole))

    assert len(elf.condensed(whole)) < len(whole)
    lost = subprocess.run([program], check=False, capture_output=True, text=True)
    assert "libown.so: cannot open shared object file" in lost.stderr
    told = {"LD_LIBRARY_PATH": str(program.parent / "found")}
    assert subprocess.run([program], check=False, env=told).returncode == 7


def test_a_missing_library_is_named(program: Path) -> None:
    assert "libown.so" in collect(program, [])

    (program.parent / "found/libown.so").unlink()

    with pytest.raises(PayloadError, match=r"install what is missing: .*libown"):
        collect(program, [])
