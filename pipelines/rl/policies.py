"""The policies of a run as directories, and the file that names the newest: what a server starts with."""

import shutil
from pathlib import Path

import msgspec

from orchard.storage.durable import write_whole

NEWEST = "newest.json"
_POLICIES = "policies"


class Newest(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    version: int


def policy_directory(out: Path, version: int) -> Path:
    return out / _POLICIES / f"version-{version:06}"


def write_newest(file: Path, newest: Newest, *, keep: int) -> None:
    """Write the newest policy's name, and delete newer policies, which an earlier run left there, and all
    but the `keep` newest."""
    write_whole(file.parent, file.name, msgspec.json.encode(newest))
    place = Path(newest.path)
    found = sorted(place.parent.glob("version-*"))
    kept = [version for version in found if version.name <= place.name][-keep:]
    for other in found:
        if other not in kept:
            shutil.rmtree(other)


def read_newest(out: Path) -> Newest | None:
    """The newest policy of the run in `out`; None before the first step."""
    file = out / NEWEST
    return msgspec.json.decode(file.read_bytes(), type=Newest) if file.exists() else None
