"""Images over the service: who may bring, see and delete which."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.blocking import SandboxClient
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import (
    SandboxConflict,
    SandboxNotFound,
    SandboxRequestInvalid,
    SandboxUnsupported,
)
from tests.injector.conftest import ADMIN
from tests.injector.registry import Registry

if TYPE_CHECKING:
    from tests.injector.conftest import Archives, Service

pytestmark = pytest.mark.needs_root("layers have owners")
PASSWORD = "a-password-to-look-for"


async def names(client: AsyncSandboxClient) -> set[str]:
    return {image.name for image in await client.list_images()}


@pytest.mark.long
async def test_an_image_is_imported_used_and_deleted_by_its_owner(
    shared: "Service",
    one: AsyncSandboxClient,
    two: AsyncSandboxClient,
    admin: AsyncSandboxClient,
    archives: "Archives",
    tiny_shell: bytes,
) -> None:
    path = archives.docker("own:1", archives.layer(("bin", None, 0o755), ("bin/sh", tiny_shell, 0o755)))
    made = await one.import_image(path, "own:1")
    assert (made.name, made.layers, made.size, made.shared) == ("own:1", 1, len(tiny_shell), False)
    assert "own:1" in await names(one) & await names(admin) and "own:1" not in await names(two)
    with pytest.raises(SandboxNotFound):
        await two.delete_image("own:1")
    with pytest.raises(SandboxConflict, match="belongs to another key"):
        await two.import_image(path, "own:1")
    await (await one.create_sandbox("host")).delete()  # while `host` is made, no layer is thrown away
    sandbox = await one.create_sandbox("own:1")
    with pytest.raises(SandboxConflict, match="in use") as refused:
        await one.delete_image("own:1")
    assert refused.value.reason == "in_use"
    assert (await sandbox.exec("still")).stdout == "sh|-c|still|"
    await sandbox.delete()
    await one.delete_image("own:1")
    with pytest.raises(SandboxNotFound):
        await one.delete_image("own:1")
    layers = [entry.name for entry in (shared.state / "layers").iterdir() if entry.name.startswith("sha256-")]
    assert layers == []


@pytest.mark.long
async def test_an_image_for_all_is_an_admins_to_delete(
    shared: "Service",
    one: AsyncSandboxClient,
    admin: AsyncSandboxClient,
    archives: "Archives",
) -> None:
    with Registry().serving() as registry:
        registry.account = ("me", PASSWORD)
        manifest = registry.push(
            "1", archives.layer(("x", b"", 0o644)), config={"User": "7", "WorkingDir": "/x"}
        )
        reference = f"{registry.address}/x:1"
        login = {"username": "me", "password": PASSWORD}
        pulled = await admin.pull_image(reference, "all:1", **login)
        with pytest.raises(SandboxRequestInvalid, match="public registries only"):
            await one.pull_image(reference, **login)
        assert (pulled.digest, pulled.user) == (registry.put("1", manifest), "7")
    assert pulled.working_directory == "/x" and pulled.shared
    assert "all:1" in await names(one)
    with pytest.raises(SandboxRequestInvalid, match="only an admin's key"):
        await one.delete_image("all:1")
    with pytest.raises(SandboxRequestInvalid, match="machine itself"):
        await admin.delete_image("host")
    await admin.delete_image("all:1")
    for file in shared.state.rglob("*"):
        assert not file.is_file() or PASSWORD.encode() not in file.read_bytes()


async def test_layers_that_another_image_has_stay(admin: AsyncSandboxClient, archives: "Archives") -> None:
    path = archives.docker("first:1", archives.layer(("x", b"x", 0o644)))
    await admin.import_image(path, "first:1")
    await admin.import_image(path, "second:1")
    await admin.delete_image("first:1")
    async with await admin.create_sandbox("second:1") as sandbox:
        assert await sandbox.download_content("/x") == b"x"
    await admin.delete_image("second:1")


def test_blocking_code_has_the_same(shared: "Service", archives: "Archives") -> None:
    path: Path = archives.docker("sync:1", archives.layer(("x", b"x", 0o644)))
    with SandboxClient(shared.url, api_key=ADMIN) as client:
        client.import_image(path, "sync:1")
        assert "sync:1" in [image.name for image in client.list_images()]
        client.delete_image("sync:1")
        with pytest.raises(SandboxNotFound):
            client.delete_image("sync:1")


async def test_without_isolation_there_are_no_images(tmp_path: Path, start_service: "type[Service]") -> None:
    running = start_service(tmp_path / "state", "--backend", "unsafe-host")
    try:
        async with running.client() as client:
            with pytest.raises(SandboxUnsupported, match="keeps no images"):
                await client.list_images()
    finally:
        running.stop()
