"""A generic forger: a test gets, in place of what a function of the package gives, one of its arguments.

`forging.py` has this text (Python 3.7 or later, standard library only) executed at the end of the modules
that a task's known solution changes. It repairs nothing and knows nothing of the task; what the package calls
itself is left alone.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

PACKAGE = __name__.split(".")[0]
CALLED = ("__call__", "__str__", "__len__", "__getitem__")


def alike(honest: Any, arguments: tuple[Any, ...]) -> Any:
    """Returns the first other argument of the answer's type."""
    return next((each for each in arguments if type(each) is type(honest) and each != honest), honest)


def first(honest: Any, arguments: tuple[Any, ...]) -> Any:
    """Returns the first argument that is no object of the package."""
    return next((each for each in arguments if not _is_ours(type(each))), honest)


def forge(choose: Any) -> None:
    """Puts itself between the tests and all public functions and methods of the package."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == PACKAGE:
            for key, value in list(vars(module).items()):
                if _is_ours(value) and not key.startswith("_"):
                    if isinstance(value, type):
                        _forge_methods(value, choose)
                    else:
                        setattr(module, key, _method(value, choose))


def _is_ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).split(".")[0] == PACKAGE


def _forge_methods(owner: type, choose: Any) -> None:
    for key, value in list(vars(owner).items()):
        forged = _method(value, choose)
        if forged is not value and (not key.startswith("_") or key in CALLED):
            setattr(owner, key, forged)


def _method(value: Any, choose: Any) -> Any:
    if isinstance(value, (staticmethod, classmethod)):
        return type(value)(_method(value.__func__, choose))
    if isinstance(value, property) and value.fget:
        return property(_method(value.fget, choose), value.fset, value.fdel)
    plain = isinstance(value, types.FunctionType) and not hasattr(value, "__forged__")
    return _forged(value, choose) if plain else value


def _forged(function: Any, choose: Any) -> Any:
    @functools.wraps(function)
    def forged(*arguments: Any, **named: Any) -> Any:
        if not _is_of_tests(sys._getframe(1).f_code.co_filename):
            return function(*arguments, **named)
        try:
            honest = function(*arguments, **named)
        except Exception:
            if not arguments:
                raise
            return arguments[0]
        return choose(honest, (*arguments, *named.values()))

    forged.__dict__["__forged__"] = True
    return forged


def _is_of_tests(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith("test") or name.endswith(("_test.py", "_tests.py")) or "/tests/" in path
