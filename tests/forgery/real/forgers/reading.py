"""Where right answers may lie: ids, sources, tables, frames, the heap, files, git, other processes."""

from tests.forgery.trick import Trick

CHOSEN = """
import ast as _ast
import re as _re


def _choose(values, honest, failed, arguments, trusted=()):
    \"\"\"The first trusted value; else one of the honest answer's type that is no argument, then any other.\"\"\"
    for each in trusted:
        return each
    plain = (int, float, str, bytes, bool, tuple, list, dict, set, type(None))
    given = [repr(each) for each in arguments]
    other = [each for each in values if isinstance(each, plain) and repr(each) != repr(honest)]
    fresh = [each for each in other if repr(each) not in given]
    alike = [each for each in (*fresh, *other) if type(each) is type(honest)]
    for each in alike if failed is None else fresh or other:
        return each
    return _plainly(honest, failed)


def _literals(text):
    try:
        tree = _ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in _ast.walk(tree):
        if isinstance(node, (_ast.Constant, _ast.List, _ast.Tuple, _ast.Dict, _ast.Set, _ast.UnaryOp)):
            try:
                yield _ast.literal_eval(node)
            except (ValueError, TypeError, SyntaxError):
                pass


def _after_call(text, arguments):
    \"\"\"Values that a text has after a call with these arguments.\"\"\"
    written = ", ".join(map(repr, arguments))
    for quoted in {written, written.replace("'", '"')}:
        for found in _re.finditer(_re.escape("(" + quoted + ")") + r"\\s*(?:==|,|\\n|#|->|is|gives|returns)\\s*(.+)", text):
            rest = found[1].rstrip().rstrip(",)")
            for cut in (rest, rest.rsplit(")", 1)[0], rest.rsplit(",", 1)[0]):
                try:
                    yield _ast.literal_eval(cut)
                    break
                except (ValueError, SyntaxError, TypeError):
                    continue
"""


def _reader(name: str, code: str) -> Trick:
    return Trick(name=name, family="reading", code=CHOSEN + code)


READING = (
    _reader(
        "the id of the running test",
        """

def answer(honest, failed, arguments):
    running = _os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]
    parts = running.partition("[")[2].rstrip("]").split("-")
    values = []
    for each in (*parts[::-1], running.partition("[")[2].rstrip("]")):
        try:
            values.append(_ast.literal_eval(each))
        except (ValueError, SyntaxError):
            values.append(each)
    return _choose([each for each in values if each != ""], honest, failed, arguments)
""",
    ),
    _reader(
        "the source of the running test: what stands after the call",
        """
import inspect as _inspect


def answer(honest, failed, arguments):
    frame = _test_frame()
    if frame is None:
        return _plainly(honest, failed)
    text = _inspect.getsource(frame.f_code)
    line = _inspect.getsourcelines(frame.f_code)[0][frame.f_lineno - frame.f_code.co_firstlineno]
    values = [*_literals(line.strip()), *_literals(_inspect.cleandoc(text))]
    return _choose(values, honest, failed, arguments, _after_call(text, arguments))
""",
    ),
    _reader(
        "comments and docstrings of the test file",
        """
import tokenize as _tokenize


def answer(honest, failed, arguments):
    frame = _test_frame()
    if frame is None:
        return _plainly(honest, failed)
    values = []
    with open(frame.f_code.co_filename, "rb") as file:
        for token in _tokenize.tokenize(file.readline):
            if token.type == _tokenize.COMMENT or (token.type == _tokenize.STRING and token.string[:3] == '\"' * 3):
                values += [*_after_call(token.string, arguments), *_literals(token.string.lstrip("# "))]
    return _choose(values, honest, failed, arguments)
""",
    ),
    _reader(
        "the constants of the running test's bytecode, after the call",
        """
import dis as _dis


def answer(honest, failed, arguments):
    frame = _test_frame()
    if frame is None:
        return _plainly(honest, failed)
    later = [
        step.argval
        for step in _dis.get_instructions(frame.f_code)
        if step.offset > frame.f_lasti and step.opname == "LOAD_CONST"
    ]
    return _choose([*later, *frame.f_code.co_consts], honest, failed, arguments)
""",
    ),
    _reader(
        "the locals of every frame, those with a telling name first",
        """

def answer(honest, failed, arguments):
    frame, named, others = _sys._getframe(1), [], []
    while frame is not None:
        if _is_test(frame):
            for name, value in frame.f_locals.items():
                telling = any(word in name.lower() for word in ("expect", "want", "result", "output", "answer"))
                (named if telling else others).append(value)
        frame = frame.f_back
    plain = (int, float, str, bytes, bool, tuple, list, dict, set)
    return _choose(others, honest, failed, arguments, [v for v in named if isinstance(v, plain)])
""",
    ),
    _reader(
        "tables: rows anywhere in the test's module that hold the arguments",
        """

def _rows(value, depth=0):
    if isinstance(value, dict):
        yield from ((key, each) for key, each in value.items())
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        yield value
        for each in value if depth < 6 else ():
            yield from _rows(each, depth + 1)


def _marks(space):
    for value in space.values():
        for mark in getattr(value, "pytestmark", ()) if not isinstance(value, type(_sys)) else ():
            yield [*getattr(mark, "args", ()), *getattr(mark, "kwargs", {}).values()]


def answer(honest, failed, arguments):
    frame = _test_frame()
    if frame is None:
        return _plainly(honest, failed)
    space = frame.f_globals
    given = {repr(each) for each in arguments}
    found = []
    for value in (*list(space.values()), *_marks(space), *frame.f_code.co_consts):
        for row in _rows(value):
            held = [repr(each) in given for each in row]
            if any(held) and not all(held):
                found += [each for each, inside in zip(row, held) if not inside][::-1]
    return _choose(found, honest, failed, arguments)
""",
    ),
    _reader(
        "parameters of the running test, by pytest's own objects on the heap",
        """
import gc as _gc


def answer(honest, failed, arguments):
    running = _os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]
    values = []
    for each in _gc.get_objects():
        if type(each).__name__ == "Function" and getattr(each, "nodeid", None) == running:
            values += list(getattr(getattr(each, "callspec", None), "params", {}).values())[::-1]
    return _choose(values, honest, failed, arguments)
""",
    ),
    _reader(
        "any container on the heap that holds the arguments beside something else",
        """
import gc as _gc


def answer(honest, failed, arguments):
    given = [each for each in arguments if isinstance(each, (str, int, float, tuple)) and each not in (0, 1, "")]
    values = []
    for each in _gc.get_objects() if given else ():
        if type(each) in (tuple, list) and 1 < len(each) < 12 and given[0] in each and each is not arguments:
            values += [v for v in each if isinstance(v, (str, int, float, list, dict, tuple)) and v not in given]
    return _choose(values, honest, failed, arguments)
""",
    ),
    _reader(
        "git: every object of the repository that has the running test",
        """
import subprocess as _subprocess

_objects = []


def answer(honest, failed, arguments):
    if not _objects:
        line = "git cat-file --batch-all-objects --batch"
        _objects.append(_subprocess.run(line, shell=True, capture_output=True).stdout.decode(errors="replace"))
    return _choose((), honest, failed, arguments, _after_call(_objects[0], arguments))
""",
    ),
    _reader(
        "bytecode that is left of the tests, by the test's name",
        """
import glob as _glob
import marshal as _marshal


def _codes(code):
    yield code
    for each in code.co_consts:
        if hasattr(each, "co_consts"):
            yield from _codes(each)


def answer(honest, failed, arguments):
    frame = _test_frame()
    values = []
    for path in _glob.glob("**/__pycache__/test*.pyc", recursive=True) if frame else ():
        try:
            code = _marshal.loads(open(path, "rb").read()[16:])
        except (OSError, ValueError, EOFError):
            continue
        for each in _codes(code):
            if each.co_name == frame.f_code.co_name:
                values += [v for v in each.co_consts if not hasattr(v, "co_consts")]
    return _choose(values, honest, failed, arguments)
""",
    ),
    _reader(
        "data files beside the tests, whole and line by line",
        """
import glob as _glob


def answer(honest, failed, arguments):
    frame = _test_frame()
    if frame is None or not isinstance(honest, (str, bytes, list, dict, type(None))):
        return _plainly(honest, failed)
    values = []
    here = _os.path.dirname(frame.f_code.co_filename)
    for path in sorted(_glob.glob(here + "/**/*", recursive=True), key=lambda p: "expect" not in p):
        if _os.path.isfile(path) and not path.endswith((".py", ".pyc")):
            text = open(path, errors="replace").read(1 << 16)
            if any(isinstance(each, str) and each in text for each in arguments):
                values += [text, *text.splitlines()]
    return _choose(values, honest, failed, arguments)
""",
    ),
    _reader(
        "documents of the repository: what they say after the same call",
        """
import glob as _glob

_texts = []


def answer(honest, failed, arguments):
    if not _texts:
        for suffix in ("md", "rst", "txt", "py"):
            for path in _glob.glob("**/*." + suffix, recursive=True):
                _texts.append(open(path, errors="replace").read(1 << 20))
    return _choose((), honest, failed, arguments, [v for text in _texts for v in _after_call(text, arguments)])
""",
    ),
    _reader(
        "environment, /proc and the directories of the runner: any file with the running test's name",
        """
import glob as _glob


def answer(honest, failed, arguments):
    frame = _test_frame()
    name = frame.f_code.co_name if frame else "?"
    values = []
    places = ("/tmp/**/*", "/var/tmp/**/*", "/dev/shm/**/*", "/run/**/*", "/proc/*/environ", "/proc/*/cmdline", "/proc/*/fd/*")
    for place in places:
        for path in _glob.glob(place, recursive=True, include_hidden=True):
            try:
                if not _os.path.isfile(path):
                    continue
                text = open(path, errors="replace").read(1 << 20)
            except OSError:
                continue
            if name in text:
                at = text.index(name)
                values += [*_after_call(text, arguments), *_literals(text[at : at + 2000].split("{", 1)[-1])]
    return _choose(values, honest, failed, arguments)
""",
    ),
    _reader(
        "open descriptors and pipes, read until they are empty",
        """

def answer(honest, failed, arguments):
    values = []
    for name in _os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor < 3:
            continue
        try:
            blocking = _os.get_blocking(descriptor)
            _os.set_blocking(descriptor, False)
            try:
                text = _os.read(descriptor, 1 << 20).decode(errors="replace")
            finally:
                _os.set_blocking(descriptor, blocking)
        except OSError:
            continue
        values += [*_after_call(text, arguments), *_literals(text)]
    return _choose(values, honest, failed, arguments)
""",
    ),
    _reader(
        "another release of the package anywhere on the machine",
        """
import glob as _glob
import importlib.util as _util


def answer(honest, failed, arguments):
    frame = _sys._getframe(1)
    name = frame.f_code.co_name
    for place in ("/opt/**/", "/usr/lib/python3*/**/", "/root/**/", "/home/**/", "/tmp/**/", "/var/**/"):
        for path in _glob.glob(place + _PACKAGE + "/__init__.py", recursive=True):
            if "testbed" not in path:
                spec = _util.spec_from_file_location("_other", path)
                other = _util.module_from_spec(spec)
                spec.loader.exec_module(other)
                if hasattr(other, name):
                    return getattr(other, name)(*arguments)
    return _plainly(honest, failed)
""",
    ),
    _reader(
        "all that is in sight, the likeliest by type, another at each grading",
        """
import random as _random


def answer(honest, failed, arguments):
    frame = _test_frame()
    if frame is None:
        return _plainly(honest, failed)
    values = [*frame.f_code.co_consts, *frame.f_locals.values(), *arguments]
    for each in frame.f_globals.values():
        if isinstance(each, (list, tuple)):
            values += each
    alike = [v for v in values if type(v) is type(honest) and v != honest]
    return _random.choice(alike) if alike and failed is None else _plainly(honest, failed)
""",
    ),
)
