"""The prompts of the author's steps. The last line is the request as JSON, for programs that play one."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from orchard.pipelines.domains.claw.drafts import Idea, TaskDraft
from orchard.schemas.synthesis import SynthesisRequest
from orchard.workers.domains.claw.services import SERVICES

Messages = list[dict[str, Any]]

REQUEST = "REQUEST: "
"""Begins the last line."""
SHOWN_IDEAS = 60

_AUTHOR = """\
You write tasks for assistants with tools. A task happens in a world of services that hold records; the
assistant calls their tools, and a test script judges what is left. A good task takes three to ten calls, has
one right outcome that its statement decides, is honest work, and is not passed by nothing or by half of it.

The services:
{services}"""

_PROPOSE = """\
Propose one new idea that is unlike these:
{known}

Answer with one JSON object:
{{"title": ..., "goal": "<what the user wants, one sentence>", "services": [...]}}"""

_WRITE = """\
Write the task of this idea: {idea}

Answer with one JSON object:
- "statement": what the user says to the assistant. It must decide the outcome.
- "now": when it happens, ISO 8601 with a time zone. Times in records may be "now-2d@09:00".
- "services": service to collection to records, distractors included.
- "script": Python that defines grade(bundle) and returns {{"checks": {{name: bool}}, "safety": 0 or 1}}. It
  has bundle.new(service, collection, **fields), bundle.gone(...), bundle.records(...), bundle.audit,
  bundle.untouched(service), bundle.calls(tool, ok=True), bundle.state and bundle.initial. It must raise on no
  bundle.
- "solution": the calls that solve it, in order: [{{"tool": "mail_list_messages", "arguments": {{}}}}, ...]"""

_REFINE = """\
This task is not proven: {defect}

Repair statement, world, script or solution, whatever is wrong, and answer with the whole JSON object again:
{draft}"""


def propose(request: SynthesisRequest, known: Sequence[str]) -> Messages:
    shown = "\n".join(f"- {each}" for each in known[-SHOWN_IDEAS:]) or "(none)"
    return _asked(_PROPOSE.format(known=shown), request)


def write(request: SynthesisRequest, idea: Idea) -> Messages:
    return _asked(_WRITE.format(idea=msgspec.json.encode(idea).decode()), request)


def refine(request: SynthesisRequest, draft: TaskDraft | None) -> Messages:
    text = msgspec.json.encode(draft).decode() if draft else "(it could not be read)"
    return _asked(_REFINE.format(defect=request.defect, draft=text), request)


def _asked(text: str, request: SynthesisRequest) -> Messages:
    facts = {"step": request.step, "seed": request.seed, "slot": request.slot, "turn": request.turn}
    line = REQUEST + msgspec.json.encode(facts).decode()
    return [
        {"role": "system", "content": _AUTHOR.format(services=_services())},
        {"role": "user", "content": f"{text}\n\n{line}"},
    ]


@cache
def _services() -> str:
    parts = []
    for service in SERVICES.values():
        parts.append(f"\n{service.name}: {service.about}")
        for each in service.collections:
            parts.append(
                f"  records {each.name}: id {each.id}, {', '.join(each.fields)}; needs {each.required}"
            )
        for one in service.operations:
            arguments = ", ".join(name if name in one.required else f"[{name}]" for name in one.arguments)
            parts.append(f"  {service.name}_{one.name}({arguments}): {one.about}")
    return "\n".join(parts)
