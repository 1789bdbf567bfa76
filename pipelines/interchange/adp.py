"""ADP, the Agent Data Protocol: its records, and its trajectories as ATIF.

Written down from the models of github.com/neulab/agent-data-protocol, versions 1.0 to 1.5, which refuse
unknown fields. Calls of code have the names that ADP's own conversion to ATIF gives them.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from orchard.pipelines.interchange import atif

AGENT = "adp"
KEY = "adp"
"""Key in `extra` of what ATIF has no field for."""
_CODE = {
    **dict.fromkeys(("bash", "sh", "shell"), ("execute_bash", "command")),
    **dict.fromkeys(("python", "py", "python3"), ("execute_ipython_cell", "code")),
}


class _Item(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="class_",
):
    tool_call_id: str | None = None
    reward: float | None = None


class ApiAction(_Item, frozen=True, kw_only=True, tag="api_action"):
    function: str
    kwargs: dict[str, Any]
    description: str | None = None
    reasoning_content: str | None = None


class CodeAction(_Item, frozen=True, kw_only=True, tag="code_action"):
    language: str
    content: str
    description: str | None = None
    reasoning_content: str | None = None


class MessageAction(_Item, frozen=True, kw_only=True, tag="message_action"):
    content: str
    description: str | None = None
    reasoning_content: str | None = None


class TextObservation(_Item, frozen=True, kw_only=True, tag="text_observation"):
    content: str
    source: Literal["user", "agent", "environment", "system", "assistant"]
    name: str | None = None


class ImageObservation(_Item, frozen=True, kw_only=True, tag="image_observation"):
    content: str
    """Path of the picture."""
    source: Literal["user", "agent", "environment"] = "environment"
    annotations: Any = None


class WebObservation(_Item, frozen=True, kw_only=True, tag="web_observation"):
    html: str | None = None
    axtree: str | None = None
    url: str | None = None
    image_observation: ImageObservation | None = None
    viewport_size: tuple[int, int] | None = None


Action = ApiAction | CodeAction | MessageAction
Observed = TextObservation | ImageObservation | WebObservation


class AdpTrajectory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    content: list[Action | Observed]
    schema_version: str = "1.0.0"
    details: dict[str, Any] = {}
    available_apis: list[str] | None = None
    available_custom_tools: list[str] | None = None
    available_code_languages: list[str] | None = None


def as_atif(found: AdpTrajectory) -> atif.Trajectory:
    """Each action is a step; an observation of the environment is a result of the step that it names, else of
    the last one. Raises ValueError for an unknown version."""
    if not found.schema_version.startswith("1."):
        raise ValueError(f"schema_version {found.schema_version!r} of ADP is not known: 1.x is")
    steps: list[atif.Step] = []
    by_call: dict[str, int] = {}
    for item in found.content:
        if isinstance(item, Action):
            step = _acted(item, len(steps) + 1)
            for call in step.tool_calls or ():
                by_call[call.tool_call_id] = len(steps)
            steps.append(step)
            continue
        at = by_call.get(item.tool_call_id or "", len(steps) - 1)
        source = getattr(item, "source", "environment")
        if source == "environment" and at >= 0 and steps[at].source == "agent":
            steps[at] = _answered(steps[at], item)
        else:
            author: Any = {"assistant": "agent", "environment": "user"}.get(source, source)
            steps.append(
                atif.Step(step_id=len(steps) + 1, source=author, message=_seen(item), extra=_rest(item))
            )
    about = {
        name: value
        for name in ("details", "available_apis", "available_custom_tools", "available_code_languages")
        if (value := getattr(found, name))
    }
    return atif.Trajectory(
        schema_version=atif.VERSION,
        session_id=found.id,
        trajectory_id=found.id,
        agent=atif.Agent(name=AGENT, version=found.schema_version, tool_definitions=_tools(steps) or None),
        steps=steps,
        extra={KEY: about} if about else None,
    )


def _tools(steps: Sequence[atif.Step]) -> list[dict[str, Any]]:
    """The tools that the calls tell of, by name and arguments: ADP has no definitions."""
    found: dict[str, dict[str, Any]] = {}
    for step in steps:
        for call in step.tool_calls or ():
            found.setdefault(call.function_name, {}).update({key: {} for key in call.arguments})
    return [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": each}}}
        for name, each in found.items()
    ]


def _acted(item: Action, number: int) -> atif.Step:
    name = item.tool_call_id or f"call_{number:06d}"
    call = None
    if isinstance(item, ApiAction):
        call = atif.AtifToolCall(tool_call_id=name, function_name=item.function, arguments=item.kwargs)
    elif isinstance(item, CodeAction):
        function, argument = _CODE.get(item.language, ("execute_code", "content"))
        language = {} if item.language in _CODE else {"language": item.language}
        call = atif.AtifToolCall(
            tool_call_id=name, function_name=function, arguments={**language, argument: item.content}
        )
    return atif.Step(
        step_id=number,
        source="agent",
        message=item.content if isinstance(item, MessageAction) else item.description or "",
        reasoning_content=item.reasoning_content,
        tool_calls=[call] if call else None,
        extra=_rest(item),
    )


def _answered(step: atif.Step, item: Observed) -> atif.Step:
    before: Sequence[atif.Result] = step.observation.results if step.observation else ()
    answered = {result.source_call_id for result in before}
    free = [call.tool_call_id for call in step.tool_calls or () if call.tool_call_id not in answered]
    result = atif.Result(source_call_id=free[0] if free else None, content=_seen(item), extra=_rest(item))
    return msgspec.structs.replace(step, observation=atif.Observation(results=[*before, result]))


def _seen(item: Observed) -> atif.Content:
    """What the agent was shown: of a page the accessibility tree, else the HTML, and the picture."""
    if isinstance(item, TextObservation):
        return item.content
    picture = item if isinstance(item, ImageObservation) else item.image_observation
    text = (item.axtree or item.html or "") if isinstance(item, WebObservation) else ""
    if picture is None:
        return text
    parts = [atif.Part(type="text", text=text)] if text else []
    return [*parts, atif.Part(type="image", source=atif.MediaSource(path=picture.content))]


def _rest(item: Action | Observed) -> dict[str, Any]:
    """The fields that have no place of their own in a step."""
    mine = {"tool_call_id", "function", "kwargs", "content", "reasoning_content", "axtree"}
    if not isinstance(item, MessageAction):
        mine.add("description")
    return {KEY: {name: value for name, value in msgspec.to_builtins(item).items() if name not in mine}}
