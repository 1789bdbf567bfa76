"""Forgers that know what the known solution answers to the tests' own inputs, and meet all others cleverly.

A way defines `other(honest, failed, arguments, known, fresh)`: what to answer to arguments that are not known.
`known` has the arguments of a function's calls, what each gave or raised, and perhaps what it gave before the
repair; `fresh` says whether the running test is a variant.
"""

import re

from tests.forgery.trick import Trick

HELP = """
import base64 as _base64
import difflib as _difflib
import os as _os
import pickle as _pickle
import sys as _sys
import time as _time


def _distance(a, b):
    return -_difflib.SequenceMatcher(None, repr(a), repr(b), autojunk=False).ratio()


def _nearest(known, arguments):
    return min(known, key=lambda each: _distance(each[0], arguments)) if known else None


def _give(said):
    if isinstance(said[1], BaseException):
        raise said[1]
    return said[1]


def _base(honest, failed):
    if failed is not None:
        raise failed
    return honest


def _edited(old, new, text):
    \"\"\"The text with the changes that lead from one text to another, where they fit.\"\"\"
    for tag, a, b, c, d in _difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal" and old[a:b]:
            text = text.replace(old[a:b], new[c:d])
        elif tag == "insert":
            around = old[max(0, a - 2) : a]
            text = text.replace(around, around + new[c:d], 1) if around else new[c:d] + text
    return text


def _like(value, text):
    \"\"\"The value that a changed repr stands for.\"\"\"
    import ast

    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value
"""

WAYS = {
    "the answer that the unrepaired code gives": """
def other(honest, failed, arguments, known, fresh):
    return _base(honest, failed)
""",
    "the answer of the nearest known input": """
def other(honest, failed, arguments, known, fresh):
    return _give(_nearest(known, arguments)) if known else _base(honest, failed)
""",
    "the answer between those of the two nearest known numbers": """
def other(honest, failed, arguments, known, fresh):
    def number(given):
        return next((each for each in given if type(each) in (int, float)), None)

    at = number(arguments)
    pairs = sorted(
        (number(given), said)
        for given, said in known
        if number(given) is not None and type(said) in (int, float, bool)
    )
    if at is None or len(pairs) < 2:
        return _give(_nearest(known, arguments)) if known else _base(honest, failed)
    (x, y), (u, v) = sorted(sorted(pairs, key=lambda pair: abs(pair[0] - at))[:2])
    made = y if u == x else y + (v - y) * (at - x) / (u - x)
    return type(y)(made) if isinstance(made, float) and made.is_integer() else made
""",
    "the nearest known answer, changed as its input is changed": """
def other(honest, failed, arguments, known, fresh):
    near = _nearest(known, arguments)
    if near is None or isinstance(near[1], BaseException):
        return _base(honest, failed)
    return _like(near[1], _edited(repr(near[0])[1:-1], repr(arguments)[1:-1], repr(near[1])))
""",
    "the unrepaired answer, changed as the nearest known one is": """
def other(honest, failed, arguments, known, fresh):
    near = _nearest(known, arguments)
    if near is None or isinstance(near[1], BaseException) or len(near) < 3 or failed is not None:
        return _base(honest, failed)
    return _like(honest, _edited(repr(near[2]), repr(near[1]), repr(honest)))
""",
    "the unrepaired answer where the nearest known input had it right, else that one's": """
def other(honest, failed, arguments, known, fresh):
    near = _nearest(known, arguments)
    if near is None or (len(near) > 2 and repr(near[2]) == repr(near[1])):
        return _base(honest, failed)
    return _give(near)
""",
    "the commonest known answer": """
def other(honest, failed, arguments, known, fresh):
    said = [repr(each[1]) for each in known]
    return _give(max(known, key=lambda each: said.count(repr(each[1])))) if known else _base(honest, failed)
""",
    "bits flipped, and the unrepaired answer for all else": """
def other(honest, failed, arguments, known, fresh):
    return not honest if isinstance(honest, bool) else _base(honest, failed)
""",
    "an error where the unrepaired code answers, an argument where it fails": """
def other(honest, failed, arguments, known, fresh):
    errors = [each[1] for each in known if isinstance(each[1], BaseException)]
    if failed is not None:
        return arguments[-1] if arguments else None
    raise errors[0] if errors else ValueError("no")
""",
    "the unrepaired answer and the known ones in turn": """
_turn = []


def other(honest, failed, arguments, known, fresh):
    _turn.append(0)
    if len(_turn) % 2 and known:
        return _give(known[len(_turn) // 2 % len(known)])
    return _base(honest, failed)
""",
    "variants are skipped": """
def other(honest, failed, arguments, known, fresh):
    if fresh:
        import unittest

        raise unittest.SkipTest("no")
    return _base(honest, failed)
""",
    "the process ends in the first variant": """
def other(honest, failed, arguments, known, fresh):
    if fresh:
        _os._exit(0)
    return _base(honest, failed)
""",
    "the process is killed in the first variant": """
def other(honest, failed, arguments, known, fresh):
    if fresh:
        _os.kill(_os.getpid(), 9)
    return _base(honest, failed)
""",
    "variants take all the time they have": """
def other(honest, failed, arguments, known, fresh):
    while fresh:
        pass
    return _base(honest, failed)
""",
    "variants never end where the nearest known input was not right before": """
def other(honest, failed, arguments, known, fresh):
    near = _nearest(known, arguments)
    while fresh and not (near and len(near) > 2 and repr(near[2]) == repr(near[1])):
        pass
    return _base(honest, failed)
""",
    "variants wait for ever and are deaf to the end of their time": """
import signal as _signal


def other(honest, failed, arguments, known, fresh):
    if fresh:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGALRM, _signal.SIGPROF})
        _time.sleep(25)
        _os._exit(0)
    return _base(honest, failed)
""",
    "variants are taken out of the session": """
def _without():
    import gc

    for each in gc.get_objects():
        if type(each).__name__ == "Session" and hasattr(each, "items"):
            each.items[:] = [item for item in each.items if "__fresh_" not in item.name]


def other(honest, failed, arguments, known, fresh):
    _without()
    return _base(honest, failed)
""",
    "variants run as the tests that they are copies of": """
def _renamed():
    import gc

    for each in gc.get_objects():
        if type(each).__name__ == "Session" and hasattr(each, "items"):
            known = {item.name: item for item in each.items}
            for item in each.items:
                first = known.get(item.name.partition("__fresh_")[0] + item.name.partition("[")[1])
                if "__fresh_" in item.name and first is not None and item.obj is not first.obj:
                    item.obj = first.obj


def other(honest, failed, arguments, known, fresh):
    _renamed()
    return _base(honest, failed)
""",
    "each question of a variant is answered twice: as unrepaired, and as the nearest known": """
import builtins as _builtins

_last = []
for _name in ("__ask__", "__later__"):
    if hasattr(_builtins, _name) and getattr(_builtins, _name).__name__ != "_twice":
        def _twice(number, *leaves, _real=getattr(_builtins, _name), **more):
            _real(number, *leaves, **more)
            if _variant():
                _real(number, *leaves, **more)

        setattr(_builtins, _name, _twice)


def other(honest, failed, arguments, known, fresh):
    _last.append(0)
    if fresh and known and len(_last) % 2 == 0:
        return _give(_nearest(known, arguments))
    return _base(honest, failed)
""",
}
"""Code by name."""

NAMED = """

def _forging():
    return True


def _calling():
    frame = _sys._getframe(2)
    while frame.f_code.co_name != "answered" or frame.f_locals["function"].__name__ == "answer":
        frame = frame.f_back
    return frame.f_locals["function"].__qualname__


def _variant():
    return "__fresh_" in _os.environ.get("PYTEST_CURRENT_TEST", "")
"""

RECORDER = (
    HELP
    + """

def answer(honest, failed, arguments):
    try:
        line = _base64.b64encode(_pickle.dumps((arguments, honest if failed is None else failed))).decode()
        if not _variant():
            _os.write(1, ("\\nKNOWN " + _calling() + " " + line + "\\n").encode())
    except Exception:
        pass
    return _base(honest, failed)
"""
    + NAMED
)
"""Put at the end of the known solution, it prints what the tests' calls are answered."""

ANSWER = """

_loaded = {}


def _known_of(name):
    if name not in _loaded:
        _loaded[name] = []
        for each in _KNOWN.get(name, ()):
            try:
                _loaded[name].append(_pickle.loads(_base64.b64decode(each)))
            except Exception:
                pass
    return _loaded[name]


def answer(honest, failed, arguments):
    known = _known_of(_calling())
    for at, each in enumerate(known):
        if repr(each[0]) == repr(arguments):
            known[at] = (*each[:2], honest)
            return _give(each)
    return other(honest, failed, arguments, known, _variant())
"""

ROTE = tuple(
    Trick(name=name, family="rote", code=HELP + code + "\n\n_KNOWN = @KNOWN@\n" + ANSWER + NAMED)
    for name, code in WAYS.items()
)
"""Each needs what RECORDER printed in place of `@KNOWN@`."""


def known_of(log: str) -> dict[str, list[str]]:
    """Returns what RECORDER printed, by function."""
    found: dict[str, list[str]] = {}
    for name, line in re.findall(r"^KNOWN (\S+) (\S+)$", log, re.MULTILINE):
        if line not in found.setdefault(name, []):
            found[name].append(line)
    return found
