"""The pure parts: bounded output, quantities, control group layouts, the system call filter, error paths."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.injector.agent import kernel, seccomp
from orchard.injector.agent.interfaces import quantity
from orchard.injector.agent.local.cgroups import Cgroups, layout, oom_kills
from orchard.injector.agent.local.first_process import image
from orchard.injector.agent.local.host_image import relocated
from orchard.injector.agent.output import BoundedOutput
from orchard.injector.orchestrator.requests import steps


@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(2, 500))
def test_bounded_output_keeps_both_ends_and_counts_all(pieces: list[bytes], limit: int) -> None:
    output = BoundedOutput(limit)
    for piece in pieces:
        output.add(piece)
    whole = b"".join(pieces)
    assert output.total == len(whole)
    if len(whole) <= limit:
        assert output.text() == whole.decode(errors="replace")
    else:
        marker = f"\n[... {len(whole) - limit} bytes left out of {len(whole)} ...]\n"
        head, tail = whole[: limit - limit // 2], whole[len(whole) - limit // 2 :]
        assert output.text() == head.decode(errors="replace") + marker + tail.decode(errors="replace")


def test_a_million_small_writes_cost_what_they_say() -> None:
    output = BoundedOutput(1000)
    for _ in range(100_000):
        output.add(b"x")
    assert len(output._tail) <= 2


@pytest.mark.parametrize(
    ("text", "number"),
    [("4", 4), ("500m", 0.5), ("0.5", 0.5), ("16Gi", 16 * 2**30), ("1G", 1e9), ("1e3", 1000), ("2Ki", 2048)],
)
def test_quantities_are_those_of_kubernetes(text: str, number: float) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", "lots", "16GB", "-1", "1 Gi", "Gi", "1e", "nan", "inf", "\u0663", "1\n"]
)
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        quantity(text)


@pytest.mark.parametrize("text", ["1e400", "9" * 400, "9Ei", "1e19"])
def test_what_no_machine_has_is_no_failure_of_the_agent(text: str) -> None:
    with pytest.raises(ValueError, match="more than any machine has"):
        quantity(text)


V1 = """\
30 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
31 23 0:27 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory
32 23 0:28 /docker/abc /sys/fs/cgroup/pids rw shared:11 - cgroup cgroup rw,pids
33 23 0:29 / /sys/fs/cgroup/freezer rw shared:12 - cgroup cgroup rw,freezer
"""
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_version_1_groups_are_made_below_our_own() -> None:
    found = layout(V1, "11:memory:/user/me\n10:cpu,cpuacct:/\n9:pids:/docker/abc\n")
    assert found.version == "v1"
    assert found.parents == {
        "cpu": Path("/sys/fs/cgroup/cpu,cpuacct"),
        "memory": Path("/sys/fs/cgroup/memory/user/me"),
        "pids": Path("/sys/fs/cgroup/pids"),
        "freezer": Path("/sys/fs/cgroup/freezer"),
    }
    assert not found.unified("memory")


def test_version_2_groups_are_made_at_the_root_of_the_visible_tree() -> None:
    found = layout(V2, "0::/user.slice/session-1.scope\n")
    assert found.version == "v2"
    assert set(found.parents.values()) == {Path("/sys/fs/cgroup")}
    assert all(found.unified(name) for name in ("memory", "pids", "cpu", "freezer"))
    freezer = "31 23 0:27 / /sys/fs/cgroup/freezer rw shared:10 - cgroup cgroup rw,freezer\n"
    assert layout(V2 + freezer, "9:freezer:/\n0::/\n") == found


def test_a_hybrid_machine_has_its_controllers_in_version_1() -> None:
    found = layout(V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), "11:memory:/\n0::/\n")
    assert found.version == "hybrid"
    assert not found.unified("memory")


def test_no_control_groups_at_all() -> None:
    assert layout("", "").version == "none"


def test_oom_kills_are_read_in_both_versions() -> None:
    assert oom_kills("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n") == 2
    assert oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n") == 5
    assert oom_kills("oom_kill_disable 0\n") == 0


@pytest.mark.needs_root("limits of memory and processes")
def test_what_is_not_enforced_is_said(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path)
    assert cgroups.note == ""
    cgroups.enforced |= {"memory": False, "cpu": False}
    assert cgroups.note == "not limited on this machine: memory, processor time"
    cgroups.close()


ALLOW, REFUSE, UNKNOWN, NO_FAMILY = 0x7FFF0000, 0x00050001, 0x00050026, 0x00050061
DONE_NOTHING = 0x00050000


def run(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What a filter returns for a system call."""
    data = struct.pack("<IIQQQQ", number, architecture, 0, *[*arguments, 0, 0, 0][:3])
    instructions = [struct.unpack_from("<HBBI", program, offset) for offset in range(0, len(program), 8)]
    position = accumulator = 0
    while True:
        code, if_true, if_false, constant = instructions[position]
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif code == 0x06:
            return int(constant)
        else:
            holds = {
                0x15: accumulator == constant,
                0x35: accumulator >= constant,
                0x45: accumulator & constant,
            }[code]
            position += if_true if holds else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_it_lists_and_allows_the_rest(machine: str) -> None:
    program, native = seccomp.program(machine), seccomp.AUDIT_ARCHITECTURE[machine]
    refused = set(seccomp.REFUSED[machine].values())
    clone, unshare = (56, 272) if machine == "x86_64" else (220, 97)
    sockets = (41, 53) if machine == "x86_64" else (198, 199)
    unknown = {435, 206 if machine == "x86_64" else 0}  # clone3, io_setup
    for number in range(470):
        expected = REFUSE if number in refused else UNKNOWN if number in unknown else ALLOW
        expected = NO_FAMILY if number in sockets else expected
        assert run(program, native, number) == expected, number
    for number in sockets:
        allowed = {family for family in range(60) if run(program, native, number, family) == ALLOW}
        assert allowed == {1, 2, 10, 16}  # Unix, IPv4, IPv6, netlink
    for number in (clone, unshare):
        assert run(program, native, number, kernel.CLONE_NEWUSER | 17) == REFUSE
        assert run(program, native, number, kernel.CLONE_NEWPID | 17) == ALLOW
    assert run(program, 0x40000003, 1) == UNKNOWN
    if machine == "x86_64":
        assert run(program, native, 0x40000000 | 165) == UNKNOWN


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_lets_nobody_change_the_limit_of_core_files(machine: str) -> None:
    program, native = seccomp.program(machine), seccomp.AUDIT_ARCHITECTURE[machine]
    setrlimit, prlimit = (160, 302) if machine == "x86_64" else (164, 261)
    core, files, address = 4, 7, 0x7FFF_0000_0000
    assert run(program, native, setrlimit, core, address) == DONE_NOTHING
    assert run(program, native, setrlimit, files, address) == ALLOW
    for new in (address, 1, 1 << 32):
        assert run(program, native, prlimit, 0, core, new) == DONE_NOTHING
        assert run(program, native, prlimit, 0, files, new) == ALLOW
    assert run(program, native, prlimit, 0, core, 0) == ALLOW


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_the_first_process_is_a_static_executable(machine: str, number: int) -> None:
    program = image(machine)
    entry, table = struct.unpack_from("<QQ", program, 24)
    assert program[:5] == b"\x7fELF\x02"
    assert struct.unpack_from("<HH", program, 16) == (2, number)
    assert (entry, table) == (0x400000 + 120, 64)
    assert program[-32:] == struct.pack("<QQQQ", 1, 0, 0, 0)
    assert (len(program) - 32 - 120) % 8 == 0


def test_a_program_is_relocated_without_changing_its_length() -> None:
    program = b"\x7fELF..\0/root/.pyenv/versions/3.11.7/lib\0..rest"
    moved = relocated(program, Path("/root/.pyenv/versions/3.11.7"))
    assert len(moved) == len(program)
    assert b"\0$ORIGIN/../lib\0" in moved and b"pyenv" not in moved and moved.endswith(b"\0..rest")
    assert relocated(program, Path("/other")) == program


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("$.image", ["image"]),
        ("$.command[2]", ["command", 2]),
        ("$.labels[...]", ["labels", "..."]),
        ("", []),
        ("$", []),
    ],
)
def test_places_of_errors(path: str, parts: list[str | int]) -> None:
    assert steps(path) == parts
