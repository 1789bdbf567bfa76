"""The difference between two JSON values, as a JSON value that makes one of the other. Pure."""

from typing import Any

Difference = list[Any] | dict[str, Any]
"""`[value]`: this value instead. `[]`: the field is not there. An object: differences by field or index."""


def difference(ours: Any, theirs: Any) -> Difference:
    """What makes `theirs` of `ours`; an empty object for equal ones."""
    if type(ours) is type(theirs):
        if ours == theirs:
            return {}
        if isinstance(ours, dict):
            found: dict[str, Any] = {
                key: difference(ours[key], value) if key in ours else [value]
                for key, value in theirs.items()
                if key not in ours or ours[key] != value
            }
            return found | {key: [] for key in ours if key not in theirs}
        if isinstance(ours, list) and len(ours) == len(theirs):
            pairs = enumerate(zip(ours, theirs, strict=True))
            return {str(index): difference(a, b) for index, (a, b) in pairs if a != b}
    return [theirs]


def applied(ours: Any, change: Difference) -> Any:
    """`theirs` again. Raises LookupError where `ours` is not what the difference was made from."""
    if isinstance(change, list):
        return change[0]
    if not change:
        return ours
    if isinstance(ours, list):
        made = list(ours)
        for index, each in change.items():
            made[int(index)] = applied(made[int(index)], each)
        return made
    result = {key: value for key, value in ours.items() if change.get(key) != []}
    for key, each in change.items():
        if each != []:
            result[key] = each[0] if isinstance(each, list) else applied(ours[key], each)
    return result
