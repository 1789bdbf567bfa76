"""Commands whose first word selects a domain's route: joins the options and help of all routes."""

import inspect
from collections.abc import Callable, Sequence
from copy import copy
from textwrap import fill
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

from orchard.actions.domain import TaskRoute
from orchard.workers.discovery import load

WIDTH = 106
"""Maximum characters of a line of help."""


def chosen(routes: Sequence[TaskRoute], words: Sequence[str]) -> TaskRoute:
    """Selects the route whose words begin the command line, else the one for all other words."""
    named = next((route for route in routes if words and words[0] in route.words), None)
    return named or next(route for route in routes if not route.words)


def routed(command: Callable[..., None], routes: Sequence[TaskRoute], text: str) -> Callable[..., None]:
    """Adds the options of all routes to `command`, whose last parameter, `options`, gets those that it
    lacks; `text` is its help."""
    own = inspect.signature(command, eval_str=True).parameters
    functions = {route.title: load(route.run) for route in routes}
    offered: dict[str, inspect.Parameter] = {}
    titles: dict[str, list[str]] = {}
    for title, function in functions.items():
        hints = get_type_hints(function, include_extras=True)
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in own:
                offered.setdefault(name, parameter.replace(annotation=hints[name]))
                titles.setdefault(name, []).append(title)
    named = {name: _prefixed(parameter, titles[name]) for name, parameter in offered.items()}

    def run(**given: Any) -> None:
        options = {name: given.pop(name) for name in named}
        command(**given, options=options)

    parameters = [one for name, one in own.items() if name != "options"]
    every = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*parameters, *named.values())]
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in every}
    run.__name__, run.__doc__ = command.__name__, text
    return run


def options_of(route: TaskRoute, options: dict[str, Any]) -> dict[str, Any]:
    """Selects the options that the route takes."""
    return {name: options[name] for name in inspect.signature(load(route.run)).parameters if name in options}


def help_text(command: str, verb: str, routes: Sequence[TaskRoute], between: str, *sentences: str) -> str:
    """Joins the help of a command: its first sentence, that of each route, and examples."""
    *most, last = (route.summary for route in routes)
    first = f"{verb} {f'{between} '.join([*most, f'or {last}'] if most else [last])}."
    details = " ".join(filter(None, [*sentences, *(route.details for route in routes), "For example:"]))
    examples = [f"    orchard {command} {line}" for route in routes for line in route.examples]
    return "\n".join([fill(first, WIDTH), "", fill(details, WIDTH), "", *examples])


def _prefixed(parameter: inspect.Parameter, titles: list[str]) -> inspect.Parameter:
    """Adds to a parameter's help the routes that take it, unless a route has no name."""
    if not all(titles) or get_origin(parameter.annotation) is not Annotated:
        return parameter
    kind, option = get_args(parameter.annotation)
    said: OptionInfo = copy(option)
    said.help = f"With {' and '.join(titles)}: {option.help}"
    return parameter.replace(annotation=Annotated[kind, said])
