"""What a user can get wrong: each one clear sentence, exit code 1, nothing half-done."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StoreFull
from tests.orchard.conftest import Command

ELSEWHERE = ("--nats", "nats://127.0.0.1:9")
"""A pipeline that is not asked before the command line is checked."""


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The error as the user saw it: one line, no trace."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    return errors[0]


def test_where_no_row_is_a_task_it_is_an_error_that_names_them(command_line: Command, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"repo": "a/b", "instance_id": "x"}) + "\nnot json\n")
    done = command_line("tasks", "import", str(rows), "--skip-malformed", store=tmp_path / "store")
    text = sentence(done)
    assert "rows.jsonl has no item to import" in text and "line 2: is not JSON" in done.stderr
    assert not (tmp_path / "store" / "blobs").exists()


def test_a_file_that_is_not_there(command_line: Command, tmp_path: Path) -> None:
    assert "does not exist" in sentence(command_line("tasks", "import", "none.parquet", store=tmp_path))


def test_an_unknown_harness_is_told_at_submission(command_line: Command, tmp_path: Path) -> None:
    words = ("submit", "c", "--model", "m", "--harness", "nonesuch")
    text = sentence(command_line(*ELSEWHERE, *words, store=tmp_path))
    assert "nonesuch" in text
    assert "mini-swe-agent" in text


def test_an_unreachable_server(command_line: Command, tmp_path: Path) -> None:
    text = sentence(
        command_line(
            "--nats", "nats://127.0.0.1:9", "status", store=tmp_path, ORCHARD_NATS__CONNECT_TIMEOUT="1"
        )
    )
    assert "127.0.0.1:9" in text


def test_nothing_runs_here(command_line: Command, tmp_path: Path) -> None:
    """Nothing else that is missing is told before."""
    words = ("submit", "c", "--model", "m", "--harness", "nonesuch")
    assert "start `orchard up`" in sentence(command_line(*words, store=tmp_path))
    assert "start `orchard up`" in sentence(command_line("pause", "c", store=tmp_path))
    status = command_line("status", store=tmp_path)
    assert (status.returncode, status.stdout) == (
        0,
        "no campaign yet: nothing runs here, start `orchard up`\n",
    )


def test_an_unknown_key_in_the_configuration(command_line: Command, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[worker]\nslotz = 3\n")
    assert "slotz" in sentence(command_line("--config", str(file), "status", store=tmp_path))


def test_a_query_that_does_not_run(command_line: Command, tmp_path: Path) -> None:
    assert "nothing_like_it" in sentence(command_line("sql", "select * from nothing_like_it", store=tmp_path))


def test_a_rollout_that_is_not_there(command_line: Command, tmp_path: Path) -> None:
    assert "no rollout starts with" in sentence(command_line("show", "abc", store=tmp_path))


def test_what_looks_like_markup_is_shown_as_it_is(command_line: Command, tmp_path: Path) -> None:
    assert "no rollout starts with '[/x]'" in sentence(command_line("show", "[/x]", store=tmp_path))


def test_no_task_matches(command_line: Command, tmp_path: Path) -> None:
    text = sentence(command_line(*ELSEWHERE, "submit", "c", "--model", "m", store=tmp_path))
    assert "the store has no task yet: `orchard tasks synthesize" in text


def test_a_dataset_without_its_file_asks_for_no_package(
    command_line: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "orchard.pipelines.datasets.build", None)
    done = command_line("dataset", "build", "gone.toml", "--out", str(tmp_path / "out"), store=tmp_path)
    assert "gone.toml does not exist" in sentence(done)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *((words, 0) for words in ("status", "cost", "logs", "config")),
        *((words, 1) for words in ("cost nonesuch", "watch nonesuch", "note abcd x", "try nonesuch")),
        *((words, 2) for words in ("cost --by nobody", "sql --format xml x", "status --jsn", "nonesuch")),
    ],
)
def test_exit_codes_are_those_of_the_reference(
    command_line: Command, tmp_path: Path, words: str, code: int
) -> None:
    assert command_line(*words.split(), store=tmp_path).returncode == code


def test_a_model_without_an_endpoint(command_line: Command, tmp_path: Path) -> None:
    text = sentence(command_line("quickstart", "--model", "m", store=tmp_path, OPENAI_BASE_URL=""))
    assert "--base-url" in text


def test_a_policy_that_is_not_there_is_not_looked_for_in_the_network(
    command_line: Command, tmp_path: Path
) -> None:
    done = command_line("serve-policy", str(tmp_path / "nosuch"))
    assert "nosuch holds no model (no config.json)" in sentence(done)


def test_layouts_are_listed_without_a_dataset(command_line: Command) -> None:
    listed = command_line("dataset", "export", "--format", "list")
    assert (listed.returncode, "verl" in listed.stdout) == (0, True)
    assert "no dataset is named" in sentence(command_line("dataset", "export", "--format", "messages"))


def test_sandboxes_without_privileges_name_the_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    state = tmp_path / "state"
    done = subprocess.run(
        [sys.executable, "-m", "orchard.injector.agent", "--state", str(state)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=drop_privileges,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 1
    assert "root" in done.stderr
    assert "Traceback" not in done.stderr


def drop_privileges() -> None:
    """Become nobody inside a user namespace of no use: readable files stay readable, capabilities go."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(41):
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    os.setgroups([])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_stores_nothing_and_says_so(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * (23 * 2**20))
    with pytest.raises(StoreFull, match="free some space"):
        BlobStore(str(small_disk)).put(os.urandom(3_000_000))
    assert [path.name for path in small_disk.rglob("*") if path.is_file()] == ["filler"]
