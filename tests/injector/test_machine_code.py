"""The machine code in the sources is what their assembly says, on both kinds of machine."""

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from orchard.injector.agent import syscall_program
from orchard.injector.agent.local import first_process


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("module", [syscall_program, first_process])
def test_the_code_is_the_assembled_source(module: ModuleType, machine: str, tmp_path: Path) -> None:
    assert module.__file__ is not None
    source, made, code = (
        Path(module.__file__).with_suffix(f".{machine}.s"),
        tmp_path / "made",
        tmp_path / "code",
    )
    subprocess.run([f"{machine}-linux-gnu-as", "-o", made, source], check=True)
    subprocess.run([f"{machine}-linux-gnu-objcopy", "-O", "binary", made, code], check=True)
    assert module._CODE[machine] == code.read_bytes()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_source_and_module_agree_on_where_the_list_is(machine: str) -> None:
    source = Path(syscall_program.__file__).with_suffix(f".{machine}.s").read_text()
    constants = {
        name.rstrip(","): int(value, 0)
        for directive, name, value in (line.split() for line in source.splitlines() if ".equ" in line)
        if directive == ".equ"
    }
    assert constants == {
        "PLACE": syscall_program._ADDRESS,
        "SIZE": syscall_program._SIZE,
        "DESCRIPTOR": syscall_program.DESCRIPTOR,
    }
