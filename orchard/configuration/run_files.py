"""What runs on a state directory, as the other commands on this machine find it."""

import fcntl
from dataclasses import dataclass
from pathlib import Path

import msgspec

UNSAFE_HOST = "unsafe-host"
"""Value of `--sandbox` by which commands run on this machine with no isolation at all."""


class UpRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`run/up.json`: how other commands on this machine find what runs."""

    pid: int
    nats_url: str
    sandbox_url: str
    oracle_url: str | None
    page_url: str | None = None
    children: dict[str, int]
    """Process ids by name, as of the last start of any."""


@dataclass(frozen=True)
class RunFiles:
    """Paths in a state directory of what belongs to the running pipeline."""

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
        """The page's full-text index (`orchard.page.search_index`)."""
        return self.directory / "run" / "words.sqlite"

    @property
    def logs(self) -> Path:
        return self.directory / "run" / "logs"

    @property
    def lock(self) -> Path:
        return self.directory / "run" / "up.lock"


def running(directory: Path) -> UpRecord | None:
    """What runs on this state directory, or None when nothing does: the lock, not the file, decides."""
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
