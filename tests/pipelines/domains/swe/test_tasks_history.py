"""Nothing of a repository's future can be reached after the cut, wherever it lay; what was left is named."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.swe.benchmark_rows import task_from_row
from orchard.pipelines.domains.swe.history import OVER, cut, look
from orchard.pipelines.domains.swe.other_releases import LIST, newer_releases
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.storage.blobs import BlobStore
from tests.pipelines.domains.swe.test_tasks_repositories import commit, git

ANSWER = "the answer from the future"


def shell(script: str, at: Path) -> str:
    """What the script prints, run as a sandbox runs it but by the strictest shell there is."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(at.parent)}
    done = subprocess.run(
        ["sh", "-c", script], cwd=at, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


def seen(repository: Path, base: str) -> str:
    """What a look in the repository's own directory prints: other tests have the same commits elsewhere. Some
    builds of BusyBox have no `comm`."""
    return shell("comm() { return 127; }\n" + look(base, under=str(repository)), repository)


def every_object(repository: Path) -> str:
    """The content of all that the repository's stores hold, as an agent could read it."""
    options = ("--batch-all-objects", "--batch", "--buffer")
    command = ["git", "-C", str(repository), "cat-file", *options]
    return subprocess.run(command, check=True, capture_output=True).stdout.decode(errors="replace")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """At its base commit, `base` in its file; with a past of one commit and a tag. All of it is years old."""
    path = tmp_path / "repository"
    for date in ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"):
        monkeypatch.setenv(date, "2020-01-01T00:00:00Z")
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    commit(path, "Old", a="old\n")
    git(path, "tag", "v1")
    git(path, "tag", "-a", "-m", "first", "v1-annotated")
    commit(path, "Base", a="base\n")
    for date in ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"):
        monkeypatch.delenv(date)
    return path


def future(repository: Path) -> str:
    """A commit with the answer that no reference has; its id."""
    base = git(repository, "rev-parse", "HEAD")
    made = commit(repository, ANSWER, a=f"{ANSWER}\n")
    git(repository, "reset", "-q", "--hard", base)
    shutil.rmtree(repository / ".git/logs")
    return made


def _stash(path: Path) -> None:
    (path / "a").write_text(ANSWER)
    git(path, "stash", "-q")


def _alternates(path: Path) -> None:
    other = path.parent / "other"
    shutil.copytree(path, other)
    future(other)
    (path / ".git/objects/info/alternates").write_text(f"{other}/.git/objects\n")


def _kept_pack(path: Path) -> None:
    git(path, "tag", "tmp", future(path))
    git(path, "repack", "-adq")
    git(path, "tag", "-d", "tmp")
    for pack in (path / ".git/objects/pack").glob("*.pack"):
        pack.with_suffix(".keep").touch()


def _cruft(path: Path) -> None:
    future(path)
    git(path, "repack", "-dq", "--cruft")


def _reflog(path: Path) -> None:
    commit(path, ANSWER, a=f"{ANSWER}\n")
    git(path, "reset", "-q", "--hard", "HEAD^")


def _remote(path: Path) -> None:
    git(path, "update-ref", "refs/remotes/origin/main", future(path))
    git(path, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    git(path, "remote", "add", "origin", "/nowhere")


def _staged(path: Path) -> None:
    (path / "a").write_text(ANSWER)
    git(path, "add", "a")
    (path / "a").write_text("base\n")


HIDDEN: dict[str, Callable[[Path], object]] = {
    "branch": lambda path: git(path, "branch", "future", future(path)),
    "remote": _remote,
    "tag": lambda path: git(path, "tag", "-a", "-m", ANSWER, "v2", future(path)),
    "tag of a file": lambda path: git(path, "tag", "v3", git(path, "rev-parse", f"{future(path)}:a")),
    "late note on an old commit": lambda path: git(path, "tag", "-a", "-m", ANSWER, "hint", "HEAD"),
    "notes": lambda path: git(path, "notes", "add", "-m", ANSWER),
    "replacement": lambda path: git(path, "replace", "-f", "HEAD", future(path)),
    "stash": _stash,
    "reflog": _reflog,
    "loose": future,
    "worktree": lambda path: git(path, "worktree", "add", "-q", "--detach", "../wt", future(path)),
    "kept pack": _kept_pack,
    "cruft pack": _cruft,
    "alternates": _alternates,
    "index": _staged,
    "pseudo reference": lambda path: git(path, "update-ref", "ORIG_HEAD", future(path)),
}


def test_wherever_it_lay_at_once(repository: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    assert seen(repository, base) == f"{OVER}\n"
    for name, hide in HIDDEN.items():
        if name != "replacement":  # it would change what the others begin with
            hide(repository)
    found = seen(repository, base)
    for named in ("heads/future", "remotes/origin", "tags/v2", "tags/hint", "notes", "stash", "objects that"):
        assert named in found
    shell(cut(base), repository)
    nothing_is_left(repository, base)


@pytest.mark.slow
@pytest.mark.parametrize("name", HIDDEN)
def test_what_came_later_cannot_be_reached(repository: Path, name: str) -> None:
    base = git(repository, "rev-parse", "HEAD")
    assert seen(repository, base) == f"{OVER}\n"
    HIDDEN[name](repository)
    assert ANSWER in every_object(repository)
    assert seen(repository, base) != f"{OVER}\n"
    shell(cut(base), repository)
    nothing_is_left(repository, base)


def nothing_is_left(repository: Path, base: str) -> None:
    assert seen(repository, base) == f"{OVER}\n"
    assert ANSWER not in every_object(repository)
    left = "".join(p.read_text(errors="replace") for p in (repository / ".git").rglob("*") if p.is_file())
    assert ANSWER not in left
    assert git(repository, "rev-parse", "HEAD", "main") == f"{base}\n{base}"
    assert git(repository, "log", "--format=%s") == "Base\nOld"
    assert git(repository, "tag") == "v1\nv1-annotated" and git(repository, "fsck", "--no-dangling") == ""
    assert git(repository, "status", "--porcelain") == "" and (repository / "a").read_text() == "base\n"


def test_files_of_an_image_are_one_commit_on_the_base_and_other_files_stay(repository: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    commit(repository, "Their set-up", b="set up\n")
    commit(repository, "More of it", c="more\n")
    (repository / "a").write_text("changed\n")
    (repository / "new").write_text("new\n")
    copy = repository.parent / "copy"
    shutil.copytree(repository, copy)
    for each in (repository, copy):
        shell(cut(base), each)
    assert seen(repository, base) == f"{OVER}\n"
    assert git(repository, "log", "--format=%s") == "Files of the image\nBase\nOld"
    assert git(repository, "status", "--porcelain") == "M a\n?? new"
    assert git(copy, "rev-parse", "HEAD") == git(repository, "rev-parse", "HEAD"), "the same in every sandbox"
    shell(cut("0" * 40), copy)  # an image whose repository was made anew
    shell(cut(base), repository.parent)  # no repository at all
    assert git(copy, "rev-parse", "HEAD") == git(repository, "rev-parse", "HEAD")


def test_copies_and_bundles_are_named_wherever_they_lie(repository: Path, tmp_path: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    deep, sources = tmp_path / "data/a/b/c/d/e", tmp_path / "usr/src"
    for directory in (deep, sources):
        directory.mkdir(parents=True)
    git(repository, "tag", "later", future(repository))
    git(repository, "clone", "-q", ".", "vendor_copy")
    git(repository, "clone", "-q", "--bare", ".", str(deep / "copy.git"))
    shutil.copytree(repository / ".git/objects", sources / "objects")  # without a HEAD beside
    for bundle in (repository / ".git/whole.bundle", deep / "whole.bundle"):
        git(repository, "bundle", "create", "-q", str(bundle), "--all")
    git(repository, "bundle", "create", "-q", str(sources / "since.bundle"), f"{base}..later")
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q", "-b", "main")
    commit(other, "Another project", a="other\n")
    git(other, "bundle", "create", "-q", "own.bundle", "--all")
    (other / "main.bundle").write_text("minified()")
    (repository / "objects").mkdir()
    shell(cut(base), repository)
    copies = (
        repository / "vendor_copy/.git/objects",
        deep / "copy.git/objects",
        sources / "objects",
        deep / "whole.bundle",
    )
    assert set(shell(look(base, under=str(tmp_path)), repository).splitlines()) == {
        *(f"another copy of the repository in {copy}: make an image without it" for copy in copies),
        f"a bundle that continues a history in {sources}/since.bundle: make an image without it",
        OVER,
    }
    stopped = shell(f"timeout() {{ [ $1 = 5 ] || return 124; }}\n{look(base)}", repository)
    assert stopped == f"the search for other copies of the repository did not end in 600 s\n{OVER}\n"


def test_copies_in_odd_forms_are_named_too(repository: Path, tmp_path: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    full = tmp_path / "full"
    shutil.copytree(repository, full)
    for content in ("later", "latest"):
        commit(full, ANSWER, a=content)
    git(full, "bundle", "create", "-q", str(tmp_path / "late"), "HEAD^..HEAD")  # on what the task has not
    git(full, "bundle", "create", "-q", str(tmp_path / "whole.bdl"), "HEAD")
    (tmp_path / "torn").write_bytes((tmp_path / "whole.bdl").read_bytes()[:-9])
    (tmp_path / "notes").write_text("About bundles:\n# v2 git bundle\n")
    stores = [tmp_path / name / ".git/objects" for name in ("linked", "without packs", "of two\nlines")]
    for store in stores:
        shutil.copytree(full / ".git", store.parent)
    stores[0].rename(tmp_path / "store")
    stores[0].symlink_to("../../store")
    (stores[1] / "pack").rmdir()
    shutil.rmtree(full)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/objects").symlink_to(tmp_path / "notes")
    found = shell(look(base, under=str(tmp_path)), repository)
    assert set(found.split(" it\n")) == {
        f"{OVER}\n",
        *(f"another copy of the repository in {each}: make an image without" for each in stores),
        f"another copy of the repository in {tmp_path}/whole.bdl: make an image without",
        f"a bundle that continues a history in {tmp_path}/late: make an image without",
        f"a bundle that cannot be read in {tmp_path}/torn: make an image without",
    }


def test_a_base_commit_that_is_missing_is_named_where_there_is_a_history(repository: Path) -> None:
    missing = "0" * 40
    shell(cut(missing), repository)
    assert f"the base commit {missing} is not in the repository" in seen(repository, missing)
    shutil.rmtree(repository / ".git")
    git(repository, "init", "-q", "-b", "main")
    commit(repository, "Made anew")
    assert seen(repository, missing) == f"{OVER}\n"


def test_a_partial_clone_is_refused_by_name_where_files_of_its_past_are_missing(
    repository: Path, tmp_path: Path
) -> None:
    base = git(repository, "rev-parse", "HEAD")
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(repository, "branch", "later", future(repository))
    partial, whole = tmp_path / "partial", tmp_path / "whole"
    for place, limit in ((partial, "blob:none"), (whole, "blob:limit=1m")):
        git(tmp_path, "clone", "-q", "--no-local", f"--filter={limit}", repository.as_uri(), str(place))
    refused = subprocess.run(["sh", "-c", cut(base)], cwd=partial, capture_output=True, text=True)
    assert refused.returncode == 1 and refused.stdout.startswith("the history of a partial clone")
    assert ANSWER in every_object(whole)
    shell(cut(base), whole)
    assert seen(whole, base) == f"{OVER}\n" and ANSWER not in every_object(whole)


@pytest.mark.long
async def test_an_imported_task_is_cut_in_its_sandbox_and_one_that_is_not_is_refused(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    patch = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-base\n+fixed\n"
    async with await sandboxes.create_sandbox("host", cpu="1", memory="512Mi") as sandbox:
        made = await sandbox.exec(
            "set -e; mkdir /testbed; cd /testbed; git init -q; git config user.name t;"
            "git config user.email t@t;"
            'printf \'[project]\\nname = "demo-x"\\nversion = "1.0"\\n\' > pyproject.toml; echo base > a;'
            "git add -A; git commit -qm base; git rev-parse HEAD; git checkout -qb future; echo fixed > a;"
            "git commit -qam fixed; git checkout -q master"
        )
        await sandbox.snapshot("tests/future:1")
        wheels = "/root/.cache/pip/wheels/a"
        await sandbox.exec(f"mkdir -p {wheels}; touch {wheels}/Demo_X-1.1-py3-none-any.whl")
        await sandbox.exec("git clone -q /testbed /data/a/b/c/d/copy")
        await sandbox.snapshot("tests/future:2")
    row = {
        "instance_id": "demo",
        "repo": "o/demo",
        "base_commit": made.stdout.strip(),
        "problem_statement": "Fix a.",
        "patch": patch,
        "test_patch": "diff --git a/t.py b/t.py\nnew file mode 100644\n--- /dev/null\n+++ b/t.py\n"
        "@@ -0,0 +1,6 @@\n"
        "+import unittest\n+\n+\n+class T(unittest.TestCase):\n+    def test_a(self):\n"
        "+        self.assertEqual(open('a').read(), 'fixed\\n')\n",
        "FAIL_TO_PASS": ["test_a (t.T.test_a)"],
        "test_command": "python3 -m unittest -v t",
        "log_parser": "unittest",
        "image_name": "tests/future:1",
    }
    validator = Validator(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))
    task = task_from_row(row, 1)
    event = (await validator.validate(task)).event
    assert isinstance(event, TaskValidated), event
    whole = type(task)(
        **{name: getattr(task, name) for name in task.__struct_fields__} | {"setup_commands": ()}
    )
    refused = (await validator.validate(whole)).event
    assert isinstance(refused, TaskRejected) and refused.reason == "solution_in_reach"
    assert "refs/heads/future" in refused.detail and "`orchard tasks import` cuts" in refused.detail
    cached = (await validator.validate(task_from_row({**row, "image_name": "tests/future:2"}, 1))).event
    assert isinstance(cached, TaskRejected) and "demo-x 1.1 is cached" in cached.detail
    assert "another copy of the repository in /data/a/b/c/d/copy" in cached.detail


MAKE_RELEASES = """
import gzip, io, pathlib, tarfile
top, cache = pathlib.Path("/testbed"), pathlib.Path("/root/.cache/pip")
site = top / ".venv/lib/python3.11/site-packages"
for directory in (site, cache / "http-v2/a"):
    directory.mkdir(parents=True)
project = '[build-system]\\nx = 1\\n\\n[project]\\nname = "My.Pack"\\nversion = "2.0.dev1"\\n'
(top / "pyproject.toml").write_text(project)
for version, record in (("2.0", "a.py,,"), ("1.9", "a.py,,"), ("2.1", "my_pack.pth,,"), ("2.2", "a.py,,")):
    (site / f"my_pack-{version}.dist-info").mkdir()
    (site / f"my_pack-{version}.dist-info/RECORD").write_text(record)
(site / "other-9.0.dist-info").mkdir()
(site / "my_pack-2.2.dist-info/direct_url.json").write_text('{"url": "file:///testbed"}')
(cache / "my-pack-3.0.tar.gz").touch()
(cache / "http-v2/a/b.body").write_bytes(b"PK" + bytes(2000) + b"my_pack-3.1.dist-info/METADATA" + bytes(50))
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
    member = tarfile.TarInfo("my_pack-3.2/a.py")
    member.size, member.mtime = 4000, 1.5
    archive.addfile(member, io.BytesIO(bytes(4000)))
(cache / "http-v2/a/c").write_bytes(packed.getvalue() + bytes(2000))
"""


async def test_a_newer_release_is_found_installed_and_in_caches_of_any_form(
    sandboxes: AsyncSandboxClient,
) -> None:
    async with await sandboxes.create_sandbox("host", cpu="1", memory="512Mi") as sandbox:
        await sandbox.exec(f"python3 - <<'E'\n{MAKE_RELEASES}E")
        done = await sandbox.exec(LIST, cwd="/testbed")
    found = newer_releases(done.stdout.splitlines(), "o/r")
    assert {each.partition(" is ")[0] for each in found} == {
        f"my-pack {version}" for version in ("2.0", "3.0", "3.1", "3.2")
    }


def test_a_version_of_which_the_end_is_unknown_is_not_older_than_itself() -> None:
    lines = ["installed\t/s/pytest-5.4.1.dist-info", "cached\t/c/pytest-5.5-py3-none-any.whl"]
    assert newer_releases(lines, "pytest-dev/pytest", "5.4") == [
        "pytest 5.5 is cached: /c/pytest-5.5-py3-none-any.whl"
    ]
    assert len(newer_releases(lines, "pytest-dev/pytest")) == 2
    assert newer_releases(lines, "o/other") == []
