"""The sandbox service over https: whoever trusts its authority is served, and nobody else is."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxRequestInvalid, SandboxUnavailable

if TYPE_CHECKING:
    from tests.injector.conftest import Service

FORGETFUL = """
import os
from orchard import SandboxClient
SandboxClient().create_sandbox("host", sandbox_id="left-behind")
"""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the certificate `tls.crt` of 127.0.0.1, which vouches for itself, and its key."""
    place = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(place / "tls.key"), "-out", str(place / "tls.crt")]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run(["openssl", "req", "-x509", *kind, *names, *files], check=True, capture_output=True)
    return place


@pytest.fixture(scope="module")
def url(service: "Service", start_service: "type[Service]", certificate: Path) -> Iterator[str]:
    """Of a second orchestrator of the same agent."""
    tls = ("--tls-cert", str(certificate / "tls.crt"), "--tls-key", str(certificate / "tls.key"))
    second = start_service(service.state, "--agent", "external", *tls)
    yield f"https://127.0.0.1:{second.port}"
    second.process.terminate()
    second.process.wait()


async def test_who_trusts_its_authority_has_sandboxes_and_terminals(url: str, certificate: Path) -> None:
    async with (
        AsyncSandboxClient(url, tls_ca=str(certificate / "tls.crt")) as client,
        await client.create_sandbox("host") as sandbox,
    ):
        assert (await sandbox.exec("echo hello")).stdout == "hello\n"
        terminal = await sandbox.exec("exit 3", pty=True)
        assert await terminal.wait() == 3


async def test_who_does_not_is_told_so(url: str) -> None:
    for address, reason in ((url, "certificate"), (url.replace("https", "http"), "does not answer")):
        async with AsyncSandboxClient(address, retry_seconds=0.0) as client:
            with pytest.raises(SandboxUnavailable, match=reason):
                await client.list_sandboxes()


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SandboxRequestInvalid, match=str(path)):
        AsyncSandboxClient("https://127.0.0.1:1", tls_ca=str(path))


async def test_what_a_process_leaves_behind_is_deleted_at_its_end(
    url: str, certificate: Path, service: "Service"
) -> None:
    environment = {"SANDBOX_BASE_URL": url, "SANDBOX_TLS_CA": str(certificate / "tls.crt")}
    subprocess.run([sys.executable, "-c", FORGETFUL], check=True, env={**os.environ, **environment})  # noqa: ASYNC221
    async with service.client() as client:
        assert "left-behind" not in {info.sandbox_id for info in await client.list_sandboxes()}


@pytest.mark.long
@pytest.mark.parametrize("given", [["--tls-cert"], ["--tls-key"], ["--tls-cert", "--tls-key"]])
def test_half_a_certificate_or_none_is_refused(tmp_path: Path, given: list[str]) -> None:
    words = [word for flag in given for word in (flag, str(tmp_path / "missing"))]
    command = [sys.executable, "-m", "orchard.injector.orchestrator", "--state", str(tmp_path), "--open"]
    run = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert run.returncode in (1, 2) and "Traceback" not in run.stderr
    assert ("belong together" if len(given) == 1 else "No such file") in run.stderr
