"""Messages and the sandbox API fit those of the previous version, and theirs fit ours (decision 0073).

The rule: a field is added, never taken away or changed; the reader does without it; and in what asks for work
its default stands for "as before", which the previous version may pass over.
"""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orchard.injector.orchestrator.openapi import document
from orchard.schemas.documents import json_schema
from orchard.schemas.requests import is_as_before
from tests.upgrade.previous import RECORD, forms

WAS = json.loads(RECORD.read_text())
IS = forms(json_schema(), document())
ASKS = ("RolloutRequest", "AnnotationRequest", "ProveRequest", "JudgeRequest", "Task")
"""What asks a worker for something, with the structs in them."""

Definitions = dict[str, Any]


def differences(was: Definitions, now: Definitions) -> Iterator[str]:
    """What one of the two versions would not understand of the other."""
    for name, old in was.items():
        new = now.get(name)
        if new is None:
            yield f"{name} is gone"
            continue
        if gone := set(old.get("enum", ())) - set(new.get("enum", ())):
            yield f"{name} has lost {gone}"
        fields, before = new.get("properties", {}), old.get("properties", {})
        for field, form in before.items():
            if field not in fields:
                yield f"{name}.{field} is gone"
            elif not widened(form, fields[field]):
                yield f"{name}.{field} has another form"
        required, wanted = set(new.get("required", ())), set(old.get("required", ()))
        if required - wanted:
            yield f"{name} must have {sorted(required - wanted)}, which the previous version does not write"
        if wanted - required:
            yield f"{name} may lack {sorted(wanted - required)}, which the previous version must have"


def widened(old: Any, new: Any) -> bool:
    """Whether each value of the old form is one of the new. A default is not form; one more alternative takes
    none away."""
    old, new = ({**form} for form in (old, new))
    old.pop("default", None), new.pop("default", None)
    if old == new:
        return True
    alternatives = new.get("anyOf", [new])
    return all(each in alternatives for each in old.get("anyOf", [old]))


def inside(name: str, of: Definitions) -> set[str]:
    """The definitions that one refers to, itself included."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            text = json.dumps(of[one])
            waiting += [other for other in of if f'/{other}"' in text]
    return found


@pytest.mark.parametrize("which", ["messages", "sandboxes"])
def test_what_there_was_is_there_in_the_same_form(which: str) -> None:
    assert list(differences(WAS[which], IS[which])) == []


def test_every_route_is_there_and_asks_for_nothing_more() -> None:
    for route, was in WAS["routes"].items():
        now = IS["routes"].get(route)
        assert now is not None, f"{route} is gone"
        wanted = {name for name, required in now["parameters"].items() if required}
        assert wanted <= set(was["parameters"]), f"{route} wants what the previous version does not send"
        assert set(was["parameters"]) <= set(now["parameters"]), route
        assert set(was["answers"]) <= set(now["answers"]), route


def test_new_fields_of_what_asks_for_work_are_by_default_as_before() -> None:
    was, now = WAS["messages"], IS["messages"]
    for name in set().union(*(inside(each, now) for each in ASKS)) & set(was):
        for field in set(now[name].get("properties", {})) - set(was[name].get("properties", {})):
            default = now[name]["properties"][field].get("default")
            assert is_as_before(default), (
                f"{name}.{field}: {default!r} asks the previous version for something"
            )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda now: now.pop("TaskRef"), "TaskRef is gone"),
        (lambda now: now["TaskRef"]["properties"].pop("repo"), "TaskRef.repo is gone"),
        (lambda now: now["TaskRef"]["properties"]["repo"].update(type=""), "TaskRef.repo has another form"),
        (lambda now: now["TaskRef"]["required"].append("x"), "TaskRef must have ['x']"),
        (lambda now: now["TaskRef"]["required"].remove("repo"), "TaskRef may lack ['repo']"),
        (lambda now: now["CampaignState"]["enum"].remove("paused"), "CampaignState has lost {'paused'}"),
    ],
)
def test_changes_that_break_are_found(change: Callable[[Definitions], object], says: str) -> None:
    now = copy.deepcopy(WAS["messages"])
    change(now)
    (found,) = differences(WAS["messages"], now)
    assert found.startswith(says)
