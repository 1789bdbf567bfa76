"""A part of the forging tables of tasks that no tests judge.

`python -m tests.forgery in-place claw gui` runs all.
"""

import io
import tarfile

import msgspec
import pytest

from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import StateCheck, task_hash
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders.carrying import carried_paths, keep_data
from tests.forgery import claw, gui, in_place
from tests.forgery.in_place import LAYOUTS
from tests.forgery.table import page

FRESH = (
    "every program that the check names fresh reward",
    "edits the check when it comes fresh data",
    "through a directory fresh data",
)
AGENT = ("shims before the image's agent reward", "env that agrees agent data")
HONEST = ("an absolute link within fresh data", "a file of nobody, read-only fresh reward")


@pytest.mark.long
async def test_what_an_agent_replaced_does_not_judge_in_a_fresh_sandbox() -> None:
    found = await in_place.run([*FRESH, *AGENT, *HONEST])
    fresh = [each for each in found if each.place == "fresh"]
    assert {f"{each.deed.name}: {each.said}" for each in fresh if each.wrong} == set()
    assert len(fresh) == len(FRESH) + len(HONEST)
    agent = {each.deed.name: each.reward for each in found if each.place == "agent"}
    shims, env = agent["shims before the image's"], agent["env that agrees"]
    assert shims is not None and shims.resolved, "as the threat model says"
    assert env is not None and (env.resolved, env.cause) == (False, "forged")
    assert "| honest refused | 0 of 2 | 0 of 0 |" in page({"in-place": found})


@pytest.mark.long
async def test_what_an_assistant_replaced_does_not_answer_its_tasks_commands() -> None:
    found = await claw.run(["many numbers fresh", "a shim before", "an entry put into the log fresh"])
    assert {(each.deed.name, each.place): each.rewarded for each in found} == {
        ("many numbers", "fresh"): True,
        ("an entry put into the log", "fresh"): False,
        ("a shim before the image's", "fresh"): False,
        ("a shim before the image's", "agent"): True,
    }


@pytest.mark.long
async def test_no_page_and_no_root_beside_it_changes_a_sites_records() -> None:
    found = await gui.run(["honest: clicks", "the records by their address", "a site of its own"])
    assert {each.deed.name: each.rewarded for each in found} == {
        "clicks": True,
        "the records by their address": False,
        "hosts, and a site of its own": False,
    }


@pytest.mark.parametrize("suite", [in_place, claw, gui])
def test_each_table_has_enough_tricks_with_names_of_their_own(suite: object) -> None:
    tricks, honest = suite.TRICKS, suite.HONEST  # type: ignore[attr-defined]
    names = [deed.name for deed in (*tricks, *honest)]
    assert len({*names}) == len(names)
    assert len(tricks) >= 20
    assert len(honest) >= 4


def test_what_is_carried_is_data() -> None:
    """No pipe, no device, no set-user-ID; files, directories and links as they are."""
    found, kept = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as archive:
        for name, kind, mode in (
            ("d", tarfile.DIRTYPE, 0o2755),
            ("d/tool", tarfile.REGTYPE, 0o6755),
            ("d/link", tarfile.SYMTYPE, 0o777),
            ("d/same", tarfile.LNKTYPE, 0o4755),
            ("d/pipe", tarfile.FIFOTYPE, 0o644),
            ("d/disk", tarfile.BLKTYPE, 0o644),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.uid = kind, mode, 7
            entry.linkname = {"d/link": "/usr/bin/python3", "d/same": "d/tool"}.get(name, "")
            entry.size = 2 if kind == tarfile.REGTYPE else 0
            archive.addfile(entry, io.BytesIO(b"ok"))
    keep_data(found, kept)
    kept.seek(0)
    with tarfile.open(fileobj=kept) as archive:
        entries = {entry.name: (entry.mode, entry.uid, entry.linkname) for entry in archive}
    assert entries == {
        "d": (0o755, 7, ""),
        "d/tool": (0o755, 7, ""),
        "d/link": (0o777, 7, "/usr/bin/python3"),
        "d/same": (0o755, 7, "d/tool"),
    }


@pytest.mark.parametrize("path", ["/", "//", "work", ""])
def test_the_whole_file_system_is_not_carried(path: str) -> None:
    check = StateCheck(files={}, command="true", check_in="fresh", check_paths=("/work", path))
    with pytest.raises(InfrastructureError, match="check_paths") as raised:
        carried_paths(LAYOUTS["data"], check)
    assert raised.value.cause is AbortCause.INVALID_REQUEST


def test_a_task_without_the_settings_has_the_hash_that_it_had() -> None:
    check = StateCheck(files={"/a": "b"}, command="true")
    task = msgspec.structs.replace(LAYOUTS["data"], grading=check)
    assert b"check_" not in msgspec.json.encode(task)
    hashes = {task_hash(msgspec.structs.replace(task, grading=each)) for each in _variants(check)}
    assert len(hashes - {task_hash(task)}) == 2


def _variants(check: StateCheck) -> list[StateCheck]:
    return [msgspec.structs.replace(check, check_in=place) for place in ("fresh", "agent")]
