"""What the image `host` has of /etc: what programs need of the distribution, nothing of this machine."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.agent.local.distribution import unchanged
from orchard.injector.client import AsyncSandbox
from orchard.injector.errors import SandboxError

if TYPE_CHECKING:
    from tests.injector.conftest import Service

SECRET = [
    "shadow",
    "shadow-",
    "gshadow",
    "passwd-",
    "group-",
    "subuid",
    "machine-id",
    "hostname",
    "fstab",
    "mtab",
    "pip.conf",
    "npmrc",
    "gitconfig",
    "environment",
    "ssh",
    "ssl/private",
    "sudoers",
    "sudoers.d",
    "apt",
    "cron.d",
    "pam.d",
    "docker",
    "containers/auth.json",
    "krb5.keytab",
    "netrc",
    "wireguard",
    "letsencrypt",
    "kubernetes",
    "NetworkManager/system-connections",
    "postgresql",
]
"""Below /etc: passwords, keys, tokens, addresses, and how the machine is run."""


def test_only_what_nobody_changed_is_shown(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    contents = {"chromium.d/default-flags": b"flags", "app/token.conf": b"shipped", "ssh/ssh_config": b"ssh"}
    lines = []
    for name, content in contents.items():
        (etc / name).parent.mkdir(parents=True, exist_ok=True)
        (etc / name).write_bytes(content)
        lines.append(f" /etc/{name} {hashlib.md5(content).hexdigest()}")
    for name in ("private", "link", "linked/inside"):
        lines.append(f" /etc/{name} {hashlib.md5(b'x').hexdigest()}")
    lines += [
        f" /etc/../outside {hashlib.md5(b'x').hexdigest()}",
        " /etc/missing " + "0" * 32,
        " /etc/bad newconffile",
    ]
    (tmp_path / "outside").write_bytes(b"x")
    (etc / "private").write_bytes(b"x")
    (etc / "private").chmod(0o600)
    (etc / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/inside").write_bytes(b"x")
    (etc / "linked").symlink_to(tmp_path / "elsewhere")
    status = tmp_path / "status"
    status.write_text("Package: x\nConffiles:\n" + "\n".join(lines) + "\n")
    (etc / "app/token.conf").write_bytes(b"shipped, and a token")
    assert [str(path) for path in unchanged(status, tmp_path)] == ["chromium.d/default-flags"]
    assert list(unchanged(tmp_path / "none", tmp_path)) == []


async def test_secrets_of_the_machine_are_not_in_a_sandbox(sandbox: AsyncSandbox) -> None:
    found = await sandbox.exec(["ls", "-d", *(f"/etc/{name}" for name in SECRET)])
    assert found.stdout == ""


async def test_what_packages_ship_is_there(sandbox: AsyncSandbox) -> None:
    shipped = sorted(unchanged())
    if not shipped:
        pytest.fail("this machine has no dpkg: the tests need Debian")
    found = await sandbox.exec(["sha256sum", *(f"/etc/{path}" for path in shipped)])
    sums = {line.split("  ")[1]: line.split("  ")[0] for line in found.stdout.splitlines()}
    assert sums == {
        f"/etc/{path}": hashlib.sha256((Path("/etc") / path).read_bytes()).hexdigest() for path in shipped
    }


async def test_debians_wrapper_of_a_browser_finds_its_settings(sandbox: AsyncSandbox) -> None:
    """The wrapper reads every file of /etc/chromium.d, and fails where there is none."""
    had = Path("/etc/chromium.d").is_dir()
    found = await sandbox.exec("cat /etc/chromium.d/*")
    assert (found.exit_code == 0) == had


def test_the_image_host_is_made_before_the_first_sandbox(
    own_service: "Service", eventually: Callable[[Callable[[], bool], str], None]
) -> None:
    layers = own_service.state / "layers"
    eventually(lambda: any(layers.glob("host-python-*")), "the layers of `host`")


async def test_an_image_keeps_the_python_that_it_was_made_with(own_service: "Service") -> None:
    """Its packages were installed for that one, whichever runs Orchard later."""
    layers = own_service.state / "layers"
    async with own_service.client() as client:
        async with await client.create_sandbox("host") as sandbox:
            await sandbox.snapshot("made:1")
        (stored,) = (own_service.state / "images").glob("*.json")
        image = json.loads(stored.read_text())
        (python,) = (name for name in image["layers"] if name.startswith("host-python-"))

        def made_with(name: str) -> None:
            renamed = [name if layer == python else layer for layer in image["layers"]]
            stored.write_text(json.dumps(image | {"layers": renamed}))

        other = layers / "host-python-2.7.18-other"
        (other / "usr/local/lib").mkdir(parents=True)
        (other / "usr/local/lib/mark").write_text("of its own")
        made_with(other.name)
        async with await client.create_sandbox("made:1") as sandbox:
            assert (await sandbox.exec("cat /usr/local/lib/mark")).stdout == "of its own"
        made_with("host-python-2.7.18-gone")
        with pytest.raises(SandboxError, match=r"was made for Python 2\.7 and this is 3\.\d+") as refused:
            await client.create_sandbox("made:1")
        assert refused.value.reason == "image_missing"
        running = ".".join(map(str, sys.version_info[:2]))
        made_with(f"host-python-{running}.0-gone")
        async with await client.create_sandbox("made:1") as sandbox:
            found = await sandbox.exec("python3 --version")
        assert found.stdout.startswith(f"Python {running}.")


@pytest.mark.slow
async def test_debians_browser_starts_by_its_wrapper(sandbox: AsyncSandbox) -> None:
    assert shutil.which("chromium"), "install Chromium (Debian: `apt-get install chromium`)"
    await sandbox.upload_content("<p>shown</p>", "/workspace/page.html")
    browser = "chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --dump-dom"
    shown = await sandbox.exec(f"{browser} file:///workspace/page.html", timeout_seconds=120)
    assert "<p>shown</p>" in shown.stdout, shown.stderr[-2000:]
