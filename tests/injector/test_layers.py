"""Images laid over that of a sandbox: their files on top, nothing else of them, and never changed."""

from typing import TYPE_CHECKING

import pytest

from orchard.injector.agent.layer_files import COMMANDS, PLACE
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxConflict, SandboxFailed

if TYPE_CHECKING:
    from tests.injector.conftest import Archives


async def test_files_of_layers_are_over_the_images_and_stay_as_they_are(
    client: AsyncSandboxClient, archives: "Archives"
) -> None:
    for number in (1, 2):
        both = ("opt/layered/both", f"of {number}\n".encode(), 0o644)
        layer = archives.layer(both, (f"opt/layered/own-{number}", b"own\n", 0o644))
        await client.import_image(archives.docker("layers/test", layer), f"layers/test:{number}")
    layers = ["layers/test:1", "layers/test:2"]
    async with await client.create_sandbox("host", layers=layers) as sandbox:
        seen = await sandbox.exec(
            "cd /opt/layered; ls; cat both; ls /usr/bin/env; echo changed > both; cat both"
        )
        assert seen.stdout == "both\nown-1\nown-2\nof 2\n/usr/bin/env\nchanged\n"
        (fork,) = await sandbox.fork()
        assert (await fork.exec("cat /opt/layered/both /opt/layered/own-1")).stdout == "changed\nown\n"
        await fork.delete()
        with pytest.raises(SandboxConflict, match="in use"):
            await client.delete_image("layers/test:1")
    async with await client.create_sandbox("host", layers=layers[:1]) as sandbox:
        assert (await sandbox.exec("cat /opt/layered/*")).stdout == "of 1\nown\n"
    async with await client.create_sandbox("host") as sandbox:
        assert (await sandbox.exec("ls /opt/layered")).exit_code != 0


async def test_programs_are_on_the_path_together_and_each_has_its_own_files(
    client: AsyncSandboxClient, archives: "Archives"
) -> None:
    for name, version, says in (("one", "1", "old"), ("one", "2", "of one"), ("two", "1", "of two")):
        place = f"{PLACE.lstrip('/')}/{name}"
        script = f"#!/bin/sh\n. {PLACE}/{name}/says\n".encode()
        layer = archives.layer(
            (f"{place}/bin/{name}", script, 0o755),
            (f"{place}/bin/python3", b"no\n", 0o755),
            (f"{place}/says", f"echo {says}\n".encode(), 0o644),
            (f"{place}/{COMMANDS}/{name}", script, 0o755),
        )
        image = f"orchard-program/{name}:{version}-{'0' * 64}"
        await client.import_image(archives.docker(image, layer), image)
    both = ["one", "two"]
    async with await client.create_sandbox("host", programs=both) as sandbox:
        for login in (False, True):
            done = await sandbox.exec("one; two; command -v python3", login_shell=login)
            assert done.stdout.splitlines()[:2] == ["of one", "of two"], done
            assert PLACE not in done.stdout
        (fork,) = await sandbox.fork()
        assert (await fork.exec("two")).stdout == "of two\n"
        await sandbox.snapshot("layers/with-programs:1")
    async with await client.create_sandbox("layers/with-programs:1") as sandbox:
        assert (await sandbox.exec("one")).stdout == "of one\n"
    async with await client.create_sandbox("host") as sandbox:
        assert (await sandbox.exec("one")).exit_code == 127


async def test_a_program_that_cannot_be_had_is_named(
    client: AsyncSandboxClient, archives: "Archives"
) -> None:
    with pytest.raises(SandboxFailed, match="`orchard harness install codex`") as failed:
        await client.create_sandbox("host", programs=["codex"])
    assert failed.value.reason == "image_missing"
    image = f"orchard-program/library:1-{'0' * 64}"
    layer = archives.layer((f"{PLACE.lstrip('/')}/library/bin/python3", b"", 0o755))
    await client.import_image(archives.docker(image, layer), image)
    with pytest.raises(SandboxFailed, match="library has no command for users"):
        await client.create_sandbox("host", programs=["library"])


async def test_a_layer_that_is_not_there_is_named(client: AsyncSandboxClient) -> None:
    with pytest.raises(SandboxFailed, match="there is no image `layers/none:1`") as failed:
        await client.create_sandbox("host", layers=["layers/none:1"])
    assert failed.value.reason == "image_missing"
