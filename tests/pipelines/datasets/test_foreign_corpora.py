"""Corpora in ATIF and ADP, imported with a grade, are trajectories that datasets take."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.importing import import_trajectories
from orchard.pipelines.datasets.rows import read_rows
from orchard.pipelines.datasets.settings import DatasetSettings
from orchard.pipelines.interchange.reading import read_trajectories
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher

pytestmark = pytest.mark.long

ADP: dict[str, Any] = {
    "id": "adp-1",
    "content": [
        {"class_": "text_observation", "content": "Repair it.", "source": "user"},
        {"class_": "code_action", "language": "bash", "content": "ls", "description": "Look."},
        {"class_": "text_observation", "content": "a.py", "source": "environment"},
        {"class_": "message_action", "content": "Done."},
    ],
}
ATIF: dict[str, Any] = {
    "schema_version": "ATIF-v1.0",
    "session_id": "atif-1",
    "agent": {"name": "codex", "version": "1"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Repair it."},
        {"step_id": 2, "source": "agent", "message": "Done."},
    ],
}


async def test_a_dataset_is_built_of_graded_corpora(
    connection: Connection, keep: Any, tokenizer: str, tmp_path: Path
) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text(f"{json.dumps(ADP)}\n{json.dumps(ATIF)}\n")
    store = await keep()
    blobs = BlobStore(store)
    found = read_trajectories([file], blobs, ungraded=True)
    await import_trajectories(Publisher(connection), blobs, found, campaign="corpus", dataset="d")
    build(await keep(), DatasetSettings(name="d", tokenizer=tokenizer), tmp_path / "out")
    rows = list(read_rows(tmp_path / "out"))
    assert {(row.task_id, row.harness, row.trained_tokens > 0) for row in rows} == {
        ("adp-1", "adp", True),
        ("atif-1", "codex", True),
    }
