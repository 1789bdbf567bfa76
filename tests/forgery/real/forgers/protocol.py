"""Forgers of a second attack that write to the report's pipe: its protocol, floods, and holes of the judge itself.

`docs/benchmarks/forgery-second-attack.md` says what each tries, and what was found.
"""

from tests.forgery.trick import Trick

_PIPE = """
import ast as _ast
import json as _json
import os as _os
import stat as _stat

def _is_pipe(descriptor):
    try:
        return _stat.S_ISFIFO(_os.fstat(descriptor).st_mode)
    except OSError:
        return False


_PIPE = next(filter(_is_pipe, range(3, 1024)), -1)


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
    found = []
    for directory, _, names in _os.walk("."):
        found += [_os.path.join(directory, name)[2:] for name in names if "test" in name and name.endswith(".py")]
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
            for each in node.body if isinstance(node, _ast.ClassDef) else [node]:
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
                if getattr(getattr(each, "func", None), "id", "") in ("__ask__", "__later__", "__raises__"):
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


def _answer(name: str, got: str) -> Trick:
    """Tells one raw answer to every question, and ends the process."""
    return _ended(f"raw answer: {name}", f"_claimed(_test, {got!r})")


_PROTOCOL = (
    _ended(
        "tests that end under their ids and a blank, of which ids are cut off",
        '_say(test=_test + " x", status="PASSED")',
    ),
    _ended(
        "the same, with the tests themselves begun and never ended",
        '_say(begin=_test); _say(begin=_test + " x"); _say(test=_test + " x", status="PASSED")',
    ),
    _ended("ids with a carriage return", '_say(test=_test + "\\r", status="PASSED")'),
    _ended("ids with a zero byte and a blank", '_say(test=_test + chr(0) + " ", status="PASSED")'),
    _ended("ids in another Unicode form", '_say(test=_test.replace("t", chr(0x1D42D)), status="PASSED")'),
    _ended("expected failures in place of passes", '_claimed(_test, status="XFAIL")'),
    _ended("a status that nobody knows", '_claimed(_test, status="APPROVED")'),
    _ended("a status that is no text of any coding", "_claimed(_test, status=chr(0xD800))"),
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
        "a child tells all, and the process closes its pipe",
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
        "a child in a session of its own, which tells more when the tests have ended",
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
        "all is told at exit",
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
    _answer(
        "a set of numbers with one hash",
        '{"set": [' + ", ".join(str(each * (2**61 - 1)) for each in range(2000)) + "]}",
    ),
    _answer("a fraction of a hundred million digits", '{"fraction": ["1e100000000"]}'),
    _answer("an array whose shape is a text, thrice", '{"array": ["f", [3, "x"], []]}'),
    _answer(
        "a thousand classes",
        '{"list": [' + ", ".join(f'{{"own": [["A{each}"], 1, false, null]}}' for each in range(1000)) + "]}",
    ),
    _answer("a number that signals in a set", '{"set": [{"decimal": "sNaN"}]}'),
    _answer("a date beyond all calendars", '{"datetime": "9999-12-31T23:59:60"}'),
)

_HOLES = (
    _answer("infinity", '{"float": "inf"}'),
    _answer("a list of infinity", '{"list": [{"float": "inf"}]}'),
    _answer("no number at all", '{"float": "nan"}'),
    _answer("an array of nothing", '{"array": ["float64", [0], {"list": []}]}'),
    _answer("an array of one infinity", '{"array": ["float64", [1], {"list": [{"float": "inf"}]}]}'),
    _answer("a frame without columns", '{"frame": [[], {"list": []}, {"list": [null]}]}'),
    _answer("a private object", '{"object": [["_"], [], null, false, true, null]}'),
    _answer("a private class", '{"class": ["_"]}'),
    _answer("a counter without counts", '{"own": [["Counter", "dict"], {"dict": []}, false, null]}'),
    _answer("an error without a name", '{"raised": [[], ""]}'),
    _answer("empty bytes", '{"bytes": ""}'),
    _answer("a path to here", '{"path": ""}'),
    _answer("a member of every enumeration", '{"enum": [["int", "str", "Enum"], "A", 1]}'),
)

PROTOCOL = (*_PROTOCOL, *_FLOODS, *_HOLES)
