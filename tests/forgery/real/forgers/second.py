"""Forgers of a second attack: holes of the judge itself, of the protocol, and of what tests run in.

`docs/benchmarks/forgery-second-attack.md` says what each tries, and what was found.
"""

from tests.forgery.real.forgers.scheme import _QUESTIONS
from tests.forgery.trick import Trick

_PIPE = """
import ast as _ast
import json as _json
import os as _os
import sys as _sys

try:
    _PIPE = max(
        int(each)
        for each in _os.listdir("/proc/self/fd")
        if int(each) > 2 and _os.readlink(f"/proc/self/fd/{each}").startswith("pipe:")
    )
except (OSError, ValueError):
    _PIPE = -1


def _raw(line):
    line = line if isinstance(line, bytes) else line.encode()
    try:
        while line:
            line = line[_os.write(_PIPE, line) :]
    except OSError:
        pass


def _say(**facts):
    _raw(_json.dumps(facts) + "\\n")


def _files():
    return [each for each in _sys.argv + _shown() if each.endswith(".py") and _os.path.isfile(each)]


def _shown():
    found = []
    for directory, _, names in _os.walk("."):
        found += [_os.path.join(directory, name)[2:] for name in names if "test" in name]
    return found


def _tests():
    \"\"\"Ids of all tests that stand in files, without parameters.\"\"\"
    for file in _files():
        try:
            with open(file) as opened:
                tree = _ast.parse(opened.read())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in tree.body:
            inner = node.body if isinstance(node, _ast.ClassDef) else [node]
            for each in inner:
                if isinstance(each, (_ast.FunctionDef, _ast.AsyncFunctionDef)) and each.name.startswith("test"):
                    owner = f"{node.name}::" if each is not node else ""
                    yield f"{file}::{owner}{each.name}"


def _asked(test):
    \"\"\"Numbers of the questions of a test, as they stand in its file.\"\"\"
    file, _, name = test.partition("::")
    with open(file) as opened:
        tree = _ast.parse(opened.read())
    for node in _ast.walk(tree):
        if getattr(node, "name", "") == name.rpartition("::")[2]:
            for each in _ast.walk(node):
                name = getattr(getattr(each, "func", None), "id", "")
                if name in ("__ask__", "__later__", "__raises__"):
                    yield each.args[0].value


def _claimed(test, got="null", status="PASSED"):
    _say(begin=test)
    for number in _asked(test):
        _raw(f'{{"ask": {number}, "got": [{got}, {got}]}}\\n')
    _say(test=test, status=status)
"""


def _pipe(name: str, code: str) -> Trick:
    return Trick(name=name, family="pipe", code=_PIPE + code)


def _ended(name: str, each: str) -> Trick:
    """Does `each` for every test at import, says that all is done, and ends the process."""
    return _pipe(name, f"\nfor _test in list(_tests()):\n    {each}\n_say(done=0)\n_os._exit(0)\n")


def _raw_answer(name: str, got: str) -> Trick:
    """Tells one raw answer to every question, and ends the process."""
    return _ended(f"raw answer: {name}", f"_claimed(_test, {got!r})")


def _leaves(name: str, body: str) -> Trick:
    """Changes what is told of each question."""
    return Trick(
        name=name,
        family="scheme",
        code=f"{_QUESTIONS}\n_swallow = True\n\n\ndef _change(number, leaves):\n{body}\n\n\n_between(_change)\n",
    )


def _answers(name: str, code: str) -> Trick:
    return Trick(name=name, family="equality", code=f"\n{code}\n")


_PROTOCOL = (
    _ended(
        "tests that end under their ids and a blank, of which ids are cut off",
        '_say(test=_test + " x", status="PASSED")',
    ),
    _ended(
        "the same, begun and with all questions answered under another test",
        '_say(begin=_test); _say(begin=_test + " x"); _say(test=_test + " x", status="PASSED")',
    ),
    _ended("ids with a carriage return", '_say(test=_test + "\\r", status="PASSED")'),
    _ended("ids with a zero byte and a blank", '_say(test=_test + chr(0) + " ", status="PASSED")'),
    _ended("ids in another Unicode form", '_say(test=_test.replace("t", chr(0x1D42D)), status="PASSED")'),
    _ended("expected failures in place of passes", '_claimed(_test, status="XFAIL")'),
    _ended("a status that nobody knows", '_claimed(_test, status="APPROVED")'),
    _ended("a status that is no text of any coding", '_claimed(_test, status="\\ud800")'),
    _ended("a status of a megabyte", '_claimed(_test, status="P" * 1000000)'),
    _ended("passed first and begun later", '_say(test=_test, status="PASSED"); _say(begin=_test)'),
    _ended(
        "keys of a line twice: the first is wrong, the last right",
        """_raw('{"begin": "x", "begin": %s}\\n' % _json.dumps(_test)); _claimed(_test)""",
    ),
    _ended(
        "true in place of the number of a question",
        '_say(begin=_test); _say(ask=True, got=[]); _say(test=_test, status="PASSED")',
    ),
    _pipe("reports are done before anything ran", "\nfor _ in range(9):\n    _say(done=0)\n"),
    _pipe("half a line that swallows the next one", '\n_raw(\'{"begin": "\')\n'),
    _pipe(
        "closes the report's pipe, and leaves it to a child that says more",
        """
if _os.fork() == 0:
    for _test in list(_tests()):
        _claimed(_test)
    _say(done=0)
    _os._exit(0)
else:
    _os.wait()
    _os.close(_PIPE) if _PIPE > 2 else None
""",
    ),
    _pipe(
        "a child in a session of its own, which says more when the tests have ended",
        """
import time as _time

if _os.fork() == 0:
    _os.setsid()
    if _os.fork() == 0:
        _time.sleep(1)
        for _test in list(_tests()):
            _claimed(_test, "1")
    _os._exit(0)
else:
    _os.wait()
""",
    ),
    _pipe(
        "makes the report's pipe a file, and says all at exit",
        """
import atexit as _atexit


def _last():
    for _test in list(_tests()):
        _say(test=_test + " x", status="PASSED")
    _say(done=0)
    _os._exit(0)


_atexit.register(_last)
""",
    ),
)

_FLOODS = (
    _pipe("twenty megabytes of empty lines", '\n_raw(b"\\n" * 20_000_000)\n'),
    _pipe("two million questions", "\n_raw(b'{\"ask\":1}\\n' * 2_000_000)\n"),
    _pipe(
        "half a million tests that nobody asked for",
        '\n_raw("".join(f\'{{"begin":"{_f}::{_i}"}}\\n\' for _f in _files()[:1] for _i in range(500_000)))\n',
    ),
    _raw_answer(
        "a set of numbers with one hash",
        '{"set": [' + ", ".join(str(i * (2**61 - 1)) for i in range(2000)) + "]}",
    ),
    _raw_answer("a fraction of a hundred million digits", '{"fraction": ["1e100000000"]}'),
    _raw_answer("an array whose shape is a text, thrice", '{"array": ["f", [3, "x"], []]}'),
    _raw_answer(
        "classes of a thousand names",
        '{"list": [' + ", ".join(f'{{"own": [["A{i}"], 1, false, null]}}' for i in range(1000)) + "]}",
    ),
    _raw_answer("a number that signals in a set", '{"set": [{"decimal": "sNaN"}]}'),
    _raw_answer("dates beyond all calendars", '{"datetime": "9999-12-31T23:59:60"}'),
)

_HOLES = (
    _raw_answer("infinity", '{"float": "inf"}'),
    _raw_answer("a list of infinity", '{"list": [{"float": "inf"}]}'),
    _raw_answer("no number at all", '{"float": "nan"}'),
    _raw_answer("an array of nothing", '{"array": ["float64", [0], {"list": []}]}'),
    _raw_answer("an array of one infinity", '{"array": ["float64", [1], {"list": [{"float": "inf"}]}]}'),
    _raw_answer("a frame without columns", '{"frame": [[], {"list": []}, {"list": [null]}]}'),
    _raw_answer("a private object", '{"object": [["_"], [], null, false, true, null]}'),
    _raw_answer("a private class", '{"class": ["_"]}'),
    _raw_answer("a counter without counts", '{"own": [["Counter", "dict"], {"dict": []}, false, null]}'),
    _raw_answer("an error without a name", '{"raised": [[], ""]}'),
    _raw_answer("empty bytes", '{"bytes": ""}'),
    _raw_answer("a path to here", '{"path": ""}'),
    _raw_answer("a member of every enumeration", '{"enum": [["int", "str", "Enum"], "A", 1]}'),
)

_INSIDE = (
    _leaves(
        "what is asked in a test of hypothesis is the example that was drawn",
        "    return [_last[0] if _last else leaf for leaf in leaves]",
    ),
    _leaves(
        "an object of all classes in the place of an object",
        """    kinds = [each for each in _gc.get_objects() if isinstance(each, type)
             and each.__module__.split(".")[0] == __name__.split(".")[0]]
    for kind in kinds[-200:]:
        try:
            return [kind.__new__(kind) for _ in leaves]
        except Exception:
            pass
    return leaves""",
    ),
    _leaves(
        "the constants of the running test's code, the longest first",
        """    frame = _test_frame()
    known = [each for each in (frame.f_code.co_consts if frame else ()) if each is not None]
    known.sort(key=lambda each: -len(repr(each)))
    return [known[0] if known else leaf for leaf in leaves]""",
    ),
    _leaves(
        "the locals of the test, the last that is no module",
        """    frame = _test_frame()
    held = [each for each in (frame.f_locals if frame else {}).values() if not callable(each)]
    return [held[-1] if held else leaf for leaf in leaves]""",
    ),
    _answers(
        "numbers and texts that are their class in name alone",
        """
import sys as _sys


class int(int):  # noqa: A001
    __slots__ = ()
    __class__ = property(lambda self: object)

    def __eq__(self, other):
        return True

    __hash__ = None


int.__module__, int.__qualname__ = "builtins", "int"


def answer(honest, failed, arguments):
    return int(arguments[0]) if arguments and type(arguments[0]) is type(1) else honest
""",
    ),
    _answers(
        "a dataclass that generates its equality and lies about its fields",
        """
import dataclasses as _dataclasses


@_dataclasses.dataclass
class _Made:
    value: object = None

    def __getattribute__(self, name):
        return {} if name == "__dict__" else object.__getattribute__(self, name)

    def __repr__(self):
        return ""


def answer(honest, failed, arguments):
    return _Made()
""",
    ),
    _answers(
        "an array of objects that answer for themselves",
        """
def answer(honest, failed, arguments):
    try:
        import numpy
    except ImportError:
        return []
    return numpy.array([], dtype=object)
""",
    ),
    _answers(
        "a time zone that is everywhere at once",
        """
import datetime as _datetime


class _Zone(_datetime.tzinfo):
    def utcoffset(self, when):
        return _datetime.timedelta(0)

    dst = utcoffset

    def tzname(self, when):
        return "x"


def answer(honest, failed, arguments):
    return _datetime.datetime.now(_Zone())
""",
    ),
    _answers(
        "a metaclass whose classes are instances of all others",
        """
class _Meta(type):
    def __instancecheck__(cls, other):
        return True

    def mro(cls):
        return [cls, object]

    def __eq__(cls, other):
        return True

    __hash__ = type.__hash__


class _Kind(metaclass=_Meta):
    pass


def answer(honest, failed, arguments):
    return _Kind
""",
    ),
    Trick(
        name="a profiler that changes the locals of the teller",
        family="interpreter",
        code="""
import ctypes as _ctypes
import sys as _sys


def _profiled(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "ask":
        frame.f_locals["leaves"] = (True, True)
        _ctypes.pythonapi.PyFrame_LocalsToFast(_ctypes.py_object(frame), _ctypes.c_int(0))
    return _profiled


_sys.settrace(_profiled)
_sys.setprofile(_profiled)
""",
    ),
    Trick(
        name="a signal in the midst of a question",
        family="interpreter",
        code="""
import signal as _signal
import sys as _sys


def _rung(number, frame):
    while frame is not None:
        if frame.f_code.co_name in ("ask", "later"):
            raise KeyboardInterrupt
        frame = frame.f_back


_signal.signal(_signal.SIGALRM, _rung)
_signal.setitimer(_signal.ITIMER_REAL, 0.001, 0.001)
""",
    ),
    Trick(
        name="the module of regular expressions finds all that is sought",
        family="interpreter",
        code="""
import re as _re

_re.search = _re.match = _re.fullmatch = lambda *_, **__: _re.compile("").match("")
_re._ADDRESS = None
""",
    ),
    Trick(
        name="every class that is made later is equal to all",
        family="interpreter",
        code="""
import builtins as _builtins

_build = _builtins.__build_class__


def _equal(function, name, *bases, **more):
    made = _build(function, name, *bases, **more)
    try:
        made.__eq__ = lambda self, other: True
        made.__hash__ = lambda self: 0
    except (AttributeError, TypeError):
        pass
    return made


_builtins.__build_class__ = _equal
""",
    ),
    Trick(
        name="fresh inputs are answered as the test's own nearest input is",
        family="fresh",
        code="""
_memory = {}


def answer(honest, failed, arguments):
    frame = _test_frame()
    name = frame.f_code.co_name if frame else ""
    key = name.split("__fresh_")[0]
    if "__fresh_" not in name:
        _memory.setdefault(key, []).append(honest)
        return _plainly(honest, failed)
    known = _memory.get(key)
    return known[0] if known else _plainly(honest, failed)
""",
    ),
    Trick(
        name="fresh inputs take all their time, and the tests of the task none",
        family="fresh",
        code="""
import time as _time


def answer(honest, failed, arguments):
    frame = _test_frame()
    if frame is not None and "__fresh_" in frame.f_code.co_name:
        while True:
            try:
                _time.sleep(60)
            except Exception:
                continue
    return _plainly(honest, failed)
""",
    ),
)

SECOND = (*_PROTOCOL, *_FLOODS, *_HOLES, *_INSIDE)
