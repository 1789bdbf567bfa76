"""Renders the OpenAPI document as a self-contained page: `GET /docs`."""

import json
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font:14px/1.4 ui-monospace,monospace;background:#8882;border-radius:4px;padding:.1em .3em}"
    "pre{padding:.6em;overflow:auto}summary{cursor:pointer;margin:.4em 0}section{border-top:1px solid #8886}"
)


def page(document: dict[str, Any]) -> str:
    info = document["info"]
    operations = "".join(
        _operation(path, method.upper(), one)
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


def _operation(path: str, method: str, one: dict[str, Any]) -> str:
    taken = "".join(
        f"<li><code>{escape(parameter['name'])}</code> ({parameter['in']}"
        f"{', required' if parameter['required'] else ''}) {escape(parameter.get('description', ''))}</li>"
        for parameter in one.get("parameters", [])
    )
    body = _kinds(one.get("requestBody", {}).get("content", {}))
    answers = "".join(
        f"<li>{status} {escape(answer['description'])} {_kinds(answer.get('content', {}))}</li>"
        for status, answer in one["responses"].items()
    )
    return (
        f"<section><details><summary><code>{method} {escape(path)}</code> {escape(one['summary'])}</summary>"
        f"<ul>{taken}</ul>{f'<p>Body: {body}</p>' if body else ''}<p>Answers:</p><ul>{answers}</ul>"
        "</details></section>"
    )


def _kinds(content: dict[str, Any]) -> str:
    found = []
    for media, described in content.items():
        text = json.dumps(described.get("schema", {}))
        names = [part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]]
        links = " or ".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)
        found.append(f"{escape(media)} {links}".strip())
    return ", ".join(found)
