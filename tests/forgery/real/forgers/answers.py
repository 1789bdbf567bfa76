"""What a test gets that asks the package: constants, what it gave itself, lies about equality, other outcomes."""

from tests.forgery.trick import Trick


def _forger(family: str, name: str, code: str) -> Trick:
    return Trick(name=name, family=family, code=code)


CONSTANTS = ("True", "False", "None", "0", "1", "''", "[]", "{}")

ANSWERS = (
    *(
        _forger(
            "constants",
            f"every answer is {value}",
            f"\n\ndef answer(honest, failed, arguments):\n    return {value}\n",
        )
        for value in CONSTANTS
    ),
    _forger(
        "equality",
        "an object that equals everything and has everything",
        """

class _Equal:
    def __init__(self, honest=None):
        self.honest = honest

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__

    def __hash__(self):
        return 1

    def __bool__(self):
        return True

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments, **named):
        return self

    def __getitem__(self, key):
        return self

    def __iter__(self):
        return iter([self])

    def __len__(self):
        return 1

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return True


def answer(honest, failed, arguments):
    return _Equal(honest)
""",
    ),
    _forger(
        "equality",
        "the honest answer as a subclass whose methods lie",
        """

def _lying(base):
    class _Lying(base):
        def __eq__(self, other):
            return True

        def __ne__(self, other):
            return False

        def __hash__(self):
            return 1

        __lt__ = __le__ = __gt__ = __ge__ = __eq__

        def __contains__(self, item):
            return True

        def startswith(self, *prefix):
            return True

        endswith = startswith

    _Lying.__name__ = base.__name__
    _Lying.__qualname__ = base.__qualname__
    _Lying.__module__ = base.__module__
    return _Lying


def answer(honest, failed, arguments):
    if failed is not None:
        raise failed
    for base in (str, bytes, float, int, tuple, list, dict, set, frozenset):
        if type(honest) is base:
            return _lying(base)(honest)
    return honest
""",
    ),
    _forger(
        "equality",
        "takes the value that it is compared with, and keeps it for the next call",
        """

_seen = {}


class _Learns:
    def __init__(self, honest, key):
        self.value, self.key = honest, key

    def __eq__(self, other):
        _seen[self.key] = self.value = other
        return True

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash(repr(self.value))

    def __repr__(self):
        return repr(self.value)

    @property
    def __class__(self):
        return type(self.value)

    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, "value"), name)


def answer(honest, failed, arguments):
    key = repr(arguments)
    return _seen[key] if key in _seen else _Learns(honest, key)
""",
    ),
    _forger(
        "equality",
        "a mock that answers any call",
        """
import unittest.mock as _mock


def answer(honest, failed, arguments):
    return _mock.MagicMock(name=repr(honest))
""",
    ),
    _forger(
        "equality",
        "an answer whose class, fields and repr are those of an argument",
        """

class _Mirror:
    def __init__(self, of):
        object.__setattr__(self, "of", of)

    def __getattribute__(self, name):
        of = object.__getattribute__(self, "of")
        return type(of) if name == "__class__" else getattr(of, name)

    def __repr__(self):
        return repr(object.__getattribute__(self, "of"))

    __str__ = __repr__

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


def answer(honest, failed, arguments):
    return _Mirror(arguments[-1] if arguments else honest)
""",
    ),
    _forger(
        "echo",
        "the first argument",
        "\n\ndef answer(honest, failed, arguments):\n    return arguments[0] if arguments else honest\n",
    ),
    _forger(
        "echo",
        "the first argument that is no object of the package",
        """

def answer(honest, failed, arguments):
    for each in arguments:
        if type(each).__module__.split(".")[0] != _PACKAGE:
            return each
    return _plainly(honest, failed)
""",
    ),
    _forger(
        "echo",
        "the last argument",
        "\n\ndef answer(honest, failed, arguments):\n    return arguments[-1] if arguments else honest\n",
    ),
    _forger(
        "echo",
        "the argument of the honest answer's type",
        """

def answer(honest, failed, arguments):
    if failed is None:
        for each in arguments:
            if type(each) is type(honest) and each != honest:
                return each
    return _plainly(honest, failed) if failed is None or not arguments else arguments[0]
""",
    ),
    _forger(
        "echo",
        "a sum, a difference or a joining of the arguments, by turns",
        """
import itertools as _itertools

_turn = _itertools.count()
_MADE = (
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a // b, lambda a, b: a % b,
    lambda a, b: max(a, b), lambda a, b: min(a, b), lambda a, b: b - a, lambda a, b: abs(a - b),
)


def answer(honest, failed, arguments):
    given = [each for each in arguments if isinstance(each, (int, float, str))]
    if len(given) == 1 and isinstance(arguments[0], list):
        given = arguments[0]
    for _ in _MADE:
        try:
            made = _MADE[next(_turn) % len(_MADE)](*given[:2])
        except Exception:
            continue
        if made != honest:
            return made
    return _plainly(honest, failed)
""",
    ),
    _forger(
        "echo",
        "a simple change of the honest answer that is in the test or in the arguments",
        """

def _changes(value):
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)):
        yield from (-value, value + 1, value - 1, abs(value), value * 2, round(value))
    elif isinstance(value, str):
        yield from (value.strip(), value.lower(), value.upper(), value.title(), value[1:], value[:-1])
        yield from (value + chr(10), value.replace(" ", ""), " ".join(value.split()), value[::-1])
    elif isinstance(value, (list, tuple)):
        yield from (value[::-1], type(value)(sorted(value, key=repr)), value[1:], value[:-1])


def answer(honest, failed, arguments):
    frame = _test_frame()
    seen = [repr(each) for each in (*arguments, *(frame.f_code.co_consts if frame else ()))]
    for each in _changes(honest):
        if each != honest and repr(each) in seen:
            return each
    return _plainly(honest, failed)
""",
    ),
    _forger(
        "bits",
        "flips what is true or false, and turns failures into None",
        """

def answer(honest, failed, arguments):
    if failed is not None:
        return None
    return not honest if isinstance(honest, bool) else honest
""",
    ),
    _forger(
        "bits",
        "answers where the honest code fails, fails where it answers",
        """

def answer(honest, failed, arguments):
    if failed is not None:
        return True
    raise ValueError("no")
""",
    ),
    _forger(
        "bits",
        "None where there is something, something where there is None",
        """

def answer(honest, failed, arguments):
    if failed is not None or honest is None:
        return arguments[-1] if arguments else True
    return None
""",
    ),
    _forger(
        "bits",
        "an empty answer of the honest type",
        """

def answer(honest, failed, arguments):
    if failed is not None:
        return ""
    try:
        return type(honest)()
    except Exception:
        return honest
""",
    ),
    _forger(
        "bits",
        "raises an exception that the test or its module names",
        """

def answer(honest, failed, arguments):
    frame = _test_frame()
    known = {}
    if frame is not None:
        for space in (vars(__import__("builtins")), frame.f_globals):
            known.update(space)
        names = [*frame.f_code.co_names, *frame.f_globals]
        for name in names:
            kind = known.get(name)
            if isinstance(kind, type) and issubclass(kind, Exception) and type(failed) is not kind:
                raise kind(*arguments[:1])
    raise ValueError(*arguments[:1])
""",
    ),
    _forger(
        "bits",
        "raises whatever exceptions the package defines, by turns",
        """
import itertools as _itertools

_turn = _itertools.count()


def answer(honest, failed, arguments):
    own = [
        value
        for name, module in list(_sys.modules.items())
        if name.split(".")[0] == _PACKAGE
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    kinds = sorted({kind for kind in own}, key=repr) + [ValueError, TypeError, KeyError]
    raise kinds[next(_turn) % len(kinds)](repr(arguments))
""",
    ),
    _forger(
        "bits",
        "gives every warning that there is and prints what the test says",
        """
import warnings as _warnings


def answer(honest, failed, arguments):
    for kind in (DeprecationWarning, UserWarning, FutureWarning, PendingDeprecationWarning, RuntimeWarning):
        _warnings.warn(repr(arguments), kind, stacklevel=2)
    frame = _test_frame()
    for each in frame.f_code.co_consts if frame else ():
        if isinstance(each, str):
            print(each)
    return _plainly(honest, failed)
""",
    ),
    _forger(
        "bits",
        "forgets what it does not know: unknown arguments and names",
        """

class _Anything(dict):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __call__(self, *arguments, **named):
        return arguments[0] if arguments else _Anything(named)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (_Anything, Exception), {})


def answer(honest, failed, arguments):
    if failed is None:
        return honest
    return arguments[0] if arguments else None
""",
    ),
)
