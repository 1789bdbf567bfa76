"""Builds the distribution `orchard-env`: the sandbox client and the modules that it imports, nothing else.

A build backend (PEP 517) on the standard library alone. Version, licence and the versions of what is needed
are those of the pipeline.
"""

import ast
import base64
import hashlib
import re
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENTRANCE = "orchard_env"
NEEDS = ("aiohttp", "msgspec")
PIPELINE = "orchard.actions.reading"
"""The one module with a name of `orchard` that needs the pipeline."""
WHEEL = b"Wheel-Version: 1.0\nGenerator: orchard\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,  # noqa: ARG001
    metadata_directory: str | None = None,  # noqa: ARG001
) -> str:
    """Write the wheel into a directory; returns its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = f"orchard_env-{project['version']}.dist-info"
    files = {str(file.relative_to(_base(file))): file.read_bytes() for file in modules()}
    files |= {f"{package}/py.typed": b"" for package in ("orchard", "orchard_env")}
    files |= {
        f"{about}/METADATA": _metadata(project).encode(),
        f"{about}/WHEEL": WHEEL,
        f"{about}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    name = f"orchard_env-{project['version']}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(zipfile.ZipInfo(path, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return name


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """There is none: the sources are the pipeline's."""
    raise NotImplementedError(
        "orchard-env is built from a clone, as a wheel: pip wheel ./injector/sdk --no-deps"
    )


def modules() -> list[Path]:
    """The files of all modules that `orchard_env` imports, in whatever function, with their packages."""
    found: dict[Path, None] = {}
    waiting = [ENTRANCE]
    while waiting:
        name = waiting.pop()
        file = _file(name)
        if file is not None and file not in found:
            found[file] = None
            waiting += [name.rpartition(".")[0], *_imports(file)]
    return sorted(found)


def _file(module: str) -> Path | None:
    """None for what is not ours, and for names that are no modules."""
    if module.partition(".")[0] not in ("orchard", "orchard_env") or module == PIPELINE:
        return None
    path = (HERE if module.startswith(ENTRANCE) else ROOT).joinpath(*module.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def _base(file: Path) -> Path:
    """The folder that a module's path in the wheel begins in."""
    return HERE if file.is_relative_to(HERE) else ROOT


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _metadata(project: dict[str, Any]) -> str:
    needed = [text for text in project["dependencies"] if re.match(r"[\w.-]+", text)[0] in NEEDS]  # type: ignore[index]
    lines = [
        "Metadata-Version: 2.4",
        "Name: orchard-env",
        f"Version: {project['version']}",
        "Summary: The client of Orchard's sandbox service, without the pipeline.",
        f"Requires-Python: {project['requires-python']}",
        f"License-Expression: {project['license']}",
        "License-File: LICENSE",
        *(f"Requires-Dist: {text}" for text in needed),
        "Description-Content-Type: text/markdown",
        "",
        (HERE / "README.md").read_text(),
    ]
    return "\n".join(lines)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
