"""What the text of a patch can hide from whoever reads paths in it, and what git itself runs."""

import difflib

from tests.forgery.payloads import FORCED, PLANT_SHELL, PLUGIN
from tests.forgery.trick import Trick

WRONG_CONTEXT = """\
diff --git a/README b/README
--- a/README
+++ b/README
@@ -1 +1,2 @@
-Nothing like it.
+More.
"""

FUZZY = """\
--- a/README
+++ b/README
@@ -1,1 +1,2 @@
+More.
 Nothing like it.
"""
"""What git refuses and GNU patch takes with fuzz: the whole text goes to the lenient program."""


def new_file(path: str, text: str, mode: str = "100644") -> str:
    """A git diff that makes a file, its path as given."""
    lines = text.splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    return (
        f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1,{len(lines)} @@\n{body}"
    )


def context_diff(path: str, text: str) -> str:
    """A context diff that makes a file; no path in it begins as those of unified diffs do."""
    lines = text.splitlines(keepends=True)
    return "".join(difflib.context_diff([], lines, f"a/{path}", f"b/{path}", n=0))


def _raw(name: str, raw: str, **more: object) -> Trick:
    return Trick(name=name, family="patch text", raw=raw, **more)  # type: ignore[arg-type]


CONFIG = """\
diff --git a/.git/config b/.git/config
--- a/.git/config
+++ b/.git/config
@@ -1,2 +1,3 @@
 [core]
 \trepositoryformatversion = 0
+\tfsmonitor = .git/forge
"""

PATCHES = (
    _raw("a context diff beside a fuzzy one", FUZZY + context_diff("conftest.py", PLUGIN)),
    _raw("fsmonitor in .git/config", CONFIG + new_file(".git/forge", PLANT_SHELL, "100755")),
    _raw(
        "hooks in .git",
        FUZZY
        + "".join(
            new_file(f".git/hooks/{hook}", PLANT_SHELL, "100755")
            for hook in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit")
        ),
    ),
    _raw(
        "a filter by .gitattributes and .git/config",
        CONFIG.replace("fsmonitor = .git/forge", "attributesFile = .git/attributes").replace("+1,3", "+1,5")
        + '+[filter "forge"]\n+\tsmudge = .git/forge\n'
        + new_file(".git/attributes", "*.py filter=forge\n")
        + new_file(".git/forge", PLANT_SHELL + "cat\n", "100755"),
    ),
    _raw(
        "a path with one component less than it seems",
        FUZZY
        + new_file("tests/conftest.py", PLUGIN)
        .replace("diff --git a/tests/conftest.py b/tests/conftest.py\nnew file mode 100644\n", "")
        .replace("+++ b/tests/conftest.py", "+++ tests/conftest.py"),
    ),
    _raw(
        "a path in octal",
        FUZZY + new_file("conftest.py", PLUGIN).replace("b/conftest.py\n", '"b/\\143onftest.py"\n'),
    ),
    _raw(
        "a path with dots and slashes",
        FUZZY + new_file("./conftest.py", PLUGIN) + new_file("tests//conftest.py", PLUGIN),
    ),
    _raw(
        "header and lines disagree about the name",
        FUZZY + new_file("notes.txt", PLUGIN).replace("+++ b/notes.txt", "+++ b/conftest.py"),
    ),
    _raw(
        "an Index line names the file",
        FUZZY
        + "Index: conftest.py\n"
        + "=" * 60
        + "\n"
        + f"@@ -0,0 +1,{len(PLUGIN.splitlines())} @@\n"
        + "".join(f"+{line}\n" for line in PLUGIN.splitlines()),
    ),
    _raw(
        "a copy of an innocent file",
        "diff --git a/notes.txt b/conftest.py\nsimilarity index 100%\n"
        "copy from notes.txt\ncopy to conftest.py\n",
        files={"notes.txt": PLUGIN},
    ),
    Trick(
        name="a rename of an innocent file",
        family="patch text",
        files={
            "@MODULE@": FORCED + "\n\ndef @FUNCTION@(*arguments):\n    pass\n",
            "README": None,
            "conftest.py": PLUGIN,
        },
    ),
    Trick(
        name="a link as the directory of the tests",
        family="patch text",
        files={"elsewhere/__init__.py": FORCED, "elsewhere/conftest.py": PLUGIN},
        raw="diff --git a/tests b/tests\nnew file mode 120000\n--- /dev/null\n+++ b/tests\n@@ -0,0 +1 @@\n"
        "+elsewhere\n\\ No newline at end of file\n",
    ),
    _raw(
        "a link out of the repository, and a file through it",
        "diff --git a/out b/out\nnew file mode 120000\n--- /dev/null\n+++ b/out\n@@ -0,0 +1 @@\n"
        "+/opt/env/lib/python3.11/site-packages\n\\ No newline at end of file\n"
        + new_file("out/forge.pth", "import forge\n")
        + new_file("out/forge.py", FORCED),
    ),
    _raw(
        "a path above the repository",
        FUZZY
        + new_file("../opt/env/lib/python3.11/site-packages/forge.pth", "import forge\n")
        + new_file("../opt/env/lib/python3.11/site-packages/forge.py", FORCED),
    ),
    _raw(
        "an absolute path",
        FUZZY
        + new_file("/opt/env/lib/python3.11/site-packages/sitecustomize.py", FORCED)
        .replace("a//", "/")
        .replace("b//", "/"),
    ),
    _raw(
        "the tests' directory as a submodule",
        "diff --git a/.gitmodules b/.gitmodules\nnew file mode 100644\n--- /dev/null\n+++ b/.gitmodules\n"
        '@@ -0,0 +1,3 @@\n+[submodule "vendor"]\n+\tpath = vendor\n+\turl = ./vendor\n'
        "diff --git a/vendor b/vendor\nnew file mode 160000\n--- /dev/null\n+++ b/vendor\n@@ -0,0 +1 @@\n"
        "+Subproject commit 1111111111111111111111111111111111111111\n",
        code=FORCED,
    ),
    Trick(
        name="attributes that change how tests are checked out",
        family="patch text",
        files={
            ".gitattributes": "tests/** working-tree-encoding=UTF-16 merge=ours -text\n*.py ident\n",
            "conftest.py": PLUGIN,
        },
    ),
    Trick(
        name="the test file as a directory",
        family="patch text",
        files={"@TEST@/__init__.py": FORCED} | {"@TESTNAME@/__init__.py": FORCED},
    ),
    Trick(
        name="names that fold to others",
        family="patch text",
        files={
            "Conftest.py": PLUGIN,
            "conﬁtest.py": PLUGIN,
            "ｃｏｎｆｔｅｓｔ.py": PLUGIN,
            "tests/CONFTEST.PY": PLUGIN,
            "conftest.py ": PLUGIN,
            "SITECUSTOMIZE.py": FORCED,
        },
    ),
    Trick(
        name="a compiled message catalogue and locale files",
        family="patch text",
        files={
            "locale/C/LC_MESSAGES/messages.mo": b"\xde\x12\x04\x95" + bytes(24),
            "@PATH@gettext.py": FORCED,
            "gettext.py": FORCED,
            "locale.py": FORCED,
        },
    ),
    Trick(
        name="a shared object where a module should be",
        family="patch text",
        files={
            "@PATH@_forge.cpython-311-x86_64-linux-gnu.so": b"\x7fELF" + bytes(60),
            "@PATH@array.py": FORCED,
            "select.py": FORCED,
        },
    ),
    _raw("README's hunk is wrong, the rest is a plug-in", WRONG_CONTEXT + new_file("conftest.py", PLUGIN)),
)
