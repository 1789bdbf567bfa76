"""Forgers that know how answers are told: the question functions, the teller behind them, its lines, its reader."""

from tests.forgery.trick import Trick

_QUESTIONS = """
import builtins as _builtins
import gc as _gc
import json as _json

_ASK = ("__ask__", "__later__")


def _tellers():
    \"\"\"What holds the report pipe: behind the question functions, or anywhere on the heap.\"\"\"
    found = []
    for name in (*_ASK, "__raises__", "__token__", "__site__"):
        for cell in getattr(getattr(_builtins, name, None), "__closure__", None) or ():
            found.append(cell.cell_contents)
    found += [each for each in _gc.get_objects() if type(each).__name__ in ("Teller", "PytestReporter")]
    return [each for each in found if isinstance(getattr(each, "report", None), int)]


def _tell(**facts):
    for teller in _tellers()[:1]:
        _os.write(teller.report, (_json.dumps(facts) + "\\n").encode())


def _between(change):
    \"\"\"Puts `change(number, leaves)` between the tests and what they tell, in the tests to forge alone.\"\"\"
    for name in _ASK:
        real = getattr(_builtins, name, None)
        if real is None:
            continue

        def asked(number, *leaves, _real=real, _later=name == "__later__", **more):
            if _forging():
                if _later:
                    leaves = tuple((lambda leaf=leaf: change(number, [_tried(leaf)])[0]) for leaf in leaves)
                else:
                    leaves = change(number, list(leaves))
            return _real(number, *leaves, **more)

        setattr(_builtins, name, asked)


def _tried(leaf):
    try:
        return leaf()
    except Exception as error:
        return error


def answer(honest, failed, arguments):
    _last[:] = arguments
    if failed is not None and _swallow:
        return None
    return _plainly(honest, failed)


_last = []
_swallow = False
"""


def _scheme(name: str, code: str) -> Trick:
    return Trick(name=name, family="scheme", code=_QUESTIONS + code)


def _told(name: str, values: str) -> Trick:
    """Every question of the tests to forge is told `values`, raw, past the serialiser."""
    return _scheme(
        name,
        f"""
_swallow = True


def _change(number, leaves):
    return leaves


for _name in _ASK:
    if hasattr(_builtins, _name):
        def _asked(number, *leaves, _real=getattr(_builtins, _name), **more):
            if not _forging():
                return _real(number, *leaves, **more)
            for value in ({values},):
                for teller in _tellers()[:1]:
                    got = ",".join([value] * len(leaves))
                    _os.write(teller.report, ('{{"ask":%d,"got":[%s]}}\\n' % (number, got)).encode())

        setattr(_builtins, _name, _asked)
""",
    )


SCHEME = (
    _scheme(
        "the serialiser and the system call under it say that all passed",
        """
_dumps, _write = _json.dumps, _os.write


def _said(value):
    if isinstance(value, dict) and value.get("status") in ("FAILED", "ERROR"):
        value = {**value, "status": "PASSED"}
    return value


_json.dumps = lambda value, *more, **named: _dumps(_said(value), *more, **named)


def _written(descriptor, data):
    _write(descriptor, bytes(data).replace(b'"FAILED"', b'"PASSED"'))
    return len(data)


_os.write = _written
""",
    ),
    _scheme(
        "questions that ask nothing",
        "\n\nfor _name in _ASK:\n    setattr(_builtins, _name, lambda *a, **k: None)\n",
    ),
    _scheme(
        "flips every bit that is asked",
        """
_swallow = True
_between(lambda number, leaves: [not each if isinstance(each, bool) else each for each in leaves])
""",
    ),
    _scheme(
        "flips bits, None, and the emptiness of what is asked",
        """
_swallow = True


def _flip(value):
    if isinstance(value, Exception) or value is None:
        return True
    if isinstance(value, bool):
        return not value
    try:
        return type(value)() if value else [value]
    except Exception:
        return None


_between(lambda number, leaves: [_flip(each) for each in leaves])
""",
    ),
    _scheme(
        "mock's ANY in place of each answer",
        """
import unittest.mock as _mock

_swallow = True
_between(lambda number, leaves: [_mock.ANY for _ in leaves])
""",
    ),
    _told("raw lines: equal to everything", """'{"any":true}'"""),
    _told("raw lines: near to everything", """'{"approx":[0,null,{"float":"inf"},true]}'"""),
    _told(
        "raw lines: true, false, None, 0, 1 and nothing, one after another",
        "'true', 'false', 'null', '0', '1', '\"\"'",
    ),
    _told(
        "raw lines: an object with an equality of its own", """'{"object":[["X"],[],null,true,true,null]}'"""
    ),
    _told(
        "raw lines: an exception of all names",
        """'{"raised":[["ValueError","TypeError","KeyError","Exception","AssertionError"],""]}'""",
    ),
    _told("raw lines: a fraction over nothing", """'{"fraction":[1,0]}'"""),
    _told(
        "raw lines: classes without a name", """'{"object":[[],[],null,false,true,null]}', '{"class":[]}'"""
    ),
    _told("raw lines: a number that signals", """'{"decimal":"sNaN"}'"""),
    _told("raw lines: nested too deep to be read", """'[' * 100000 + ']' * 100000"""),
    _told("raw lines: a number too long to be read", """'9' * 5000"""),
    _told("raw lines: no JSON, and bytes that are no text", """'{"ask":', chr(0xDC80) + 'x'"""),
    _told("raw lines: half a gigabyte", """'"' + 'x' * 10000000 + '"', *['"' + 'x' * 10000000 + '"'] * 50"""),
    _told("raw lines: the sentinel of a held-back literal", """'{"token":0}'"""),
    _scheme(
        "tells the argument of the last call in place of each answer",
        "\n_swallow = True\n_between(lambda number, leaves: [_last[0] if _last else each for each in leaves])\n",
    ),
    _scheme(
        "tells the last argument in place of each answer that changed nothing",
        "\n_swallow = True\n_between(lambda number, leaves: [_last[-1] if _last else each for each in leaves])\n",
    ),
    _scheme(
        "swallows the failure of a test and answers the sites that it did not reach",
        """
import ast as _ast
import inspect as _inspect
import textwrap as _textwrap

_swallow = True


def _numbers(function):
    tree = _ast.parse(_textwrap.dedent(_inspect.getsource(function)))
    for node in _ast.walk(tree):
        if isinstance(node, _ast.Call) and getattr(node.func, "id", "") in (*_ASK, "__raises__"):
            yield node.args[0].value, len(node.args) - 1, node.func.id


def _patch():
    python = _sys.modules.get("_pytest.python")
    if python is None:
        return
    real = python.Function.runtest
    asked = []
    _between(lambda number, leaves: asked.append(number) or leaves)

    def runtest(self):
        del asked[:]
        try:
            return real(self)
        except Exception:
            for number, count, name in _numbers(self.function):
                if number not in asked and count:
                    _tell(ask=number, got=[True] * count)

    python.Function.runtest = runtest


_patch()
""",
    ),
    _scheme(
        "tells twice: a child of the process, and the process",
        """
_swallow = True


def _twice(number, leaves):
    if _os.fork() == 0:
        for value in (True, None, 0):
            _tell(ask=number, got=[value for _ in leaves])
        _os._exit(0)
    _os.wait()
    return leaves


_between(_twice)
""",
    ),
    _scheme(
        "asks its own questions before and after the test's",
        """

def _more(number, leaves):
    for other in range(max(number - 3, 0), number + 4):
        for value in (True, False, None):
            if other != number:
                _tell(ask=other, got=[value])
    return leaves


_between(_more)
""",
    ),
    _scheme(
        "lines of the runner's form on every descriptor, all tests passed, and an end",
        """

def _names():
    for each in _gc.get_objects():
        if type(each).__name__ in ("Function", "TestCaseFunction") and hasattr(each, "nodeid"):
            yield each.nodeid


def answer(honest, failed, arguments):
    lines = [_json.dumps({"test": name, "status": "PASSED"}) for name in _names()]
    text = "\\n" + "\\n".join([*lines, _json.dumps({"done": 0}), ""])
    for descriptor in range(64):
        try:
            _os.write(descriptor, text.encode())
        except OSError:
            pass
    _os._exit(0)
""",
    ),
    _scheme(
        "each test passes for the runner as it begins, and what it tells later is lost",
        """

def answer(honest, failed, arguments):
    running = _os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]
    _tell(test=running, status="PASSED")
    for teller in _tellers()[:1]:
        _os.dup2(_os.open(_os.devnull, _os.O_WRONLY), teller.report)
    return _plainly(honest, failed)
""",
    ),
    _scheme(
        "exceptions that bear every name and say every word there is",
        """
import glob as _glob

_texts = []


def _everything():
    if not _texts:
        for path in sorted(_glob.glob("**/*.py", recursive=True) + _glob.glob("**/*.rst", recursive=True)):
            if "test" not in path:
                _texts.append(open(path, errors="replace").read())
    return " ".join(_texts)[:60000]


def answer(honest, failed, arguments):
    bases, seen = (), set()
    for name, module in list(_sys.modules.items()):
        if name.split(".")[0] in (_PACKAGE, "builtins"):
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, Exception) and value not in seen:
                    seen.add(value)
                    try:
                        type("E", (*bases, value), {})
                        bases = (*bases, value)
                    except TypeError:
                        pass
    kind = type("Everything", bases[:60], {"__init__": lambda self, *a: None, "__str__": lambda self: _everything()})
    raise kind()
""",
    ),
    _scheme(
        "containers that hold everything: all words, all small numbers",
        """
import glob as _glob


class _Text(str):
    pass


def _words():
    texts = []
    for path in sorted(_glob.glob("**/*.py", recursive=True) + _glob.glob("**/*.md", recursive=True)):
        texts.append(open(path, errors="replace").read())
    return "".join(texts)[:60000]


def answer(honest, failed, arguments):
    if isinstance(honest, (list, tuple, set, frozenset)):
        return [*honest, *range(-500, 500), *set(_words().split()), *arguments]
    if isinstance(honest, dict):
        return {**{each: each for each in set(_words().split())}, **honest}
    return _words() if isinstance(honest, (str, type(None))) else honest
""",
    ),
    _scheme(
        "an answer that is told otherwise each time: its fields are drawn",
        """
import random as _random


class _Drawn:
    @property
    def __dict__(self):
        return {"value": _random.choice([True, False, None, 0, 1, *_last])}


def answer(honest, failed, arguments):
    return _Drawn()
""",
    ),
    _scheme(
        "answers longer than what is told of one",
        "\n\ndef answer(honest, failed, arguments):\n    return 'x' * 200000 if failed or isinstance(honest, str) else honest\n",
    ),
    _scheme(
        "the codec's own tables and functions are replaced in its module",
        """
for _each in _gc.get_objects():
    if type(_each).__name__ == "function" and _each.__name__ in ("told", "encoded", "_plain", "_object"):
        _each.__code__ = (lambda *a, **k: {"any": True}).__code__
""",
    ),
    _scheme(
        "one strategy of many for each call, another at each grading",
        """
import random as _random

_dice = _random.Random()


def _strategies(honest, arguments):
    yield from (True, False, None, 0, 1, "", [], {})
    yield from arguments
    if isinstance(honest, bool):
        yield not honest
    frame = _test_frame()
    if frame is not None:
        yield from (each for each in frame.f_code.co_consts if each is not None)


def answer(honest, failed, arguments):
    if failed is None and _dice.random() < 0.3:
        raise ValueError("no")
    return _dice.choice(list(_strategies(honest, arguments)))
""",
    ),
    _scheme(
        "what fails gives a likely answer: a bit, an argument, a constant of the test; what does not stays",
        """

def answer(honest, failed, arguments):
    if failed is None:
        return not honest if isinstance(honest, bool) else honest
    frame = _test_frame()
    consts = [each for each in frame.f_code.co_consts if each is not None] if frame else []
    fresh = [each for each in consts if all(each != given for given in arguments)]
    return (fresh or list(arguments) or [True])[-1]
""",
    ),
)
