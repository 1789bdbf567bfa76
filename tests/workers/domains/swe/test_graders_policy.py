"""What a submission may touch: paths as git sees them, never as a patch tells them."""

import pytest

from orchard.workers.domains.swe.patch_policy import (
    ABSENT,
    FILE,
    LINK,
    SUBMODULE,
    FileChange,
    PatchRejected,
    Permitted,
    permitted,
)

BASE = ("shop/__init__.py", "shop/sums.py", "src/lib.txt", "code/run.py", "tests/test_sums.py", "setup.cfg")
GOLD = (
    "diff --git a/shop/sums.py b/shop/sums.py\n--- a/shop/sums.py\n+++ b/shop/sums.py\n@@ -1 +1 @@\n-a\n+b\n"
)


def added(path, mode=FILE, binary=False):
    return FileChange(path=path, before=ABSENT, after=mode, binary=binary)


def changed(path):
    return FileChange(path=path, before=FILE, after=FILE)


def verdict(*changes, gold=GOLD):
    return permitted(changes, gold, BASE, {"tests/test_sums.py"})


@pytest.mark.parametrize(
    "change",
    [
        *map(added, ("tox.ini", "pytest.toml", ".pytest.ini", "sub/conftest.py", "tests/conftest.py")),
        *map(added, ("CONFTEST.py", "conftest.py ", "ｃonftest.py", ".gitattributes", "pyvenv.cfg")),
        *map(added, ("x-1.dist-info/entry_points.txt", "src/x.egg-info/PKG-INFO", "a.pth", "tests/a.pth")),
        *map(
            added, ("pytest.py", "src/pluggy.py", "argparse.py", "unittest/__main__.py", "json/__init__.py")
        ),
        *map(added, ("sitecustomize/__init__.py", "src/encodings/__init__.py", "tools/signal.py")),
        *map(added, ("pytest.pyc", "shop/_fast.so", "tests/forge.pyc", "a.zip")),
        added("notes", LINK),
        added("tests", LINK),
        added("vendor", SUBMODULE),
        added("logo.png", binary=True),
        added("a\tb.py"),
        changed("setup.cfg"),
        FileChange(path="setup.cfg", before=FILE, after=ABSENT),
        FileChange(path="shop/sums.py.bak", before=FILE, after=LINK),
    ],
    ids=lambda change: ascii(change.path),
)
def test_what_decides_how_tests_run_is_refused(change):
    assert isinstance(verdict(changed("shop/sums.py"), change), PatchRejected)


@pytest.mark.parametrize(
    "path",
    [
        "shop/sums.py",
        "shop/json.py",
        "shop/more.py",
        "README.md",
        "docs/a.txt",
        "reproduce.py",
        "code/more.py",
    ],
)
def test_source_and_documents_are_not(path):
    change = added(path)
    assert verdict(change) == Permitted(changes=(change,), left_out=())


@pytest.mark.parametrize(
    "path",
    [
        *(
            "tests/test_sums.py",
            "tests/__init__.py",
            "tests/helper.py",
            "test_mine.py",
            "test.py",
            ".coverage",
        ),
        *("shop/__pycache__/sums.cpython-311.pyc", ".pytest_cache/v/x", "tests/argparse.py"),
    ],
)
def test_what_agents_leave_behind_is_left_out(path):
    assert verdict(added(path, binary=path.endswith((".pyc", "age")))) == Permitted(
        changes=(), left_out=(path,)
    )


def test_what_the_gold_patch_touches_is_allowed():
    gold = GOLD.replace("shop/sums.py", "setup.cfg")
    assert isinstance(verdict(changed("setup.cfg"), gold=gold), Permitted)


def test_a_package_that_the_submission_makes_itself_hides_nothing():
    """`src/__init__.py` makes `src/json.py` look like part of a package, but src may be on the path."""
    assert isinstance(verdict(added("src/__init__.py"), added("src/json.py")), PatchRejected)
