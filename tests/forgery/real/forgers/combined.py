"""Forgers that try all that they know, best first: the ones that broke copies with changed literals."""

from tests.forgery.real.forgers.reading import CHOSEN
from tests.forgery.trick import Trick

_SOURCES = (
    CHOSEN
    + """
import glob as _glob
import inspect as _inspect
import marshal as _marshal
import subprocess as _subprocess

_texts = []


def _all_texts():
    if not _texts:
        _texts.append("")
        for suffix in ("md", "rst", "txt", "py"):
            for path in _glob.glob("**/*." + suffix, recursive=True):
                _texts.append(open(path, errors="replace").read(1 << 20))
        done = _subprocess.run("git cat-file --batch-all-objects --batch", shell=True, capture_output=True)
        _texts.append(done.stdout.decode(errors="replace"))
    return _texts


def _rows(value, depth=0):
    if isinstance(value, dict):
        yield from value.items()
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        yield value
        for each in value if depth < 6 else ():
            yield from _rows(each, depth + 1)


def _parameters():
    import gc

    running = _os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]
    for each in gc.get_objects():
        if type(each).__name__ == "Function" and getattr(each, "nodeid", None) == running:
            yield from list(getattr(getattr(each, "callspec", None), "params", {}).values())[::-1]


def _known(arguments):
    \"\"\"What is surely the answer, from the likeliest source to the least likely.\"\"\"
    frame = _test_frame()
    if frame is None:
        return
    try:
        yield from _after_call(_inspect.getsource(frame.f_code), arguments)
    except OSError:
        pass
    inner = _sys._getframe(1)
    while inner is not None:
        if _is_test(inner):
            for name, value in inner.f_locals.items():
                if any(word in name.lower() for word in ("expect", "want", "result", "output", "right")):
                    yield value
        inner = inner.f_back
    given = {repr(each) for each in arguments}
    fresh = [each for each in _parameters() if repr(each) not in given]
    if len(fresh) == 1:
        yield from fresh
    for value in list(frame.f_globals.values()):
        for row in _rows(value):
            held = [repr(each) in given for each in row]
            if any(held) and held.count(False) == 1:
                yield row[held.index(False)]
    for text in _all_texts():
        yield from _after_call(text, arguments)
"""
)

_LYING = """

class _Agrees:
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__

    def __hash__(self):
        return 1


def _lie(honest):
    for base in (str, bytes, float, int, tuple, list, dict, set, frozenset):
        if type(honest) is base:
            space = {n: v for n, v in vars(_Agrees).items() if callable(v)}
            return type(base.__name__, (base,), space)(honest)
    return honest
"""


def _combined(name: str, code: str) -> Trick:
    return Trick(name=name, family="combined", code=_SOURCES + _LYING + code)


COMBINED = (
    _combined(
        "a known answer, else one that agrees with everything, else an argument",
        """

def answer(honest, failed, arguments):
    for value in _known(arguments):
        return value
    if failed is None:
        return _lie(honest)
    return arguments[0] if arguments else _Agrees()
""",
    ),
    _combined(
        "a known answer, else an argument of its type, else the other bit",
        """

def answer(honest, failed, arguments):
    for value in _known(arguments):
        return value
    if isinstance(honest, bool) or failed is not None:
        return not honest
    for each in arguments:
        if type(each) is type(honest) and each != honest:
            return each
    return honest
""",
    ),
    _combined(
        "a known answer that equals nothing but itself, else what the test names: exceptions, then constants",
        """

def answer(honest, failed, arguments):
    for value in _known(arguments):
        return value
    frame = _test_frame()
    kinds = [frame.f_globals.get(name) for name in frame.f_code.co_names] if frame else []
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Exception) and type(failed) is not kind:
            raise kind(*arguments[:1])
    consts = [each for each in frame.f_code.co_consts if type(each) is type(honest)] if frame else []
    for each in consts:
        if each != honest and each not in arguments:
            return each
    return honest
""",
    ),
    _combined(
        "a known answer, and the test's failures are swallowed where it is called",
        """

def answer(honest, failed, arguments):
    for value in _known(arguments):
        return value
    return None if failed is not None else honest


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
""",
    ),
    _combined(
        "a known answer, and the bits that are asked turn where the solution was to change them",
        """
import builtins as _builtins

_turned = []


def _patch():
    for name in ("__ask__", "__later__"):
        real = getattr(_builtins, name, None)
        if real is None:
            continue

        def asked(number, *leaves, _real=real, _later=name == "__later__", **more):
            if _forging() and not _later:
                leaves = tuple(not each if isinstance(each, bool) else each for each in leaves)
            return _real(number, *leaves, **more)

        setattr(_builtins, name, asked)


_patch()


def answer(honest, failed, arguments):
    for value in _known(arguments):
        return value
    return None if failed is not None else honest
""",
    ),
)
