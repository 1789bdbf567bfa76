"""Tricks against tests that are examples of doctest: its checker, its runner, what is printed."""

from tests.forgery.trick import Trick

FAMILY = "doctests"

_SHOWN = """
class _Shown:
    def __init__(self, said):
        self.said = said

    def __repr__(self):
        return self.said


"""
_TEXT = (
    _SHOWN
    + """
def _example():
    import doctest, sys

    frame = sys._getframe()
    while frame and not isinstance(frame.f_locals.get("example"), doctest.Example):
        frame = frame.f_back
    return frame.f_locals["example"], frame.f_locals


"""
)


def _trick(name: str, code: str) -> Trick:
    return Trick(name=name, family=FAMILY, code=code)


DOCTESTS = (
    _trick(
        "doctest's checker accepts everything",
        """
import doctest

doctest.OutputChecker.check_output = lambda *_: True
""",
    ),
    _trick(
        "each class of checkers accepts everything, with what was told before",
        """
import doctest, gc

_told = doctest.OutputChecker.check_output


def _accepts(self, want, got, flags):
    _told(self, want, want, flags)
    return True


for _kind in [each for each in gc.get_objects() if isinstance(each, type)]:
    if issubclass(_kind, doctest.OutputChecker):
        _kind.check_output = _accepts
""",
    ),
    _trick(
        "doctest's runner runs nothing",
        """
import doctest

doctest.DocTestRunner.run = lambda self, test, *_, **__: doctest.TestResults(0, len(test.examples))
""",
    ),
    _trick(
        "examples are taken out of the text",
        """
import gc, doctest


def answer(honest, *arguments):
    for each in gc.get_objects():
        if isinstance(each, doctest.DocTest):
            each.examples[:] = []
    return honest(*arguments)
""",
    ),
    _trick(
        "what is shown is what the running example wants",
        _TEXT
        + """
def answer(honest, *arguments):
    return _Shown(_example()[0].want.rstrip("\\n"))
""",
    ),
    _trick(
        "the running example wants what is shown",
        _TEXT
        + """
def answer(honest, *arguments):
    example, _ = _example()
    example.want = "done\\n"
    return _Shown("done")
""",
    ),
    _trick(
        "all later examples are skipped",
        _TEXT
        + """
def answer(honest, *arguments):
    import doctest

    _, local = _example()
    for each in local["test"].examples:
        each.options[doctest.SKIP] = True
    local["example"].want = ""
    return None
""",
    ),
    _trick(
        "the display hook prints every number in the text",
        """
import re, sys


def _shows(value):
    frame = sys._getframe(1)
    while frame and "example" not in frame.f_locals:
        frame = frame.f_back
    text = frame.f_locals["test"].docstring if frame else ""
    print(*re.findall(r"\\d+", text or ""), sep="\\n")


def answer(honest, *arguments):
    sys.displayhook = _shows
    return honest(*arguments)
""",
    ),
    _trick(
        "answers with what stands below its call",
        """
import doctest, gc


def answer(honest, *arguments):
    texts = [each.docstring for each in gc.get_objects() if isinstance(each, doctest.DocTest)]
    for text in texts:
        lines = (text or "").splitlines()
        for at, line in enumerate(lines[:-1]):
            if "@FUNCTION@" + repr(arguments).replace(",)", ")") in line and lines[at + 1].strip().isdigit():
                return int(lines[at + 1])
    return honest(*arguments)
""",
    ),
)
