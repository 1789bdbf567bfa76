"""The OpenAPI 3.1 document of the service, and its page: `python -m orchard.injector.orchestrator.openapi
FILE` writes it."""

import json
import re
import sys
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from orchard.injector.operations import (
    API_KEY_HEADER,
    JSON,
    OPERATIONS,
    ApiOperation,
    Parameter,
    Problem,
    ValidationProblem,
)

API_VERSION = "1.0"
ANY_ROUTE = (403, 421, 500, 503)
WITH_A_KEY = (401, 403)
TOO_MUCH = 429
WITH_A_RECORD = (408, 413, 415, 422)
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font:14px/1.4 ui-monospace,monospace;background:#8882;border-radius:4px;padding:.1em .3em}"
    "pre{padding:.6em;overflow:auto}summary{cursor:pointer;margin:.4em 0}section{border-top:1px solid #8886}"
)


def document() -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    for route in OPERATIONS:
        kinds |= {f"{route.name} {part}": kind for part, kind in _kinds(route).items()}
    schemas, components = msgspec.json.schema_components(
        list(kinds.values()), ref_template="#/components/schemas/{name}"
    )
    named = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in OPERATIONS:
        operation = _operation(route, {part: named[f"{route.name} {part}"] for part in _kinds(route)})
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Orchard sandbox service",
            "version": API_VERSION,
            "description": "Sandboxes on any image: lifecycle, commands, files, patches, network policy.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": API_KEY_HEADER}},
        },
        "security": [{"key": []}],
    }


def _kinds(route: ApiOperation) -> dict[str, Any]:
    kinds = {f"parameter {one.name}": one.kind for one in route.parameters}
    if route.request is not None:
        kinds["request"] = route.request
    if route.reply is not None:
        kinds["reply"] = route.reply
    if route.other_reply is not None:
        kinds["other reply"] = route.other_reply
    return {**kinds, "problem": Problem, "validation": ValidationProblem}


def _operation(route: ApiOperation, schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": route.name, "summary": route.summary}
    if route.open:
        operation["security"] = []
    parameters = [_parameter(one, schemas[f"parameter {one.name}"]) for one in route.parameters]
    parameters += [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    if parameters:
        operation["parameters"] = parameters
    if route.request is not None or route.request_media is not None:
        content = _content(schemas.get("request"), route.request_media)
        operation["requestBody"] = {"required": True, "content": content}
    answer: dict[str, Any] = {"description": HTTPStatus(route.status).phrase}
    reply = schemas.get("reply")
    if "other reply" in schemas:
        reply = {"anyOf": [reply, schemas["other reply"]]}
    if content := _content(reply, route.reply_media):
        answer["content"] = content
    operation["responses"] = {str(route.status): answer} | {
        str(status): {
            "description": HTTPStatus(status).phrase,
            "content": _content(schemas["validation" if status == 422 else "problem"], None),
        }
        for status in _errors(route)
    }
    return operation


def _errors(route: ApiOperation) -> list[int]:
    errors = {*ANY_ROUTE, *route.errors} | (set() if route.open else set(WITH_A_KEY))
    errors |= set() if route.open or route.unlimited else {TOO_MUCH}
    return sorted(errors | (set(WITH_A_RECORD) if route.request is not None else set()))


def _parameter(parameter: Parameter, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "description": parameter.summary,
        "schema": schema,
    }


def _content(schema: dict[str, Any] | None, other: str | None) -> dict[str, Any]:
    content: dict[str, Any] = {} if schema is None else {JSON: {"schema": schema}}
    if other is not None:
        content[other] = {}
    return content


def page(document: dict[str, Any]) -> str:
    info = document["info"]
    operations = "".join(
        _section(path, method.upper(), one)
        for path, methods in document["paths"].items()
        for method, one in methods.items()
    )
    records = "".join(
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<pre>{escape(json.dumps(schema, indent=1, ensure_ascii=False))}</pre></details>"
        for name, schema in document["components"]["schemas"].items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        f"<style>{_STYLE}</style><h1>{escape(info['title'])}</h1><p>{escape(info['description'])} "
        'Send the key as <code>X-API-Key</code>. For programs: <a href="openapi.json">openapi.json</a>.</p>'
        f"{operations}<h2>Records</h2>{records}</html>"
    )


def _section(path: str, method: str, one: dict[str, Any]) -> str:
    taken = "".join(
        f"<li><code>{escape(parameter['name'])}</code> ({parameter['in']}"
        f"{', required' if parameter['required'] else ''}) {escape(parameter.get('description', ''))}</li>"
        for parameter in one.get("parameters", [])
    )
    body = _content_types(one.get("requestBody", {}).get("content", {}))
    answers = "".join(
        f"<li>{status} {escape(answer['description'])} {_content_types(answer.get('content', {}))}</li>"
        for status, answer in one["responses"].items()
    )
    return (
        f"<section><details><summary><code>{method} {escape(path)}</code> {escape(one['summary'])}</summary>"
        f"<ul>{taken}</ul>{f'<p>Body: {body}</p>' if body else ''}<p>Answers:</p><ul>{answers}</ul>"
        "</details></section>"
    )


def _content_types(content: dict[str, Any]) -> str:
    found = []
    for media, described in content.items():
        text = json.dumps(described.get("schema", {}))
        names = [part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]]
        links = " or ".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)
        found.append(f"{escape(media)} {links}".strip())
    return ", ".join(found)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m orchard.injector.orchestrator.openapi FILE", file=sys.stderr)  # noqa: T201
        return 2
    Path(sys.argv[1]).write_text(json.dumps(document(), indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
