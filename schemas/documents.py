"""JSON Schema and AsyncAPI 3 documents, from the structs: `python -m orchard.schemas.documents DIR`."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from orchard.schemas.campaigns import CampaignRecord, CampaignSpec, RolloutRequest
from orchard.schemas.events import DONE_TYPES, EVENT_TYPES, STARTED_TYPE, Event
from orchard.schemas.requests import JudgeRequest, ProveRequest
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.schemas.tasks import Task
from orchard.schemas.values import VERDICT_TYPES, AnnotationRequest

DOCUMENTS = ("asyncapi.json", "schema.json")
_STRUCTS: list[Any] = [
    *(Event, Task, CampaignSpec, CampaignRecord, AnnotationRequest, ProveRequest, JudgeRequest),
    *EVENT_TYPES.values(),
]
_REQUESTS = (RolloutRequest, AnnotationRequest, ProveRequest, JudgeRequest)
_ANSWERS = ("task.validated", "task.rejected", "judge.ruled")
"""Events that stand on subjects of their own where they answer a request."""


def json_schema() -> dict[str, Any]:
    """Makes the JSON Schema (2020-12) of every record that is stored or sent."""
    _, components = msgspec.json.schema_components(_STRUCTS, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Orchard",
        "$defs": components,
    }


def asyncapi() -> dict[str, Any]:
    """Makes the AsyncAPI 3.0 document: one channel for each event type, the work queue, and the dead
    letters."""
    _, components = msgspec.json.schema_components(_STRUCTS, ref_template="#/components/schemas/{name}")
    messages: dict[str, Any] = {}
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for kind, struct in EVENT_TYPES.items():
        messages[kind] = {
            "name": kind,
            "contentType": "application/json",
            "payload": {
                "allOf": [
                    {"$ref": "#/components/schemas/Event"},
                    {"properties": {"data": {"$ref": f"#/components/schemas/{struct.__name__}"}}},
                ]
            },
        }
        if kind in DONE_TYPES:
            address, parameters = f"{EVENTS_PREFIX}.done.{{rollout_id}}", ["rollout_id"]
        elif kind == STARTED_TYPE:
            address, parameters = f"{EVENTS_PREFIX}.started.{{rollout_id}}", ["rollout_id"]
        elif kind in VERDICT_TYPES:
            address, parameters = f"{EVENTS_PREFIX}.annotated.{{event_id}}", ["event_id"]
        else:
            address, parameters = f"{EVENTS_PREFIX}.{{campaign}}.{{shard}}.{kind}", ["campaign", "shard"]
        channels[kind] = {
            "address": address,
            "parameters": {name: {} for name in parameters},
            "messages": {kind: {"$ref": f"#/components/messages/{kind}"}},
        }
        operations[f"publish.{kind}"] = {"action": "send", "channel": {"$ref": f"#/channels/{kind}"}}
    channels["answers"] = {
        "address": f"{EVENTS_PREFIX}.answered.{{kind}}.{{key}}",
        "parameters": {"kind": {}, "key": {}},
        "messages": {kind: {"$ref": f"#/components/messages/{kind}"} for kind in _ANSWERS},
    }
    operations["publish.answers"] = {"action": "send", "channel": {"$ref": "#/channels/answers"}}
    messages["work"] = {
        "name": "work",
        "contentType": "application/json",
        "payload": {"oneOf": [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in _REQUESTS]},
    }
    channels["work"] = {
        "address": "orchard.work.{kind}.{domain}.{priority}.{campaign}.{shard}.{key}.{fence}",
        "parameters": {
            name: {"description": "Priority, and `:TEAM` where a team has submitted"}
            if name == "priority"
            else {}
            for name in ("kind", "domain", "priority", "campaign", "shard", "key", "fence")
        },
        "messages": {"work": {"$ref": "#/components/messages/work"}},
    }
    operations["claim.work"] = {"action": "receive", "channel": {"$ref": "#/channels/work"}}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Orchard",
            "version": "1",
            "description": "Requests on a work queue, facts on an event log.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"schemas": components, "messages": messages},
    }


def render() -> dict[str, str]:
    """Renders the documents: file name to text, exactly as checked in under `docs/schemas/`."""
    built = {"asyncapi.json": asyncapi(), "schema.json": json_schema()}
    return {name: json.dumps(built[name], indent=1, sort_keys=True) + "\n" for name in DOCUMENTS}


def main() -> None:
    """Writes the documents into the directory given as the only argument."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name, text in render().items():
        (target / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
