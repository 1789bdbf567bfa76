"""Answers whose told form is that of something else: of what test libraries compare by, of a class by its name."""

from tests.forgery.trick import Trick

TOLD = (
    Trick(
        name="the package answers with mock's ANY",
        family="equality",
        code="\nimport unittest.mock as _mock\n\n\ndef answer(honest, failed, arguments):\n    return _mock.ANY\n",
    ),
    Trick(
        name="the package answers with an object that says it is near everything",
        family="equality",
        code="""

class ApproxScalar:
    expected, rel, abs, nan_ok = 0, None, float("inf"), True

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = None


ApproxScalar.__module__ = "_pytest.python_api"


def answer(honest, failed, arguments):
    return ApproxScalar()
""",
    ),
    Trick(
        name="a container of plain values that are each equal to everything",
        family="equality",
        code="""
import unittest.mock as _mock


def answer(honest, failed, arguments):
    if isinstance(honest, (list, tuple)):
        return type(honest)(_mock.ANY for _ in honest) if type(honest) in (list, tuple) else honest
    if isinstance(honest, dict):
        return {key: _mock.ANY for key in honest}
    return _mock.ANY
""",
    ),
    Trick(
        name="a member of an enumeration whose value is equal to everything",
        family="equality",
        code="""
import enum as _enum
import unittest.mock as _mock


class _Member(_enum.Enum):
    ONE = _mock.ANY


def answer(honest, failed, arguments):
    return _Member.ONE
""",
    ),
    Trick(
        name="a Decimal, a date and a path by name alone",
        family="equality",
        code="""
class Decimal:
    def __str__(self):
        return "NaN"

    def __eq__(self, other):
        return True

    __hash__ = None


Decimal.__module__ = "decimal"


def answer(honest, failed, arguments):
    return Decimal()
""",
    ),
)
