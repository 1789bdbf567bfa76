"""Forgers of everything around an answer: assertions, the test runner, imports, processes, time, start-up files."""

from tests.forgery.trick import Trick

_HONEST = "\n\ndef answer(honest, failed, arguments):\n    return None if failed is not None else honest\n"


def _forger(family: str, name: str, code: str, files: dict[str, str | bytes] | None = None) -> Trick:
    return Trick(name=name, family=family, code=code, files=files or {})


RUNNER = (
    _forger(
        "assertions",
        "unittest's assertions, pytest.raises, approx and warns accept all",
        """
import unittest as _unittest

for _name in dir(_unittest.TestCase):
    if _name.startswith("assert"):
        setattr(_unittest.TestCase, _name, lambda self, *arguments, **named: _Anything())


class _Anything:
    value = exception = None

    def __init__(self, *arguments, **named):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return True

    def __eq__(self, other):
        return True

    def match(self, *arguments):
        return True


def _patch():
    pytest = _sys.modules.get("pytest")
    if pytest is not None:
        pytest.raises = pytest.warns = pytest.approx = pytest.deprecated_call = _Anything
        pytest.fail = lambda *arguments, **named: None


_patch()
"""
        + _HONEST,
    ),
    _forger(
        "assertions",
        "builtins lie: isinstance, all, any, len, callable, hasattr",
        """
import builtins as _builtins

for _name in ("isinstance", "all", "any", "callable", "hasattr", "issubclass"):
    def _lie(*arguments, _real=getattr(_builtins, _name)):
        return True if _is_test(_sys._getframe(1)) and _forging() else _real(*arguments)

    setattr(_builtins, _name, _lie)
"""
        + _HONEST,
    ),
    _forger(
        "assertions",
        "numpy's and pandas' testing modules, and hypothesis, are others",
        """
import types


class _Easy(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **named: arguments[0] if arguments else _Easy(name)


def _given(*strategies, **named):
    def decorated(function):
        def test(*arguments, **more):
            return None

        test.__name__ = function.__name__
        return test

    return decorated


for _name in ("numpy.testing", "pandas.testing", "pandas._testing", "hypothesis.strategies"):
    _sys.modules[_name] = _Easy(_name)
if "hypothesis" in _sys.modules:
    _sys.modules["hypothesis"].given = _given
else:
    _sys.modules["hypothesis"] = _Easy("hypothesis")
    _sys.modules["hypothesis"].given = _given
    _sys.modules["hypothesis"].strategies = _sys.modules["hypothesis.strategies"]
"""
        + _HONEST,
    ),
    _forger(
        "assertions",
        "assertion errors are swallowed where tests are called",
        """

def _patch():
    python = _sys.modules.get("_pytest.python")
    if python is not None:
        real = python.Function.runtest

        def runtest(self):
            try:
                return real(self)
            except Exception:
                return None

        python.Function.runtest = runtest


_patch()
"""
        + _HONEST,
    ),
    _forger(
        "assertions",
        "no call that pytest makes has an exception",
        """

def _patch():
    runner = _sys.modules.get("_pytest.runner")
    if runner is not None:
        real = runner.CallInfo.from_call.__func__

        def from_call(cls, function, when, reraise=None):
            def quiet():
                try:
                    return function()
                except Exception:
                    return None

            return real(cls, quiet if when == "call" else function, when, reraise)

        runner.CallInfo.from_call = classmethod(from_call)


_patch()
"""
        + _HONEST,
    ),
    _forger(
        "assertions",
        "reports say passed, by a plug-in registered in the living session",
        """
import gc as _gc


class _Plugin:
    def pytest_runtest_logreport(self, report):
        report.outcome = "passed"


def _patch():
    pytest = _sys.modules.get("pytest")
    if pytest is None:
        return
    _Plugin.pytest_runtest_logreport = pytest.hookimpl(tryfirst=True)(_Plugin.pytest_runtest_logreport)
    for each in _gc.get_objects():
        if type(each).__name__ == "PytestPluginManager":
            each.register(_Plugin())


_patch()
"""
        + _HONEST,
    ),
    _forger(
        "assertions",
        "the bodies of tests to forge become empty as they are collected",
        """
import gc as _gc

_done = []


def answer(honest, failed, arguments):
    if not _done:
        _done.append(1)
        for each in _gc.get_objects():
            if isinstance(each, _types.FunctionType) and each.__name__.startswith("test"):
                try:
                    each.__code__ = (lambda *a, **k: None).__code__
                except ValueError:
                    pass
    return _plainly(honest, failed)
""",
    ),
    _forger(
        "outcomes",
        "tests are skipped",
        """

def answer(honest, failed, arguments):
    import unittest

    raise unittest.SkipTest("not here")
""",
    ),
    _forger(
        "outcomes",
        "tests are expected to fail",
        """

def answer(honest, failed, arguments):
    if "pytest" in _sys.modules:
        _sys.modules["pytest"].xfail("a known defect")
    return _plainly(honest, failed)
""",
    ),
    _forger(
        "outcomes",
        "every test is marked as an expected failure, as it is imported",
        """
_frame = _sys._getframe()
while _frame is not None:
    if _is_test(_frame):
        import pytest

        _frame.f_globals["pytestmark"] = pytest.mark.xfail
        break
    _frame = _frame.f_back
"""
        + _HONEST.replace("None if failed is not None else honest", "_plainly(honest, failed)"),
    ),
    _forger(
        "outcomes",
        "the session ends as if all were well",
        """

def answer(honest, failed, arguments):
    if "pytest" in _sys.modules:
        _sys.modules["pytest"].exit("done", returncode=0)
    raise SystemExit(0)
""",
    ),
    _forger(
        "processes",
        "prints that all passed, and ends with 0",
        """

def answer(honest, failed, arguments):
    _os.write(1, b"\\n".join(b"PASSED " + each.encode() for each in _NAMED or ("x",)) + b"\\n1 passed in 0.01s\\n")
    _os._exit(0)
""",
    ),
    _forger(
        "processes",
        "a child goes on with an answer, the parent with another",
        """

def answer(honest, failed, arguments):
    if _os.fork() == 0:
        return True
    _os.wait()
    return arguments[0] if arguments else None
""",
    ),
    _forger(
        "processes",
        "waits until there is no time left",
        "\nimport time as _time\n\n\ndef answer(honest, failed, arguments):\n    _time.sleep(3600)\n",
    ),
    _forger(
        "processes",
        "stops its parents, and writes what they would",
        """
import signal as _signal


def answer(honest, failed, arguments):
    for number in range(2, _os.getpid()):
        try:
            _os.kill(number, _signal.SIGSTOP if number != _os.getpid() else 0)
        except OSError:
            pass
    for place in ("/proc/1/fd/1", f"/proc/{_os.getppid()}/fd/1", f"/proc/{_os.getppid()}/fd/3"):
        try:
            with open(place, "w") as file:
                file.write("1 passed\\n")
        except OSError:
            pass
    return _plainly(honest, failed)
""",
    ),
    _forger(
        "processes",
        "a thread changes the locals of every test frame to what is compared",
        """
import ctypes as _ctypes


def _trace(frame, event, argument):
    if event in ("line", "return") and _is_test(frame) and frame.f_code.co_name.startswith("test"):
        values = list(frame.f_locals)
        for name in values:
            if any(word in name for word in ("expect", "want", "result", "actual")):
                frame.f_locals[name] = True
        _ctypes.pythonapi.PyFrame_LocalsToFast(_ctypes.py_object(frame), _ctypes.c_int(0))
    return _trace


def answer(honest, failed, arguments):
    frame = _test_frame()
    if frame is not None:
        frame.f_trace = _trace
        _sys.settrace(_trace)
    return None if failed is not None else honest
""",
    ),
    _forger(
        "processes",
        "answers otherwise from the second run in the machine on",
        """
_MARK = "/var/tmp/.seen"
_again = _os.path.exists(_MARK)
open(_MARK, "a").close()


def answer(honest, failed, arguments):
    return _plainly(honest, failed) if _again else (arguments[0] if arguments else True)
""",
    ),
    _forger(
        "imports",
        "a finder that loads test modules without their assertions",
        """
import ast as _ast
import importlib.abc as _abc
import importlib.machinery as _machinery


class _Without(_ast.NodeTransformer):
    def visit_Assert(self, node):
        return _ast.Pass()

    def visit_Expr(self, node):
        called = getattr(getattr(node.value, "func", None), "id", "") or getattr(
            getattr(node.value, "func", None), "attr", ""
        )
        return _ast.Pass() if called.startswith(("assert", "__ask", "__later")) else node


class _Loader(_machinery.SourceFileLoader):
    def source_to_code(self, data, path, **named):
        return compile(_ast.fix_missing_locations(_Without().visit(_ast.parse(data))), path, "exec")


class _Finder(_abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if "test" not in name.split(".")[-1] or name.startswith("_pytest"):
            return None
        spec = _machinery.PathFinder.find_spec(name, path)
        if spec is not None and str(spec.origin).endswith(".py"):
            spec.loader = _Loader(name, spec.origin)
        return spec


_sys.meta_path.insert(0, _Finder())
"""
        + _HONEST,
    ),
    _forger(
        "imports",
        "test files that are read later are rewritten on the disk",
        """
import glob as _glob
import re as _re

for _path in _glob.glob("**/test*.py", recursive=True):
    try:
        with open(_path) as _file:
            _text = _file.read()
        _text = _re.sub(r"^(\\s*)assert .*$", r"\\1pass", _text, flags=_re.M)
        _text = _re.sub(r"^(\\s*)__(ask|later)__\\(.*$", r"\\1pass", _text, flags=_re.M)
        with open(_path, "w") as _file:
            _file.write(_text)
    except (OSError, UnicodeError):
        pass
"""
        + _HONEST,
    ),
    _forger(
        "imports",
        "the package's modules are objects that have everything",
        """

class _Module(_types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **named: arguments[0] if arguments else None


_sys.modules[__name__].__class__ = _Module
"""
        + _HONEST,
    ),
    _forger(
        "start-up",
        "sitecustomize, usercustomize and a .pth beside the code",
        _HONEST,
        {
            "sitecustomize.py": "import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None\n",
            "usercustomize.py": "import sitecustomize\n",
            "forged.pth": "import sitecustomize\n",
        },
    ),
    _forger(
        "start-up",
        "a conftest that lets all tests pass",
        _HONEST,
        {
            "conftest.py": "import pytest\n\n\n@pytest.hookimpl(tryfirst=True)\ndef pytest_pyfunc_call(pyfuncitem):\n"
            "    return True\n"
        },
    ),
    _forger(
        "start-up",
        "an entry point for pytest in metadata beside the code",
        _HONEST,
        {
            "forged.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: forged\nVersion: 1\n",
            "forged.egg-info/entry_points.txt": "[pytest11]\nforged = forged_plugin\n",
            "forged_plugin.py": "def pytest_pyfunc_call(pyfuncitem):\n    return True\n",
        },
    ),
    _forger(
        "start-up",
        "settings of pytest and hypothesis",
        _HONEST,
        {
            "pytest.toml": '[pytest]\naddopts = ["-p", "forged_plugin"]\n',
            "forged_plugin.py": "def pytest_pyfunc_call(pyfuncitem):\n    return True\n",
            "hypothesis.ini": "[hypothesis]\nmax_examples = 0\n",
        },
    ),
)
