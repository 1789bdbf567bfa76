"""pip fetches sdists and wheels from an index, here one in a directory, and runs nothing of theirs."""

import hashlib
import io
import os
import ssl
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.tasks.errors import IndexFailed, IndexUnreachable
from orchard.pipelines.tasks.trees import read_sdist


def _sdist(version: str) -> bytes:
    """A source distribution that cannot be built, and says so to whoever runs it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in {
            "PKG-INFO": f"Version: {version}\n",
            "setup.py": "raise SystemExit('built')\n",
        }.items():
            info = tarfile.TarInfo(f"averages-{version}/{path}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _wheel() -> bytes:
    info = "runner-1.0.dist-info"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("runner.py", "RUNS = True\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: runner\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(
            f"{info}/RECORD", f"runner.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    return buffer.getvalue()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageCache:
    """A cache whose pip knows one index: averages 1.0, 1.1, a damaged 1.2 and a pre-release; runner 1.0."""
    files = {f"averages-{version}.tar.gz": _sdist(version) for version in ("1.0", "1.1", "1.2", "2.0rc1")}
    files["runner-1.0-py3-none-any.whl"] = _wheel()
    for name, content in files.items():
        project = tmp_path / "index" / name.split("-")[0]
        project.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(content)
        hashed = hashlib.sha256(b"other" if "1.2" in name else content).hexdigest()
        with (project / "index.html").open("a") as page:
            page.write(f'<a href="{name}#sha256={hashed}">{name}</a>\n')
    for variable in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    return PackageCache(tmp_path / "cache")


async def test_sdists_are_fetched_once_and_never_built(
    cache: PackageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await cache.fetch([("averages", "1.0"), ("averages", "1.1")]) == {}
    path = cache.sdist("averages", "1.0")
    assert path is not None
    assert read_sdist(path.read_bytes(), path.name)["PKG-INFO"] == b"Version: 1.0\n"
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nowhere")
    assert await cache.fetch([("averages", "1.0")]) == {}


async def test_what_cannot_be_had_is_told_for_each_release(cache: PackageCache) -> None:
    failed = await cache.fetch([("averages", "9.9"), ("averages", "1.2"), ("averages", "1.1")])
    assert failed.keys() == {("averages", "9.9"), ("averages", "1.2")}
    assert "no source distribution of this version" in failed["averages", "9.9"]
    assert "does not match the sha256" in failed["averages", "1.2"]
    assert cache.sdist("averages", "1.2") is None


async def test_versions_come_oldest_first_without_pre_releases(cache: PackageCache) -> None:
    assert await cache.versions("averages") == ["1.0", "1.1", "1.2"]


async def test_an_unknown_package_is_one_sentence(cache: PackageCache) -> None:
    with pytest.raises(IndexFailed, match="cannot be asked about absent: it has no source distribution"):
        await cache.versions("absent")


async def test_an_environment_is_installed_from_wheels_once(
    cache: PackageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = await cache.environment(["runner==1.0"])
    assert (directory / "runner.py").read_text() == "RUNS = True\n"
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nowhere")
    assert await cache.environment(["runner==1.0"]) == directory


async def test_a_requirement_without_a_wheel_is_one_sentence(cache: PackageCache) -> None:
    with pytest.raises(IndexFailed, match=r"pip could not install averages==1\.0: ERROR: No matching"):
        await cache.environment(["averages==1.0"])
    assert not cache.environment_path(["averages==1.0"]).exists()


async def test_an_interpreter_without_pip_is_one_sentence(tmp_path: Path) -> None:
    cache = PackageCache(tmp_path / "cache", python="/bin/false")
    with pytest.raises(IndexFailed, match="python -m ensurepip"):
        await cache.fetch([("averages", "1.0")])


async def test_a_user_scheme_in_the_environment_changes_nothing(
    cache: PackageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_USER", "1")
    assert (await cache.environment(["runner"])).is_dir()


class SignIn(BaseHTTPRequestHandler):
    """A proxy that takes no password."""

    def do_CONNECT(self) -> None:
        self.send_error(407, "Proxy Authentication Required")


@pytest.fixture
def proxy() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SignIn) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://user:secret@127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def untrusted(tmp_path: Path) -> Iterator[str]:
    """An index with a certificate that nobody signed."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    line = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=nobody -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*line.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


async def unreachable(
    cache: PackageCache, monkeypatch: pytest.MonkeyPatch, index: str, proxied: str = ""
) -> str:
    """What is told of an index, for releases and for requirements alike."""
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_CERT", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    settings = {"CONFIG_FILE": os.devnull, "INDEX_URL": index, "RETRIES": "1", "PROXY": proxied}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(IndexUnreachable) as told:
        await cache.fetch([("one", "1.0"), ("two", "1.0")])
    with pytest.raises(IndexUnreachable, match=r"the package index cannot be reached"):
        await cache.environment(["one"])
    return str(told.value)


@pytest.mark.long
async def test_the_first_failure_of_the_network_ends_in_pips_words(
    cache: PackageCache, monkeypatch: pytest.MonkeyPatch, proxy: str, untrusted: str
) -> None:
    told = await unreachable(cache, monkeypatch, "http://127.0.0.1:9/simple")
    assert "refused" in told and told.endswith(
        "check this machine's network, and the index in PIP_INDEX_URL (or `pip config list`)"
    )
    assert "PIP_CERT=/PATH/CA.pem" in await unreachable(cache, monkeypatch, untrusted)
    told = await unreachable(cache, monkeypatch, "https://index.invalid/simple", proxy)
    assert "407" in told and "correct user and password" in told and "secret" not in told
