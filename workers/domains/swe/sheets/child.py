"""What a question sheet calls inside the sandbox: it tells what tested code computed, and judges nothing.

`runner.py` loads this file (Python 3.7 or later, standard library only) in the process of the tests, before
any tested code, and puts `installed`'s functions among the builtins. What is needed later is bound here,
because tests may patch `json.dumps` or `os.write`.

Values are told as JSON: `None`, booleans, integers and text as they are; anything else as an object whose one
key names its kind (`values.py` reads them). Lying containers are read by their base class's own methods. An
object is told by the names of its classes, its public fields, and its `repr` where a class other than
`object` defines one, without addresses.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import signal
import threading
import types
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ANSWER_LIMIT = 65536
"""Characters of one told value; of a longer one only length and digest are told."""
TOTAL_LIMIT = 16 * 1024 * 1024
DEPTH = 40
NODES = 20000
"""Values that one told value may be made of; objects that hold each other would have no end."""
FIELDS = 200
"""Fields of one object that are told at most."""
_ADDRESS = re.compile(r"\bat 0x[0-9A-Fa-f]+")
_MARK = re.compile(r'__ask__ (\d+)(?: (".*"))?\n').fullmatch
"""What a sheet has in place of what an example prints; with that behind it in a key."""
_PLAIN = (int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict)

_dumps = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
_write, _getpid, _sha256 = os.write, os.getpid, hashlib.sha256
_timer = signal.setitimer
_CLOCKS = {signal.SIGALRM: signal.ITIMER_REAL, signal.SIGPROF: signal.ITIMER_PROF}
_list, _tuple, _dict, _set = list.__iter__, tuple.__iter__, dict.items, set.__iter__
_frozenset, _str, _int, _float = frozenset.__iter__, str.__str__, int.__int__, float.__repr__
_ITERATED: dict[type, Any] = {list: _list, tuple: _tuple, set: _set, frozenset: _frozenset}


class TokenUsed(Exception):
    """A literal was needed that the sheet holds back, because it stands on the side of the answers too."""


class TooMuch(Exception):
    """A value is made of more than NODES others."""


_encoding = threading.RLock()
_left = [NODES]
"""Of the value that is being told."""


class Teller:
    """Writes to the report pipe, in the process of the tests alone and not beyond TOTAL_LIMIT."""

    def __init__(self, report: int) -> None:
        self.report = report
        self.process = _getpid()
        self.left = TOTAL_LIMIT
        self.lock = threading.RLock()

    def here(self) -> None:
        """Lets the current process tell, which was forked to run a test."""
        self.process = _getpid()

    def tell(self, **facts: Any) -> None:
        if _getpid() != self.process:
            return
        line = (_dumps(facts) + "\n").encode()
        with self.lock:
            self.left -= len(line)
            if self.left < 0:
                return
            while line:
                line = line[_write(self.report, line) :]


def told(value: Any) -> Any:
    """Returns the value as JSON, or its length and digest where that is too long."""
    try:
        with _encoding:
            _left[0] = NODES
            answer = encoded(value, DEPTH)
        text = _dumps(answer)
    except (RecursionError, TooMuch):
        return {"deep": type(value).__name__}
    except TokenUsed:
        raise
    except Exception as error:  # of a method of tested code
        return {"unreadable": type(error).__name__}
    if len(text) > ANSWER_LIMIT:
        text = _dumps(canonical(answer))
        return {"long": [len(text), _sha256(text.encode()).hexdigest()]}
    return answer


def canonical(answer: Any) -> Any:
    """Returns an answer so that equal ones are told alike, of whatever class their numbers and containers
    are."""
    if isinstance(answer, list):
        return [canonical(each) for each in answer]
    if not isinstance(answer, dict):
        return int(answer) if isinstance(answer, bool) else answer
    ((kind, body),) = answer.items()
    if kind == "float":
        number = float(body)
        return int(number) if number.is_integer() else answer
    if kind == "own" and not body[2]:
        return canonical(body[1])
    if kind == "dict":
        return {kind: sorted(map(canonical, body), key=_dumps)}
    return {kind: canonical(body)}


def encoded(value: Any, depth: int) -> Any:
    _left[0] -= 1
    if _left[0] < 0:
        raise TooMuch
    kind = type(value)
    if value is None or kind is bool or kind is int or kind is str:
        return value
    if depth <= 0:
        return {"deep": kind.__name__}
    if kind.__module__ == "numpy" and hasattr(value, "item") and not hasattr(value, "__len__"):
        return encoded(value.item(), depth - 1)
    if kind.__name__ == "_Call" and kind.__module__ == "unittest.mock":
        return {"tuple": [encoded(each, depth - 1) for each in _tuple(value) if each != ""]}
    for base in _PLAIN:
        if kind is base or issubclass(kind, base):
            plain = _plain(value, base, depth)
            if kind is base:
                return plain
            if _enum(kind):
                return {"enum": [names_of(kind), value.name or str(plain), plain]}
            fields = kind._fields if base is tuple and hasattr(kind, "_fields") else None
            return {"own": [names_of(kind), plain, defines_equality(kind, base), fields and list(fields)]}
    return _object(value, kind, depth)


def _plain(value: Any, base: type, depth: int) -> Any:
    if base is int:
        return _int(value)
    if base is float:
        return {"float": _float(value)}
    if base is complex:
        return {"complex": [_float(value.real), _float(value.imag)]}
    if base is str:
        return _str(value)
    if base in (bytes, bytearray):
        return {base.__name__: bytes(value).hex()}
    if base is dict:
        pairs = [[encoded(k, depth - 1), encoded(v, depth - 1)] for k, v in _dict(value)]
        return {"dict": pairs if type(value).__name__ == "OrderedDict" else sorted(pairs, key=_dumps)}
    items = [encoded(item, depth - 1) for item in _ITERATED[base](value)]
    if base in (set, frozenset):
        items = sorted(items, key=_dumps)
    return {base.__name__: items}


def _object(value: Any, kind: type, depth: int) -> Any:
    if isinstance(value, type):
        return {"class": names_of(value)}
    if kind in (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType):
        return {"named": getattr(value, "__name__", "")}
    names = names_of(kind)
    if _enum(kind):
        return {"enum": [names, value.name or str(value.value), encoded(value.value, depth - 1)]}
    module = kind.__module__.partition(".")[0]
    if module == "datetime" and kind.__name__ in ("datetime", "date", "time"):
        return {kind.__name__: value.isoformat()}
    if module == "datetime" and kind.__name__ == "timedelta":
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    if module == "decimal":
        return {"decimal": str(value)}
    if module == "fractions":
        return {"fraction": [value.numerator, value.denominator]}
    if module == "pathlib":
        return {"path": str(value)}
    if module in ("datetime", "uuid", "zoneinfo", "ipaddress"):
        return {"text": [names, _ADDRESS.sub("", repr(value))]}
    if module == "re" and hasattr(value, "pattern"):
        return {"text": [names, _dumps([encoded(value.pattern, 3), value.flags])]}
    if isinstance(value, BaseException):
        return {"error": [names, str(value), encoded(value.args, depth - 1)]}
    special = _library(value, kind, module, names, depth)
    if special is not None:
        return special
    compared = compared_fields(kind)
    if compared is not None:
        pairs = [[name, encoded(getattr(value, name, None), depth - 1)] for name in compared]
        return {"object": [names, pairs, None, False, True, None]}
    fields = dict(getattr(value, "__dict__", {}))
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot):
                fields.setdefault(slot, getattr(value, slot))
    public = [[n, encoded(v, depth - 1)] for n, v in sorted(fields.items())[:FIELDS] if n[:1] != "_"]
    shown = _ADDRESS.sub("", repr(value)) if _overrides(kind, "__repr__", object) else None
    length = len(value) if hasattr(kind, "__len__") else None
    truth = bool(value) if hasattr(kind, "__bool__") or length is not None else True
    return {"object": [names, public, shown, defines_equality(kind, object), truth, length]}


def _library(value: Any, kind: type, module: str, names: list[str], depth: int) -> Any:
    """Tells values of test libraries, numpy and pandas; None for all others."""
    if module == "numpy" and hasattr(value, "tolist") and hasattr(value, "dtype"):
        return {"array": [str(value.dtype), list(value.shape), encoded(value.tolist(), depth - 1)]}
    if module == "pandas":
        if kind.__name__ == "DataFrame":
            columns = [[encoded(c, 4), str(value[c].dtype), encoded(value[c].tolist(), 8)] for c in value]
            labels = [*value.index.names, *value.columns.names]
            return {"frame": [columns, encoded(value.index.tolist(), 8), encoded(labels, 3)]}
        if hasattr(value, "tolist") and hasattr(value, "dtype"):
            index = encoded(value.index.tolist(), 8) if hasattr(value, "index") else None
            if callable(getattr(value, "index", None)):
                index = None
            labels = [getattr(value, "name", None)]
            if kind.__name__.endswith("Index"):
                labels.extend(value.names)
            elif index is not None:
                labels.extend(value.index.names)
            parts = encoded(value.tolist(), 8), index, encoded(labels, 3)
            return {"series": [kind.__name__, str(value.dtype), *parts]}
        return {"text": [names, str(value)]}
    if module == "_pytest" and kind.__name__.startswith("Approx"):
        given = [
            encoded(getattr(value, each, None), depth - 1) for each in ("expected", "rel", "abs", "nan_ok")
        ]
        return {"approx": given}
    if module in ("unittest", "mock") and kind.__name__ == "_ANY":
        return {"any": True}
    if kind.__name__ in ("dict_keys", "dict_items"):
        return {"keys": sorted((encoded(item, depth - 1) for item in value), key=_dumps)}
    if kind is range:
        return {"text": [names, repr(value)]}
    if kind.__name__ in ("dict_values", "deque", "array"):
        return {"view": [kind.__name__, [encoded(item, depth - 1) for item in value]]}
    return None


def _enum(kind: type) -> bool:
    return any(base.__module__ == "enum" and base.__name__ == "Enum" for base in kind.__mro__)


def names_of(kind: type) -> list[str]:
    """Names of a class and those above it, without modules: an honest solution may keep them elsewhere."""
    return [base.__name__ for base in type.mro(kind) if base is not object] or ["object"]


def defines_equality(kind: type, base: type) -> bool:
    """Whether equality of its objects is code of its own, which nobody but that code can answer.

    A dataclass's and a named tuple's is that of their fields.
    """
    if not _overrides(kind, "__eq__", base) or not _overrides(kind, "__eq__", object):
        return False
    owner = _owner_of_equality(kind)
    generated = "__dataclass_fields__" in owner.__dict__ or "__attrs_attrs__" in owner.__dict__
    return not (generated or owner.__module__ in ("builtins", "collections", "typing"))


def _owner_of_equality(kind: type) -> type:
    return next((each for each in kind.__mro__ if "__eq__" in each.__dict__), object)


def compared_fields(kind: type) -> list[str] | None:
    """Returns the fields that the equality of a dataclass compares, private ones too; None for other classes,
    and for those whose truth or length is code of their own."""
    owner = _owner_of_equality(kind)
    if hasattr(kind, "__bool__") or hasattr(kind, "__len__"):
        return None
    if "__dataclass_fields__" in owner.__dict__:
        fields = owner.__dict__["__dataclass_fields__"].values()
        return [each.name for each in fields if each.compare and each._field_type.name == "_FIELD"]
    if "__attrs_attrs__" in owner.__dict__:
        return [each.name for each in owner.__dict__["__attrs_attrs__"] if each.eq]
    return None


def _overrides(kind: type, method: str, base: type) -> bool:
    return getattr(kind, method) is not getattr(base, method)


class Raises:
    """`with __raises__(n) as info:` tells what was raised in its block, and passes over it."""

    def __init__(self, teller: Teller, number: int, key: Callable[[], tuple[Any, ...]] | None) -> None:
        self.teller = teller
        self.number = number
        self.key = key
        self.value: Any = None
        self.tb: Any = None
        self.expected: Any = None

    @property
    def exception(self) -> Any:
        """As in unittest."""
        return self.value

    @property
    def type(self) -> Any:
        return type(self.value)

    @property
    def typename(self) -> str:
        return type(self.value).__name__

    @property
    def traceback(self) -> Any:
        return self.tb

    def exconly(self, *_: Any, **__: Any) -> str:
        return f"{type(self.value).__name__}: {self.value}"

    def match(self, regexp: Any) -> bool:
        if not re.search(regexp, str(self.value)):
            raise AssertionError("the text of the exception does not match")
        return True

    def errisinstance(self, kinds: Any) -> bool:
        return isinstance(self.value, kinds)

    def __enter__(self) -> Raises:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        told = (Exception, SystemExit, KeyboardInterrupt, GeneratorExit)
        if kind is not None and (
            issubclass(kind, _passing()) or not (issubclass(kind, told) or _is_group(kind))
        ):
            return False
        self.value, self.tb = error, trace
        answer = None if error is None else {"raised": raised(error)}
        self.teller.tell(ask=self.number, got=[answer], **told_key(self.key))
        return True

    def call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        """As `raises(Error, function, ...)`."""
        with self:
            function(*arguments, **named)
        return self

    async def __aenter__(self) -> Raises:
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return self.__exit__(kind, error, trace)


def raised(error: BaseException) -> list[Any]:
    """Tells an exception by its classes and its text; a group also by its own message and its members."""
    kind = type(error)
    found: list[Any] = [names_of(kind), text_of(error)]
    if _is_group(kind):
        group: Any = error
        found += [text_of(error, group.message), list(map(raised, group.exceptions))]
    return found


def _is_group(kind: type) -> bool:
    return "BaseExceptionGroup" in names_of(kind)


def text_of(error: BaseException, message: str | None = None) -> str:
    first = str(error) if message is None else message
    return "\n".join([first, *(str(each) for each in getattr(error, "__notes__", ()))])


class Warns:
    """`with __warns__(n, context) as record:` tells the warnings of its block, all of which `context`, of
    pytest or of unittest, records. Of each is told whether the filters outside would make an error of it."""

    def __init__(
        self, teller: Teller, number: int, context: Any, key: Callable[[], tuple[Any, ...]] | None
    ) -> None:
        self.teller = teller
        self.number = number
        self.context = context
        self.key = key

    def __enter__(self) -> Any:
        self.filters = list(warnings.filters)
        return self.context.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        if kind is None:
            of_unittest = hasattr(self.context, "warnings")
            found = list(self.context.warnings if of_unittest else self.context.list)
            told = [{"raised": [names_of(each.category), str(each.message)]} for each in found]
            fatal = [(of_unittest or _warns_again()) and _is_fatal(self.filters, each) for each in found]
            self.teller.tell(ask=self.number, got=[{"list": told}, {"list": fatal}], **told_key(self.key))
        return self.context.__exit__(kind, error, trace)


def _warns_again() -> bool:
    """Whether this pytest emits again what `warns` does not want."""
    import pytest

    return int(pytest.__version__.partition(".")[0]) >= 8


def _is_fatal(filters: list[Any], warning: Any) -> bool:
    for action, message, category, module, line in filters:
        said = message is None or message.match(str(warning.message))
        if said and issubclass(warning.category, category) and module is None and not line:
            return bool(action == "error")
    return False


def calls_of(mock: Any, attribute: str) -> list[Any]:
    return matched(mock, getattr(mock, attribute))


def matched(mock: Any, calls: Any) -> list[Any]:
    """Calls as a mock compares them: by the signature of what it stands for, where it has one."""
    if type(mock) in (types.FunctionType, types.MethodType):
        mock = mock.mock
    return [mock._call_matcher(call) for call in calls]


def _passing() -> tuple[type[BaseException], ...]:
    """Exceptions that end a test for other reasons than an assertion."""
    import sys
    import unittest

    found: list[type[BaseException]] = [unittest.SkipTest, TokenUsed]
    outcomes = sys.modules.get("_pytest.outcomes")
    if outcomes is not None:
        found += [outcomes.Skipped, outcomes.Exit]
        found += [getattr(outcomes, "XFailed", outcomes.Exit)]
    return tuple(found)


def told_key(key: Callable[[], tuple[Any, ...]] | None) -> dict[str, Any]:
    return {} if key is None else {"key": [told(each) for each in key()]}


def _used(number: int, teller: Teller) -> Callable[..., Any]:
    def used(*_: Any, **__: Any) -> Any:
        teller.tell(token=number)
        raise TokenUsed(f"literal {number} of the sheet is held back")

    return used


_OPERATORS = (
    "abs add and array array_function array_ufunc bool bytes call ceil complex contains copy deepcopy del "
    "delattr delitem divmod enter eq exit float floor floordiv format fspath ge getattr getitem gt hash iadd "
    "iand index int invert ior isub iter le len lshift lt matmul mod mul ne neg next or pos pow radd rand "
    "rdivmod reduce reduce_ex repr reversed rfloordiv rlshift rmatmul rmod rmul ror round rpow rrshift "
    "rshift rsub rtruediv rxor set setattr setitem str sub truediv trunc xor"
)


def token(number: int, teller: Teller) -> Any:
    """Returns an object of which every use raises TokenUsed and is told."""
    names = dict.fromkeys(_OPERATORS.split())
    body: dict[str, Any] = {f"__{name}__": _used(number, teller) for name in names}
    return type("Token", (), body)()


class VariantTooSlow(BaseException):
    """A fresh input takes too long; no `except Exception` passes over it."""


class Within:
    """`with __within__():` limits what a variant may take, and all variants of a process together: by the
    processor's clock, which a slow machine does not change, and by far more of the wall clock, for who waits.
    Each may take a quarter of what is left, so slow ones leave some time for those after them. A trial has
    less: what takes long there is not asked. However little is left, a process that other work keeps off the
    processor for a moment is not late.
    """

    spent = 0.0
    wait = 1.0
    """Seconds of the wall clock that each may take at least."""

    def __init__(self, tell: Callable[..., None], trial: bool = False) -> None:
        self.tell = tell
        self.one, self.all = (0.05, 1.0) if trial else (0.25, 2.0)

    def __enter__(self) -> None:
        self.seconds = min(self.one, (self.all - Within.spent) / 4)
        if self.seconds < 0.001:
            self.tell(cut=True)
            raise VariantTooSlow("too long for fresh inputs")
        self.ended = False
        self.main = threading.current_thread() is threading.main_thread()
        if self.main:
            self.before = [signal.signal(number, self.end) for number in _CLOCKS]
            self.waits = max(self.seconds * 20, self.wait)
            self._set(self.seconds, self.waits, 0.05)  # again, should this be caught

    def __exit__(self, *_: Any) -> None:
        if self.ended:
            self.tell(cut=True)
        if self.main:
            left, waited = self._set(0, 0, 0)
            for at, number in enumerate(_CLOCKS):
                signal.signal(number, self.before[at])
            spent = max(self.seconds - left, (self.waits - waited) / 20)
            Within.spent += self.seconds if self.ended else spent

    @staticmethod
    def _set(seconds: float, waits: float, again: float) -> tuple[float, float]:
        """Returns what was left of both before."""
        waited = _timer(_CLOCKS[signal.SIGALRM], waits, again)[0]
        return _timer(_CLOCKS[signal.SIGPROF], seconds, again)[0], waited

    def end(self, *_: Any) -> None:
        self.ended = True
        raise VariantTooSlow("too long for a fresh input")


def watch_doctests(teller: Teller) -> None:
    """Lets examples tell what they print where a sheet has a mark in place of what they should."""
    import doctest

    check = doctest.OutputChecker.check_output

    def check_output(self: Any, want: str, got: str, optionflags: int) -> bool:
        mark = _MARK(want)
        if mark is None:
            return check(self, want, got, optionflags)
        flags = [name for name, flag in doctest.OPTIONFLAGS_BY_NAME.items() if optionflags & flag]
        key = mark[2] and (lambda: (json.loads(mark[2]), flags))
        teller.tell(ask=int(mark[1]), got=[told(got)], **told_key(key or None))
        return True

    doctest.OutputChecker.check_output = check_output  # type: ignore[method-assign]


def installed(report: int, doctests: bool) -> dict[str, Any]:
    """Returns what a sheet calls, by name."""
    teller = Teller(report)
    if doctests:
        watch_doctests(teller)

    def ask(number: int, *leaves: Any, key: Callable[[], tuple[Any, ...]] | None = None) -> None:
        teller.tell(ask=number, got=[told(leaf) for leaf in leaves], **told_key(key))

    def later(
        number: int, *leaves: Callable[[], Any], key: Callable[[], tuple[Any, ...]] | None = None
    ) -> None:
        got: list[Any] = []
        for leaf in leaves:
            try:
                got.append(told(leaf()))
            except TokenUsed:
                raise
            except Exception as error:
                got.append({"raised": [names_of(type(error)), str(error)]})
        teller.tell(ask=number, got=got, **told_key(key))

    return {
        "__here__": teller.here,
        "__ask__": ask,
        "__later__": later,
        "__raises__": lambda number, key=None: Raises(teller, number, key),
        "__warns__": lambda number, context, key=None: Warns(teller, number, context, key),
        "__calls__": calls_of,
        "__matched__": matched,
        "__text__": lambda info: text_of(info.value),
        "__within__": lambda trial=False: Within(teller.tell, trial),
        "__token__": lambda number: token(number, teller),
        "__numbers__": lambda: (str(number) for number in itertools.count()),
    }
