"""Forgers of a second attack in the process of the tests: lies of types, of the interpreter, of fresh inputs."""

from tests.forgery.real.forgers.scheme import _QUESTIONS
from tests.forgery.trick import Trick


def _leaves(name: str, body: str) -> Trick:
    """Changes what is told of each question."""
    changed = (
        f"{_QUESTIONS}\n_swallow = True\n\n\ndef _change(number, leaves):\n{body}\n\n\n_between(_change)\n"
    )
    return Trick(name=name, family="scheme", code=changed)


def _lie(name: str, code: str, family: str = "equality") -> Trick:
    return Trick(name=name, family=family, code=code)


INSIDE = (
    _leaves(
        "the first argument of the call that was asked last",
        "    return [_last[0] if _last else leaf for leaf in leaves]",
    ),
    _leaves(
        "an object of a class of the package in place of an object",
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
        "the locals of the running test, the last that cannot be called",
        """    frame = _test_frame()
    held = [each for each in (frame.f_locals if frame else {}).values() if not callable(each)]
    return [held[-1] if held else leaf for leaf in leaves]""",
    ),
    _lie(
        "a number that is int by its names alone, and has another class to who asks",
        """
class _Number(int):
    __slots__ = ()
    __class__ = property(lambda self: object)

    def __eq__(self, other):
        return True

    __hash__ = None


_Number.__module__, _Number.__name__, _Number.__qualname__ = "builtins", "int", "int"


def answer(honest, failed, arguments):
    return _Number(arguments[0]) if arguments and type(arguments[0]) is int else honest
""",
    ),
    _lie(
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
    _lie(
        "an array of objects, of which there are none",
        """
def answer(honest, failed, arguments):
    try:
        import numpy
    except ImportError:
        return []
    return numpy.array([], dtype=object)
""",
    ),
    _lie(
        "an infinite number in place of each number",
        """
def answer(honest, failed, arguments):
    return float("inf")
""",
    ),
    _lie(
        "a time in a zone of its own",
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
    _lie(
        "a class whose class says that all are its instances",
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
    _lie(
        "a tracer that changes the locals of the teller",
        """
import ctypes as _ctypes
import sys as _sys


def _traced(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "ask":
        frame.f_locals["leaves"] = (True, True)
        _ctypes.pythonapi.PyFrame_LocalsToFast(_ctypes.py_object(frame), _ctypes.c_int(0))
    return _traced


_sys.settrace(_traced)
_sys.setprofile(_traced)
""",
        "interpreter",
    ),
    _lie(
        "a signal in the midst of a question",
        """
import signal as _signal


def _rung(number, frame):
    while frame is not None:
        if frame.f_code.co_name in ("ask", "later"):
            raise KeyboardInterrupt
        frame = frame.f_back


_signal.signal(_signal.SIGALRM, _rung)
_signal.setitimer(_signal.ITIMER_REAL, 0.001, 0.001)
""",
        "interpreter",
    ),
    _lie(
        "the module of regular expressions finds all that is sought",
        """
import re as _re

_found = _re.compile("").match("")
_re.search = _re.match = _re.fullmatch = lambda *_, **__: _found
""",
        "interpreter",
    ),
    _lie(
        "every class that is made later is equal to all",
        """
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
        "interpreter",
    ),
    _lie(
        "fresh inputs are answered as the test's own first input is",
        """
_memory = {}


def answer(honest, failed, arguments):
    frame = _test_frame()
    name = frame.f_code.co_name if frame else ""
    known = _memory.setdefault(name.split("__fresh_")[0], [])
    if "__fresh_" not in name:
        known.append(honest)
        return _plainly(honest, failed)
    return known[0] if known else _plainly(honest, failed)
""",
        "fresh",
    ),
    _lie(
        "fresh inputs take all their time, and the tests of the task none",
        """
import time as _time


def answer(honest, failed, arguments):
    frame = _test_frame()
    if frame is not None and "__fresh_" in frame.f_code.co_name:
        for _ in range(20):
            try:
                _time.sleep(1)
            except Exception:
                continue
    return _plainly(honest, failed)
""",
        "fresh",
    ),
)
