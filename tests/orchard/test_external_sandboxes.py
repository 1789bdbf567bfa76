"""`orchard up` with a sandbox service that somebody else runs."""

from pathlib import Path

import pytest

from orchard.configuration.run_files import UpRecord, running
from tests.chaos.world import QUICK, pipeline, until

pytestmark = pytest.mark.long

URL, KEY = "http://127.0.0.1:9", "key-of-the-other-service"


async def test_workers_speak_to_it_with_its_own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**QUICK, "ORCHARD_SANDBOX__URL": URL, "SANDBOX_API_KEY": KEY}.items():
        monkeypatch.setenv(name, value)
    async with pipeline(tmp_path / "store", workers=1, slots=1):

        def children() -> dict[str, int]:
            found = running(tmp_path / "store")
            return found.children if isinstance(found, UpRecord) else {}

        await until(lambda: "worker-1" in children(), "the worker to start")
        record = running(tmp_path / "store")
        assert isinstance(record, UpRecord)
        worker = Path(f"/proc/{record.children['worker-1']}/environ").read_bytes().split(b"\0")
        assert {f"SANDBOX_API_KEY={KEY}".encode(), f"ORCHARD_SANDBOX__URL={URL}".encode()} <= set(worker)
        assert record.sandbox_url == URL
        assert not {"agent", "orchestrator"} & record.children.keys()
