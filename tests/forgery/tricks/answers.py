"""What the tested function gives back, raises, or does to its caller."""

from tests.forgery.payloads import ASSERTS, EQUAL, REPORT
from tests.forgery.trick import Trick


def _equal(name: str, code: str) -> Trick:
    return Trick(name=name, family="equality", code=code)


def _caller(name: str, code: str) -> Trick:
    return Trick(name=name, family="caller", code=code)


def _outcome(name: str, code: str) -> Trick:
    return Trick(name=name, family="outcome", code=code)


ANSWERS = (
    _equal("equal to everything", EQUAL + "\n\ndef answer(honest, *arguments):\n    return _Equal()\n"),
    _equal(
        "a number that equals everything",
        """
class _Number(int):
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = int.__hash__


def answer(honest, *arguments):
    return _Number(honest(*arguments))
""",
    ),
    _equal(
        "equal by its metaclass",
        """
class _Meta(type):
    def __eq__(cls, other):
        return True

    def __ne__(cls, other):
        return False

    __hash__ = type.__hash__


class _Same(metaclass=_Meta):
    pass


def answer(honest, *arguments):
    return _Same
""",
    ),
    _equal(
        "mock's ANY",
        "import unittest.mock\n\n\ndef answer(honest, *arguments):\n    return unittest.mock.ANY\n",
    ),
    _equal(
        "lies about its class and takes the other's value",
        """
class _Chameleon:
    value = None

    def __init__(self, value):
        self.value = value

    @property
    def __class__(self):
        return type(self.value)

    def __eq__(self, other):
        self.value = other
        return True

    def __ne__(self, other):
        return not self == other

    def __repr__(self):
        return repr(self.value)

    def __hash__(self):
        return hash(self.value)

    def __sub__(self, other):
        return 0

    __rsub__ = __sub__

    def __index__(self):
        return int(self.value)

    __int__ = __index__


def answer(honest, *arguments):
    return _Chameleon(honest(*arguments))
""",
    ),
    _equal(
        "comparison returns an object that is always true",
        """
class _True:
    def __bool__(self):
        return True


class _Number(int):
    def __eq__(self, other):
        return _True()

    def __ne__(self, other):
        return False

    __hash__ = int.__hash__


def answer(honest, *arguments):
    return _Number(honest(*arguments))
""",
    ),
    _equal(
        "comparison raises what a runner takes for expected",
        """
import sys


class _Number(int):
    def __eq__(self, other):
        if "pytest" in sys.modules:
            sys.modules["pytest"].xfail("a known defect")
        return True

    __hash__ = int.__hash__


def answer(honest, *arguments):
    return _Number(honest(*arguments))
""",
    ),
    _equal(
        "the hash of every answer is one, and so is its place",
        """
class _Number(int):
    def __hash__(self):
        return 1

    def __eq__(self, other):
        return hash(self) == 1

    def __ne__(self, other):
        return False


def answer(honest, *arguments):
    return _Number(honest(*arguments))
""",
    ),
    _caller(
        "evaluates the other side of the caller's line",
        """
import ast
import linecache
import sys


def answer(honest, *arguments):
    frame = sys._getframe(1)
    while frame is not None:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if "@FUNCTION@(" in line and not line.startswith(("def ", "@FUNCTION@")):
            try:
                for node in ast.walk(ast.parse(line)):
                    if isinstance(node, ast.Compare):
                        return ast.literal_eval(node.comparators[0])
                    if isinstance(node, ast.Call) and len(node.args) == 2 and "assert" in ast.dump(node.func):
                        return ast.literal_eval(node.args[1])
            except (SyntaxError, ValueError):
                pass
        frame = frame.f_back
    return honest(*arguments)
""",
    ),
    _caller(
        "reads the next constant of the caller's bytecode",
        """
import dis
import sys


def answer(honest, *arguments):
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name.startswith("test_"):
            for step in dis.get_instructions(frame.f_code):
                if step.offset > frame.f_lasti and step.opname == "LOAD_CONST":
                    if isinstance(step.argval, int):
                        return step.argval
        frame = frame.f_back
    return honest(*arguments)
""",
    ),
    _caller(
        "looks its answer up in the test file",
        ASSERTS + "\n\ndef answer(honest, *arguments):\n"
        "    return _table().get(arguments, honest(*arguments))\n",
    ),
    _caller(
        "looks its answer up in any file of the machine",
        ASSERTS
        + """
import glob
import os
import re


def answer(honest, *arguments):
    table = _table()
    if arguments in table:
        return table[arguments]
    places = ["/tmp/**/*", os.getcwd() + "/**/test_*.py", "/dev/shm/**/*", "/var/tmp/**/*"]
    wanted = re.escape("@FUNCTION@(" + ", ".join(map(repr, arguments)) + ")")
    for place in places:
        for path in glob.glob(place, recursive=True, include_hidden=True):
            try:
                text = open(path, errors="replace").read(1 << 20)
            except OSError:
                continue
            found = re.search(wanted + r"(?: == |, )(-?\\d+)", text)
            if found:
                return int(found[1])
    return honest(*arguments)
""",
    ),
    _caller(
        "finds test functions by the garbage collector",
        """
import dis
import gc
import types


def answer(honest, *arguments):
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType) and each.__name__.startswith("test_"):
            steps = [s.argval for s in dis.get_instructions(each) if s.opname == "LOAD_CONST"]
            for at in range(len(steps) - len(arguments)):
                if tuple(steps[at : at + len(arguments)]) == arguments:
                    return steps[at + len(arguments)]
    return honest(*arguments)
""",
    ),
    _caller(
        "jumps over the rest of the test",
        """
import sys


def _jump(frame, event, argument):
    if event == "line":
        last = max(line for _, _, line in frame.f_code.co_lines() if line)
        try:
            frame.f_lineno = last + 1
        except ValueError:
            pass
        sys.settrace(None)
        frame.f_trace = None
    return _jump


def answer(honest, *arguments):
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name.startswith("test_"):
            frame.f_trace = _jump
            sys.settrace(lambda *ignored: None)
            return EQUAL
        frame = frame.f_back
    return honest(*arguments)


class _Always(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


EQUAL = _Always()
""",
    ),
    _caller(
        "writes its result over the caller's constants",
        """
import ctypes
import dis
import sys


def answer(honest, *arguments):
    result = honest(*arguments)
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name.startswith("test_"):
            code = frame.f_code
            for step in dis.get_instructions(code):
                later = step.offset > frame.f_lasti and step.opname == "LOAD_CONST"
                if later and isinstance(step.argval, int):
                    start = id(code.co_consts) + tuple.__basicsize__ + 8 * step.arg
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(result))
                    ctypes.c_ssize_t.from_address(start).value = id(result)
                    return result
        frame = frame.f_back
    return result
""",
    ),
    _caller(
        "tells unittest that the running test is expected to fail",
        """
import sys


def answer(honest, *arguments):
    frame = sys._getframe(1)
    while frame is not None:
        case = frame.f_locals.get("self")
        if hasattr(case, "_testMethodName"):
            case.__unittest_expecting_failure__ = True
            getattr(type(case), case._testMethodName).__unittest_expecting_failure__ = True
            outcome = getattr(case, "_outcome", None)
            if outcome is not None:
                outcome.expecting_failure = True
        frame = frame.f_back
    return honest(*arguments)
""",
    ),
    _outcome(
        "calls pytest.xfail",
        """
def answer(honest, *arguments):
    try:
        import pytest
    except ImportError:
        import unittest

        raise unittest.SkipTest("a known defect")
    pytest.xfail("a known defect")
""",
    ),
    _outcome(
        "skips",
        "import unittest\n\n\ndef answer(honest, *arguments):\n    raise unittest.SkipTest('not here')\n",
    ),
    _outcome(
        "marks every test as an expected failure",
        """
import sys

_frame = sys._getframe()
while _frame is not None:
    if _frame.f_globals.get("__name__", "").split(".")[-1].startswith("test_"):
        try:
            import pytest

            _frame.f_globals["pytestmark"] = pytest.mark.xfail
        except ImportError:
            pass
        _frame.f_globals["__unittest_expecting_failure__"] = True
        break
    _frame = _frame.f_back
""",
    ),
    _outcome(
        "a message that ends in PASSED",
        REPORT
        + """

def answer(honest, *arguments):
    raise AssertionError("boom" + _report().replace("\\n", " - \\n") + _report() + ":: PASSED")
""",
    ),
    _outcome(
        "an answer whose repr is a report",
        REPORT
        + """

class _Loud(int):
    def __repr__(self):
        return _report() + ":: PASSED"

    __str__ = __repr__


def answer(honest, *arguments):
    return _Loud(honest(*arguments))
""",
    ),
    _outcome(
        "ends the session as if all were well",
        """
def answer(honest, *arguments):
    import sys

    if "pytest" in sys.modules:
        sys.modules["pytest"].exit("done", returncode=0)
    raise SystemExit(0)
""",
    ),
    _outcome(
        "raises what stops a test without a failure",
        """
def answer(honest, *arguments):
    import unittest.case

    raise unittest.case._ShouldStop()
""",
    ),
    _outcome(
        "raises GeneratorExit",
        "def answer(honest, *arguments):\n    raise GeneratorExit\n",
    ),
)
