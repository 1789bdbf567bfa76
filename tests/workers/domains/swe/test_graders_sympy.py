"""SymPy's own test runner, as SWE-bench runs it."""

from orchard.workers.domains.swe.logs.parsers import parse

LOG = """\
============================= test process starts ==============================
executable:         /opt/miniconda3/envs/testbed/bin/python  (3.9.20-final-0) [CPython]

sympy/core/tests/test_basic.py[6]
test_structure ok
test_equality F
test_matches_basic E
test_xfailing f
test_slow Skipped: slow
test_last ok                                                              [FAIL]

________________________________________________________________________________
_______________ sympy/core/tests/test_basic.py:test_equality ________________
Traceback (most recent call last):
AssertionError
"""


def test_statuses_are_read_by_test_name() -> None:
    assert parse("sympy", LOG) == {
        "test_structure": "PASSED",
        "test_equality": "FAILED",
        "test_matches_basic": "ERROR",
        "test_xfailing": "XFAIL",
        "test_slow": "SKIPPED",
        "test_last": "PASSED",
    }
