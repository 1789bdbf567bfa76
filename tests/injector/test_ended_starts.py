"""Sandboxes that are deleted while they start, and whose start runs out of time meanwhile."""

from pathlib import Path

import httpx
import pytest

from tests.injector.conftest import Service

TRIES = 120


@pytest.mark.long
def test_a_start_that_runs_out_of_time_is_deleted_at_any_moment(tmp_path: Path) -> None:
    service = Service(tmp_path / "state")
    try:
        with httpx.Client(base_url=service.url, timeout=60.0) as http:
            for number in range(TRIES):
                asked = {"image": "host", "timeout": 0.0002 * (1 + number % 60)}
                made = http.post("/sandboxes", json=asked).json()["sandbox_id"]
                assert http.delete(f"/sandboxes/{made}").status_code == 200, f"try {number}"
            assert http.get("/sandboxes").json() == []
        assert list((tmp_path / "state" / "sandboxes").iterdir()) == []
        assert '"level": "ERROR"' not in (tmp_path / "state" / "agent.log").read_text()
    finally:
        service.stop()
