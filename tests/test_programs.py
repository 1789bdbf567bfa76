"""Benchmarks, chaos and soaks, which `make test` does not run, still fit the code that they measure."""

import importlib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MODULES = sorted(
    ".".join(file.relative_to(HERE.parent).with_suffix("").parts)
    for room in ("benchmarks", "chaos", "soak")
    for file in (HERE / room).rglob("*.py")
    if not file.name.startswith("test_") and file.name not in ("conftest.py", "__init__.py")
)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_that_it_imports_is_there(module):
    importlib.import_module(module)
