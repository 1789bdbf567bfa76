"""Tools that a program runs itself and names without a schema: the model is shown functions with the schemas
that the vendors publish. Anthropic's are called like any other tool; those of Responses have items of their
own, which the structs here describe.
"""

from typing import Annotated, Any, Literal

import msgspec

from orchard.schemas.identity import canonical
from orchard.workers.gateway.wire_types import (
    BadProgramRequest,
    as_json,
    as_object,
    child,
    count,
    kind_of_part,
    mapping,
    named,
    text_of,
    word,
)

INPUT = "input"
"""The only property of a custom tool's arguments when it is sent upstream as a function."""
_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "integer"}
_RANGE: dict[str, Any] = {
    "type": "array",
    "items": _NUMBER,
    "description": "First and last line; -1 is the last of the file.",
}


def function(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """Returns a tool in the format of chat completions. Raises BadProgramRequest for a bad name."""
    described = {
        "name": named(name, "the name of a tool"),
        "description": text_of(description, "description"),
    }
    return {"type": "function", "function": {**described, "parameters": parameters}}


def custom_function(tool: dict[str, Any]) -> dict[str, Any]:
    """Returns a tool of type `custom`, whose argument is one text, as a function of one text."""
    parameters = {"type": "object", "properties": {INPUT: _TEXT}, "required": [INPUT]}
    return function(tool.get("name"), tool.get("description"), parameters)


def custom_text(arguments: str) -> str | None:
    """Returns the text of a call of such a tool; None if the model wrote other arguments, and the call has to
    go back as that of a function."""
    given = as_object(arguments)
    text = given.get(INPUT)
    return text if isinstance(text, str) and len(given) == 1 else None


# --- Anthropic: https://platform.claude.com/docs/en/agents-and-tools/tool-use ----------------------


def _commands(*commands: str, **properties: dict[str, Any]) -> dict[str, Any]:
    asked = {"command": {"type": "string", "enum": list(commands)}, **properties}
    return {"type": "object", "properties": asked, "required": ["command"]}


_EDIT = {"old_str": _TEXT, "new_str": _TEXT, "insert_line": _NUMBER}
_FILES = {"path": _TEXT, "file_text": _TEXT, "view_range": _RANGE, **_EDIT}
_VIEWS = ("view", "create", "str_replace", "insert")
_BASH = {"type": "object", "properties": {"command": _TEXT, "restart": {"type": "boolean"}}}
_SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "bash_": ("Run a command in a shell that keeps its state; `restart` starts a new one.", _BASH),
    "text_editor_20241022": ("View and edit files.", _commands(*_VIEWS, "undo_edit", **_FILES)),
    "text_editor_20250124": ("View and edit files.", _commands(*_VIEWS, "undo_edit", **_FILES)),
    "text_editor_": ("View and edit files.", _commands(*_VIEWS, **_FILES, insert_text=_TEXT)),
    "memory_": (
        "Keep notes in files under /memories.",
        _commands(*_VIEWS, "delete", "rename", **_FILES, insert_text=_TEXT, old_path=_TEXT, new_path=_TEXT),
    ),
}
"""Description and schema by the beginning of the tool's type; the first that fits is taken."""


def anthropic_function(tool: dict[str, Any]) -> dict[str, Any] | None:
    """Returns one of Anthropic's tools as a function; None for one that its own servers run. Raises
    BadProgramRequest for a bad name."""
    if "input_schema" in tool:
        return function(tool.get("name"), tool.get("description"), tool["input_schema"])
    kind = word(tool.get("type"))
    found = next((each for prefix, each in _SCHEMAS.items() if kind.startswith(prefix)), None)
    if found is None:
        return None
    description, parameters = found
    if most := count(tool, "max_characters"):
        description += f" A view has at most {most} characters."
    return function(tool.get("name"), description, parameters)


# --- Responses: https://platform.openai.com/docs/guides/tools -------------------------------------


class _Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class _LocalShell(_Arguments, frozen=True, kw_only=True):
    command: Annotated[list[str], msgspec.Meta(description="Program and arguments.")]
    working_directory: str | None = None
    env: dict[str, str] | None = None
    timeout_ms: int | None = None
    user: str | None = None


class _Shell(_Arguments, frozen=True, kw_only=True):
    commands: Annotated[list[str], msgspec.Meta(description="Commands of a shell, which run in order.")]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class _Patch(_Arguments, frozen=True, kw_only=True):
    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: Annotated[str | None, msgspec.Meta(description="V4A diff; none for `delete_file`.")] = None


_NATIVE: dict[str, tuple[type[_Arguments], str, str]] = {
    "local_shell": (_LocalShell, "action", "Run one command."),
    "shell": (_Shell, "action", "Run commands in a shell."),
    "apply_patch": (_Patch, "operation", "Create, update or delete a file with a diff."),
}
"""Arguments, their field in an item, and description, by the type of the tool, which is also its name."""
_CALLS = {f"{name}_call": name for name in _NATIVE}
NATIVE_CALLS = frozenset(_CALLS)
RESULTS = frozenset(f"{call}_output" for call in _CALLS)
"""Types of the items that hold the results of these tools."""


def native_function(tool: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a tool of Responses that the program runs as a function; None for another tool, and for a shell
    in a container of OpenAI."""
    kind = tool.get("type")
    place = mapping(tool.get("environment"), "environment").get("type", "local")
    if not isinstance(kind, str) or kind not in _NATIVE or place != "local":
        return None
    arguments, _, description = _NATIVE[kind]
    return function(kind, description, msgspec.json.schema(arguments)["$defs"][arguments.__name__])


def native_call(name: str, arguments: str) -> dict[str, Any] | None:
    """Returns type and content of the item for a model's call of such a tool; None if the arguments are not
    those of the tool, and the call has to go back as that of a function."""
    kind, field, _ = _NATIVE[name]
    given = {key: value for key, value in as_object(arguments).items() if value is not None}
    try:
        content = msgspec.to_builtins(msgspec.convert(given, kind))
    except msgspec.ValidationError:
        return None
    if name == "apply_patch" and ("diff" in content) is (content["type"] == "delete_file"):
        return None
    if name == "local_shell":
        content = {"type": "exec", "env": {}, **content}
    item = {"type": f"{name}_call", field: content}
    return item if canonical(as_object(native_arguments(item)[1])) == canonical(given) else None


def native_arguments(item: dict[str, Any]) -> tuple[str, str]:
    """Returns name and arguments of the call in such an item, the reverse of `native_call`."""
    name = _CALLS[item["type"]]
    field = _NATIVE[name][1]
    content = mapping(item.get(field), field)
    given = {key: value for key, value in content.items() if value is not None}
    if name == "local_shell":
        given = {key: value for key, value in given.items() if key != "type" and (key, value) != ("env", {})}
    return name, as_json(given)


def is_native_call(item: dict[str, Any]) -> bool:
    return word(item.get("type")) in _CALLS


def native_result(item: dict[str, Any]) -> str:
    """Returns what the model reads of a result: its text, or the JSON of its parts."""
    output = item.get("output")
    if item["type"] == "apply_patch_call_output":
        return as_json({name: item[name] for name in ("status", "output") if item.get(name) is not None})
    return output if isinstance(output, str) else as_json(output)


CHOICE = frozenset({"type", "name", "mode", "tools", "function", "custom", "allowed_tools"})
"""Fields of a `tool_choice` that are read."""


def choose(
    choice: Any, tools: tuple[dict[str, Any], ...]
) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Applies a `tool_choice` of either OpenAI wire: returns the tools that the model may call, and the field
    of chat completions for the choice among them. Raises BadProgramRequest for a tool that is not offered."""
    if not tools and isinstance(choice, str) and choice not in ("auto", "none"):
        raise BadProgramRequest("tool_choice: no tool is offered that the model can call; leave it out")
    if choice in (None, "auto") or isinstance(choice, str | list):
        return tools, {"tool_choice": choice} if tools and choice not in (None, "auto") else {}
    asked = child(choice)
    several = child(asked.get("allowed_tools")) or asked
    listed = several.get("tools") if asked.get("type") == "allowed_tools" else [asked]
    names = {_chosen(child(each)) for each in (listed if isinstance(listed, list) else [])}
    offered = {name_of(tool) for tool in tools}
    if missing := sorted(names - offered):
        raise BadProgramRequest(
            f"tool_choice: the model cannot be offered {missing[0]!r}; choose another tool"
        )
    if asked.get("type") == "allowed_tools":
        field = {"tool_choice": "required"} if several.get("mode") == "required" else {}
        return tuple(tool for tool in tools if name_of(tool) in names), field
    return tools, {"tool_choice": {"type": "function", "function": {"name": names.pop()}}}


def name_of(tool: dict[str, Any]) -> str:
    return word(child(tool.get("function")).get("name"))


def _chosen(choice: dict[str, Any]) -> str:
    named_in = child(choice.get("function")) or child(choice.get("custom")) or choice
    return word(named_in.get("name")) or kind_of_part(choice)


def check_names(tools: tuple[dict[str, Any], ...], native: frozenset[str]) -> None:
    """Raises BadProgramRequest if a tool without a schema has the name of another tool."""
    names = [name_of(tool) for tool in tools]
    for name in native:
        if names.count(name) > 1:
            raise BadProgramRequest(f"tools: two are called {name!r}; rename the one that is yours")
