"""Writes `preds.json`: the patches of an evaluation, in the format that harnesses of published benchmarks
grade."""

import json
from pathlib import Path
from urllib.parse import quote

import duckdb

from orchard.schemas.blobs import BlobRef
from orchard.storage.blobs import BlobStore

_ROWS = """
select q.task_id, coalesce(r.submission, ''), r.submission_sha256
from requests q join rollouts r on r.rollout_id = q.rollout_id
where q.campaign = ? and q.harness = ? and q.model = ? and q.sample = ? and r.status <> 'aborted'
order by q.task_id
"""


def write_predictions(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, campaign: str, out: Path
) -> list[Path]:
    """A file for each harness, model and sample of the campaign, `preds/MODEL--HARNESS.N.json`; the files.

    Rollouts that aborted are left out: the harness would count an empty patch as a failure of the model.
    """
    folder = out / "preds"
    folder.mkdir(parents=True, exist_ok=True)
    arms = tables.execute(
        "select distinct harness, model, sample from requests where campaign = ? order by all", [campaign]
    ).fetchall()
    files = []
    for harness, model, sample in arms:
        name = f"{model}--{harness}"
        predictions = {
            task: {
                "instance_id": task,
                "model_name_or_path": name,
                "model_patch": _whole(blobs, patch, sha256),
            }
            for task, patch, sha256 in tables.execute(_ROWS, [campaign, harness, model, sample]).fetchall()
        }
        file = folder / f"{quote(name, safe=' ')}.{sample}.json"
        file.write_text(json.dumps(predictions, indent=1), encoding="utf-8")
        files.append(file)
    return files


def _whole(blobs: BlobStore, patch: str, sha256: str | None) -> str:
    return blobs.get(BlobRef(sha256=sha256, size=0)).decode() if sha256 else patch
