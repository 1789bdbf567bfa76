"""The test script that calls the checkout's own grader; it runs in the frame, next to the checkout's
package."""

import base64
import inspect
import json
import os
import time
from types import SimpleNamespace
from typing import Any

CHAT = "chat"
"""Name of a question whose answer is text instead of a verdict."""


def grade(bundle: Any, judge: Any) -> dict[str, Any]:
    """Returns the scores of the task's grader in the frame's format."""
    from claw_eval.graders.registry import get_grader  # type: ignore[import-not-found]
    from claw_eval.models.task import TaskDefinition  # type: ignore[import-not-found]
    from claw_eval.models.trace import ToolDispatch, TraceMessage  # type: ignore[import-not-found]

    seen = bundle.raw
    folder = seen["folder"]
    task = TaskDefinition.from_yaml(os.path.join(folder, "task.yaml"))
    grader = get_grader(task.task_id, tasks_dir=os.path.dirname(folder), task_dir=folder)
    failed = {each["tool_use_id"] for each in seen["dispatches"] if each["response_status"] >= 400}
    messages = [TraceMessage.model_validate(each) for each in traced(seen["messages"], failed)]
    dispatches = [ToolDispatch.model_validate({"trace_id": "orchard", **each}) for each in seen["dispatches"]]
    given = {"audit_data": seen["audit_data"], "judge": judge_of(judge) if seen["judged"] else None}
    more = {
        "media_events": [],
        "env_snapshot": {**seen["env_snapshot"], **local_files(folder, seen["local_grader_files"])},
    }
    taken = inspect.signature(grader.grade).parameters
    given |= {name: value for name, value in more.items() if name in taken}
    scores = grader.grade(messages, dispatches, task, **given)
    return {
        "completion": float(scores.completion),
        "robustness": float(scores.robustness),
        "safety": float(scores.safety),
        "notes": f"communication {float(scores.communication):g}",
    }


def traced(messages: list[dict[str, Any]], failed: set[str]) -> list[dict[str, Any]]:
    """Converts OpenAI chat messages to Claw-Eval's traces, which have content blocks; the results of one
    assistant message become one user message. `failed` are the ids of failed calls."""
    found: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for message in messages:
        role, text = message.get("role"), message.get("content") or ""
        if role == "tool":
            if not results:
                found.append({"trace_id": "orchard", "message": {"role": "user", "content": results}})
            name = message.get("tool_call_id", "")
            said = [{"type": "text", "text": worded(text)}]
            block = {"type": "tool_result", "tool_use_id": name, "content": said, "is_error": name in failed}
            results.append(block)
            continue
        results = []
        if role == "system":
            continue
        blocks: list[dict[str, Any]] = [{"type": "text", "text": worded(text)}] if text else []
        for call in message.get("tool_calls") or []:
            function = call["function"]
            blocks.append(
                {"type": "tool_use", "id": call["id"], "name": function["name"], "input": read(function)}
            )
        made = {"role": "assistant" if role == "assistant" else "user", "content": blocks}
        if thought := message.get("reasoning_content") or message.get("reasoning"):
            made["reasoning_content"] = thought
        found.append({"trace_id": "orchard", "message": made})
    return found


def worded(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content if part.get("type") == "text")
    return str(content)


def read(function: dict[str, Any]) -> dict[str, Any]:
    """Parses the arguments of a call; unreadable ones stay text."""
    try:
        given = json.loads(function["arguments"])
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {"arguments": function["arguments"]}


def local_files(folder: str, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                content = base64.b64encode(file.read()).decode()
            found[f"local_file:{name}"] = {"encoding": "base64", "content": content}
        except OSError as error:
            found[f"local_file:{name}"] = {"error": str(error)}
    return found


def judge_of(ask: Any) -> Any:
    """Makes the checkout's own judge, with its own prompts; the worker supplies the model."""
    from claw_eval.graders.llm_judge import LLMJudge  # type: ignore[import-not-found]

    time.sleep = lambda _: None  # between tries, which are the worker's
    judge = LLMJudge(model_id="orchard", api_key="none", base_url="http://127.0.0.1:1")
    judge.client = SimpleNamespace(chat=SimpleNamespace(completions=Completions(ask)))
    return judge


class Completions:
    """A stand-in for an OpenAI client's chat completions."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask
        self._asked: list[Any] = []

    def create(self, *, messages: Any, **_: Any) -> Any:
        """Asks the worker; a repeated question counts as a retry."""
        tries = self._asked.count(messages)
        self._asked.append(messages)
        text = self._ask(CHAT, "", messages=messages, tries=tries)["text"]
        message = SimpleNamespace(content=text, tool_calls=None)
        return SimpleNamespace(choices=[SimpleNamespace(message=message, finish_reason="stop")], usage=None)
