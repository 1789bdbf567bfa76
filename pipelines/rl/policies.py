"""The policies of a run as directories, and the file that names the newest: what a server starts with."""

import shutil
from pathlib import Path

import msgspec

from orchard.storage.durable import write_whole

NEWEST = "newest.json"
BEST = "best.json"
"""File that names the policy with the highest score on the run's held-out tasks."""
_POLICIES = "policies"


class Newest(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    version: int


def policy_directory(out: Path, version: int) -> Path:
    return out / _POLICIES / f"version-{version:06}"


def write_newest(file: Path, newest: Newest, *, keep: int, best: int | None = None) -> None:
    """Write the newest policy's name, and delete newer policies, which an earlier run left there, and all
    but the `keep` newest and the `best` version."""
    write_whole(file.parent, file.name, msgspec.json.encode(newest))
    place = Path(newest.path)
    found = sorted(place.parent.glob("version-*"))
    kept = [version for version in found if version.name <= place.name][-keep:]
    spared = None if best is None else policy_directory(file.parent, best).name
    for other in found:
        if other not in kept and other.name != spared:
            shutil.rmtree(other)


def write_best(out: Path, version: int | None) -> None:
    """Write the name of the best policy; None deletes the one that an earlier run left there."""
    if version is None:
        (out / BEST).unlink(missing_ok=True)
        return
    best = Newest(version=version, path=str(policy_directory(out, version).absolute()))
    write_whole(out, BEST, msgspec.json.encode(best))


def read_newest(out: Path, name: str = NEWEST) -> Newest | None:
    """The newest policy of the run in `out`, or with BEST the best one; None before there is any."""
    file = out / name
    return msgspec.json.decode(file.read_bytes(), type=Newest) if file.exists() else None
