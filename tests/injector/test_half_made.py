"""What an agent leaves that is killed while it makes or removes a sandbox."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.injector.conftest import Service


async def test_directories_without_a_record_are_nobodys(
    tmp_path: Path, start_service: "type[Service]"
) -> None:
    sandboxes = tmp_path / "state" / "sandboxes"
    for name, inside in (("empty", None), ("unrecorded", "upper/file"), ("written", "record.json.new")):
        directory = sandboxes / name
        directory.mkdir(parents=True)
        if inside is not None:
            (directory / inside).parent.mkdir(exist_ok=True)
            (directory / inside).write_text('{"spec": {"sandbox_')
    service = start_service(tmp_path / "state")
    try:
        assert list(sandboxes.iterdir()) == []
        async with service.client() as client:
            assert await client.list_sandboxes() == []
            sandbox = await client.create_sandbox("host", sandbox_id="unrecorded")
            assert (await sandbox.exec("true")).succeeded
    finally:
        service.stop()
