"""Files by which commands on this machine find the pipeline that runs on a state directory."""

import fcntl
from dataclasses import dataclass
from pathlib import Path

import msgspec

UNSAFE_HOST = "unsafe-host"
"""Value of `--sandbox` by which commands run on this machine with no isolation at all."""


class UpRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `run/up.json`, by which other commands on this machine find the running pipeline."""

    pid: int
    nats_url: str
    sandbox_url: str
    oracle_url: str | None
    page_url: str | None = None
    children: dict[str, int]
    """Process ids by name, updated at each start of a process."""


@dataclass(frozen=True)
class RunFiles:
    """Paths of the running pipeline's files in a state directory."""

    directory: Path

    @property
    def record(self) -> Path:
        return self.directory / "run" / "up.json"

    @property
    def key(self) -> Path:
        return self.directory / "run" / "sandbox.key"

    @property
    def page_token(self) -> Path:
        return self.directory / "run" / "page.token"

    @property
    def search_index(self) -> Path:
        return self.directory / "run" / "words.sqlite"

    @property
    def logs(self) -> Path:
        return self.directory / "run" / "logs"

    @property
    def lock(self) -> Path:
        return self.directory / "run" / "up.lock"


def running(directory: Path) -> UpRecord | None:
    """Reads the record of the pipeline that runs on this directory; None unless its lock is held."""
    files = RunFiles(directory)
    try:
        with files.lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        try:
            return msgspec.json.decode(files.record.read_bytes(), type=UpRecord)
        except (FileNotFoundError, msgspec.DecodeError):
            return None  # it is just starting
    return None
