"""A row of each family whose rows are not SWE-bench's, all of the same small project and the same change."""

import json
from typing import Any

IMAGES = {
    "tests/families:app": "/app",
    "tests/families:testbed": "/testbed",
    "tests/families:demo": "/home/demo",
}
"""Images, and where the project lies in them."""
APP, TESTBED, DEMO = IMAGES
FIX = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-base\n+fixed\n"
BUG = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-base\n+broken\n"
TEST = """\
import pathlib
import unittest


class T(unittest.TestCase):
    def test_a(self):
        self.assertEqual(pathlib.Path("a").read_text(), "fixed\\n")

    def test_b(self):
        pass
"""
TEST_PATCH = (
    "diff --git a/t.py b/t.py\nnew file mode 100644\n--- /dev/null\n+++ b/t.py\n"
    f"@@ -0,0 +1,{TEST.count(chr(10))} @@\n" + "".join(f"+{line}\n" for line in TEST.splitlines())
)
RUN = "#!/bin/bash\necho asked for $1\npython3 -m unittest -v t\n"
STATUSES = """\
import re
def parser(log):
    words = {"ok": "pass", "FAIL": "fail"}
    form = re.compile(r"^(test_\\w+) .* \\.\\.\\. (ok|FAIL)$", re.M)
    return {name: words[word] for name, word in form.findall(log)}
"""
PARSING = (
    STATUSES
    + """
import json, sys
out = [open(path).read() for path in sys.argv[1:3]]
tests = [{"name": name, "status": word.upper() + "ED"} for name, word in parser("".join(out)).items()]
json.dump({"tests": tests}, open(sys.argv[3], "w"))
"""
)
R2E_RUN = """\
import subprocess, sys
command = [sys.executable, "-m", "unittest", "-v", "r2e_tests.test_1"]
said = subprocess.run(command, capture_output=True, text=True)
print("=========== short test summary info ============")
for line in said.stderr.splitlines():
    if " ... " in line:
        word = "PASSED" if line.endswith("ok") else "FAILED"
        print(word, "r2e_tests/test_1.py::T::" + line.split()[0] + (" - no" if word == "FAILED" else ""))
"""
GO_RUN = r"""
cd /home/demo
python3 -m unittest -v t 2>&1 | sed -n 's/^\(test_[a-z]*\) .*ok$/--- PASS: \1 (0.00s)/p
s/^\(test_[a-z]*\) .*FAIL$/--- FAIL: \1 (0.00s)/p'
"""


def rows(base: str) -> dict[str, dict[str, Any]]:
    """Rows by family, for a project whose commit is `base`."""
    swe_bench = {
        "instance_id": "o__demo-1",
        "repo": "o/demo",
        "base_commit": base,
        "problem_statement": "Fix a.",
        "patch": FIX,
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": ["test_a"],
        "PASS_TO_PASS": ["test_b"],
    }
    bare = {key: swe_bench[key] for key in swe_bench if not key.isupper()}
    nemo = {
        **swe_bench,
        "image_ref": APP,
        "run_script": RUN,
        "parsing_script": PARSING,
        "test_files": '["t.py"]',
        "env_exports": ["export LANGUAGE=en"],
    }
    outcomes = {"run": "PASS", "test": "FAIL", "fix": "PASS"}
    commit = {
        "old_commit_hash": base,
        "file_diffs": [
            {
                "header": {"file": {"path": path}},
                "old_file_content": old,
                "new_file_content": new,
                "minus_file": {"path": path},
                "plus_file": {"path": path},
            }
            for path, old, new in (("a", "base\n", "fixed\n"), ("tests/b.py", "", "x = 1\n"))
        ],
    }
    return {
        "swe-bench-pro": {
            **bare,
            "requirements": "Make it `fixed`.",
            "interface": "",
            "repo_language": "python",
            "fail_to_pass": "['test_a']",
            "pass_to_pass": '["test_b"]',
            "selected_test_files_to_run": "['t.py', \"u.py\"]",
            "dockerhub_tag": "o.demo-1",
            "image_name": APP,
            "run_script": RUN,
            "parsing_script": PARSING,
        },
        "nemo-gym": nemo,
        "swe-bench-live": {
            **swe_bench,
            "test_cmds": ["python3 -m unittest -v t > log 2>&1"],
            "print_cmds": ["cat log"],
            "rebuild_cmds": ["true"],
            "log_parser": STATUSES,
            "docker_image": TESTBED,
        },
        "swe-smith": {
            "instance_id": "o__demo.12345678.func_1",
            "repo": "swesmith/o__demo.12345678",
            "image_name": TESTBED,
            "problem_statement": "Fix a.",
            "patch": BUG,
            "FAIL_TO_PASS": ["u.py::U::test_a"],
            "PASS_TO_PASS": [],
        },
        "multi-swe-bench": {
            "org": "o",
            "repo": "demo",
            "number": 1,
            "title": "A pull request",
            "base": {"label": "o:main", "ref": "main", "sha": base},
            "resolved_issues": [{"number": 2, "title": "It breaks", "body": "Fix a."}],
            "fix_patch": FIX,
            "test_patch": TEST_PATCH,
            "fixed_tests": {"test_a": outcomes},
            "f2p_tests": {"test_a": outcomes},
            "p2p_tests": {"name": ["test_b"], "run": ["PASS"], "test": ["PASS"], "fix": ["PASS"]},
            "lang": "go",
            "docker_image": DEMO,
        },
        "r2e-gym": {
            "repo_name": "demo",
            "docker_image": TESTBED,
            "commit_hash": "c" * 40,
            "problem_statement": "Fix a.",
            "parsed_commit_content": json.dumps(commit),
            "execution_result_content": json.dumps(
                {"test_file_names": ["test_1.py", "__init__.py"], "test_file_codes": [TEST, ""]}
            ),
            "expected_output_json": json.dumps({"T.test_a": "PASSED", "T.test_b": "PASSED", "T.x": "FAILED"}),
        },
    }
