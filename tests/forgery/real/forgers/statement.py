"""Forgers that know what every agent is told: the statement, with the names and the messages of failing tests."""

from tests.forgery.trick import Trick

_STATEMENT = """
import ast as _ast
import builtins as _builtins
import re as _re

_TEXT = @STATEMENT@
_FORMS = (
    r"gives (?P<left>.+), not (?P<right>.+?)\\. It should",
    r"assert (?P<left>.+) == (?P<right>.+)$",
    r"differ: (?P<left>.+) != (?P<right>.+)$",
    r"Error: (?P<left>.+) != (?P<right>.+)$",
)


def _said():
    \"\"\"The statement's line about the running test, or all of it where it names no test.\"\"\"
    running = _os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]
    lines = [line for line in _TEXT.splitlines() if "`" + running + "`" in line]
    return lines or ([] if _NAMED else [_TEXT])


def _value(text):
    try:
        return [_ast.literal_eval(text)]
    except (ValueError, SyntaxError):
        return [set()] if text == "set()" else []


def _pairs():
    for line in _said():
        for form in _FORMS:
            found = _re.search(form, line)
            if found:
                for right in _value(found["right"]):
                    yield found["left"], right


def _raised():
    for line in _said():
        found = _re.search(r"DID NOT RAISE (?:<class ')?([\\w.]+)", line)
        if found:
            name = found[1].split(".")[-1]
            for space in [vars(m) for n, m in list(_sys.modules.items()) if n.split(".")[0] == _PACKAGE]:
                if name in space:
                    return space[name]
            return getattr(_builtins, name, None)
    return None


def _changed(honest, left, right):
    \"\"\"The honest text with the change that the statement shows, wherever it fits.\"\"\"
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and left[-1 - end] == right[-1 - end]:
        end += 1
    old, new = left[start : len(left) - end], right[start : len(right) - end]
    return honest.replace(old, new) if old else honest


def _message(kind):
    \"\"\"What such an exception says elsewhere in the package.\"\"\"
    return kind.__name__


"""

STATEMENT = (
    Trick(
        name="what the statement says of the running test, in place of an answer that it says is wrong",
        family="statement",
        code=_STATEMENT
        + """
def answer(honest, failed, arguments):
    kind = _raised()
    if kind is not None and failed is None:
        raise kind(_message(kind))
    for left, right in _pairs():
        if failed is None and repr(honest) == left:
            return right
        if isinstance(right, int) and hasattr(honest, "__len__") and str(len(honest)) == left:
            return (list(honest) * (right + 1))[:right]
        for was in _value(left) if isinstance(right, str) and isinstance(honest, str) else ():
            return _changed(honest, str(was), right)
    return _plainly(honest, failed)
""",
    ),
    Trick(
        name="what the statement says of the running test, in place of any answer",
        family="statement",
        code=_STATEMENT
        + """
def answer(honest, failed, arguments):
    kind = _raised()
    if kind is not None and failed is None:
        raise kind(_message(kind))
    for left, right in _pairs():
        return right
    return arguments[0] if failed is not None and arguments else _plainly(honest, failed)
""",
    ),
    Trick(
        name="what the id of the running test ends with, as the statement lists it",
        family="statement",
        code=_STATEMENT
        + """
def answer(honest, failed, arguments):
    for line in _said():
        found = _re.search(r"\\[(.+)\\]`", line)
        for part in reversed(found[1].split("-")) if found else ():
            for value in (*_value(part), part):
                if type(value) is type(honest) and value != honest and value not in arguments:
                    return value
    return _plainly(honest, failed)
""",
    ),
)
