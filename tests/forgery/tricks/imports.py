"""Code of the tested module that changes the runner while it is being imported."""

from tests.forgery.payloads import FORCE, FORCED, TEST_FILE
from tests.forgery.trick import Trick


def _patch(name: str, code: str) -> Trick:
    return Trick(name=name, family="import time", code=code)


IMPORTS = (
    _patch("the body of every test is skipped", FORCED),
    _patch(
        "reports are made to say passed",
        """
import sys

if "_pytest" in sys.modules:
    from _pytest import reports, runner

    def _made(cls, item, call, real=reports.TestReport.from_item_and_call.__func__):
        call.excinfo = None
        return real(cls, item, call)

    reports.TestReport.from_item_and_call = classmethod(_made)
import unittest
unittest.TestResult.addFailure = unittest.TestResult.addError = (
    lambda self, test, error: self.addSuccess(test)
)
try:
    unittest.TextTestResult.addFailure = unittest.TextTestResult.addError = unittest.TestResult.addFailure
except AttributeError:
    pass
""",
    ),
    _patch(
        "pluggy calls no test",
        """
import sys

if "pluggy" in sys.modules:
    import pluggy._hooks

    _call = pluggy._hooks.HookCaller.__call__

    def _quiet(self, **named):
        return True if self.name == "pytest_pyfunc_call" else _call(self, **named)

    pluggy._hooks.HookCaller.__call__ = _quiet
import unittest.case
unittest.case.TestCase._callTestMethod = lambda self, method: None
""",
    ),
    _patch(
        "a plug-in registered from a living configuration",
        """
import gc


class _Forge:
    def pytest_pyfunc_call(self, pyfuncitem):
        return True

    pytest_pyfunc_call.pytest_impl = {"tryfirst": True}


for _each in gc.get_objects():
    if type(_each).__name__ == "PytestPluginManager":
        try:
            import pytest

            _Forge.pytest_pyfunc_call = pytest.hookimpl(tryfirst=True)(_Forge.pytest_pyfunc_call)
            _each.register(_Forge())
        except Exception:
            pass
    elif type(_each).__name__ in ("TextTestResult", "TestResult"):
        _each.addFailure = lambda test, error, result=_each: result.addSuccess(test)
""",
    ),
    _patch(
        "unittest's assertions check nothing",
        """
import unittest

for _name in dir(unittest.TestCase):
    if _name.startswith("assert"):
        setattr(unittest.TestCase, _name, lambda self, *arguments, **named: None)
""",
    ),
    _patch(
        "AssertionError of the builtins is an expected failure",
        """
import builtins
import sys

if "_pytest" in sys.modules:
    import pytest

    def _expected(*arguments):
        return pytest.xfail.Exception("known")

    builtins.AssertionError = _expected
import unittest
unittest.TestCase.failureException = unittest.case._ShouldStop
unittest.TestCase.__unittest_expecting_failure__ = True
""",
    ),
    _patch(
        "test functions are replaced once they are defined",
        """
import sys
import threading
import time


def _empty(*arguments):
    return None


def _replace():
    for _ in range(200):
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").split(".")[-1].startswith("test_"):
                for value in list(vars(module).values()):
                    owners = [value, *vars(value).values()] if isinstance(value, type) else [value]
                    for each in owners:
                        if getattr(each, "__name__", "").startswith("test_") and hasattr(each, "__code__"):
                            each.__code__ = _empty.__code__
        time.sleep(0.001)


threading.Thread(target=_replace, daemon=True).start()
""",
    ),
    _patch(
        "a profile function empties test functions as they are called",
        """
import sys
import threading


def _watch(frame, event, argument):
    if event == "call" and frame.f_code.co_name.startswith("test_"):
        import gc

        def empty(*arguments):
            return None

        for each in gc.get_referrers(frame.f_code):
            if hasattr(each, "__code__"):
                each.__code__ = empty.__code__
    elif event == "call" and frame.f_code.co_name in ("pytest_pyfunc_call", "_callTestMethod"):
        item = frame.f_locals.get("pyfuncitem")
        if item is not None:
            item.obj.__code__ = (lambda *arguments: None).__code__
        method = frame.f_locals.get("method")
        if method is not None:
            method.__func__.__code__ = (lambda *arguments: None).__code__


sys.setprofile(_watch)
threading.setprofile(_watch)
""",
    ),
    _patch(
        "modules imported later lose their asserts",
        """
import ast
import builtins
import sys


class _Without(ast.NodeTransformer):
    def visit_Assert(self, node):
        return ast.copy_location(ast.Pass(), node)


def _compile(source, *arguments, real=builtins.compile, **named):
    if isinstance(source, (str, bytes)) and "assert" in str(source):
        try:
            source = ast.fix_missing_locations(_Without().visit(ast.parse(source)))
        except SyntaxError:
            pass
    return real(source, *arguments, **named)


builtins.compile = _compile
if "_pytest" in sys.modules:
    from _pytest.assertion import rewrite

    rewrite.rewrite_asserts = lambda module, *arguments, **named: _Without().visit(module)
""",
    ),
    _patch(
        "a finder that strips tests",
        """
import importlib.abc
import importlib.util
import sys


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[-1].startswith("test_"):
            return importlib.util.spec_from_loader(name, self)
        return None

    def exec_module(self, module):
        module.test_reported = module.test_others = lambda: None


sys.meta_path.insert(0, _Finder())
for _name in [name for name in sys.modules if name.split(".")[-1].startswith("test_")]:
    sys.modules[_name].__dict__["test_reported"] = lambda: None
""",
    ),
    _patch(
        "the module is an object that has everything",
        """
import sys
import types


class _Same:
    __doc__ = @FUNCTION@.__doc__

    def __call__(self, *arguments):
        return self

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = None


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Same()


_new = _Module(__name__)
_new.__file__, _new.__spec__ = __file__, __spec__
sys.modules[__name__] = _new
_parent = sys.modules.get(__name__.rpartition(".")[0])
if _parent is not None:
    setattr(_parent, __name__.rpartition(".")[2], _new)
""",
    ),
    _patch(
        "the importing module is given a load_tests and empty tests",
        TEST_FILE
        + """
import sys

_frame = sys._getframe()
while _frame is not None:
    _names = _frame.f_globals
    if _names.get("__name__", "").split(".")[-1].startswith("test_"):
        import ast
        import unittest

        _tree = ast.parse(open(_test_file()).read())
        for _node in ast.walk(_tree):
            if isinstance(_node, ast.ClassDef):
                _made = {each.name: lambda self: None for each in _node.body if hasattr(each, "name")}
                _made["__module__"] = _names["__name__"]
                _class = type(_node.name, (unittest.TestCase,), _made)
                _names["load_tests"] = lambda loader, *rest, c=_class: loader.loadTestsFromTestCase(c)
        break
    _frame = _frame.f_back
""",
    ),
    _patch(
        "subclasses of TestCase are expected to fail",
        """
import unittest


def _init_subclass(cls, **named):
    for name, value in list(vars(cls).items()):
        if name.startswith("test"):
            setattr(cls, name, unittest.expectedFailure(value))


unittest.TestCase.__init_subclass__ = classmethod(_init_subclass)
""",
    ),
    _patch(
        "the outcome of pytest's call is never an exception",
        """
import sys

if "_pytest" in sys.modules:
    from _pytest import runner

    def _from_call(cls, func, when, reraise=None, real=runner.CallInfo.from_call.__func__):
        def calm():
            try:
                return func()
            except BaseException:
                return None

        return real(cls, calm, when, reraise)

    runner.CallInfo.from_call = classmethod(_from_call)
import unittest
unittest.TestCase.run = lambda self, result=None: (
    result.startTest(self), result.addSuccess(self), result.stopTest(self)
) and result
""",
    ),
    _patch(
        "the terminal is told otherwise",
        """
import sys
import unittest.runner

if "_pytest" in sys.modules:
    from _pytest import terminal

    def _summary(self, real=terminal.TerminalReporter.short_test_summary):
        self.stats.setdefault("passed", []).extend(self.stats.pop("failed", []))
        for report in self.stats["passed"]:
            report.outcome = "passed"
        real(self)

    terminal.TerminalReporter.short_test_summary = _summary
    import _pytest.main

    _pytest.main.Session.testsfailed = property(lambda self: 0, lambda self, value: None)
unittest.runner.TextTestResult.addFailure = unittest.runner.TextTestResult.addSuccess.__get__
unittest.runner.TextTestResult.addFailure = (
    lambda self, test, error: unittest.runner.TextTestResult.addSuccess(self, test)
)
""",
    ),
    _patch(
        "code is added to every test by garbage collection",
        FORCE
        + """
import gc


class _Late:
    def __del__(self):
        _force()


_cycle = _Late()
_cycle.self = _cycle
del _cycle
gc.callbacks.append(lambda phase, info: _force())
""",
    ),
)
