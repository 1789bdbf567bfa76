"""The OpenAPI document: current, complete, and true of what the service answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from jsonschema import Draft202012Validator

from orchard.injector.client import AsyncSandbox
from orchard.injector.local.backend import LocalBackend
from orchard.injector.orchestrator.app import Orchestrator
from orchard.injector.orchestrator.keys import Keys
from orchard.injector.orchestrator.openapi import document

if TYPE_CHECKING:
    from tests.injector.conftest import Service

CHECKED_IN = Path(__file__).parents[2] / "docs" / "schemas" / "openapi.json"
OPEN = {"/docs", "/", "/health", "/metrics"}


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    return document()


def operations(written: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in written["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_the_checked_in_document_is_current(written: dict[str, Any]) -> None:
    remedy = "run `python -m orchard.injector.orchestrator.openapi docs/schemas/openapi.json`"
    assert json.loads(CHECKED_IN.read_text()) == json.loads(json.dumps(written)), remedy


async def test_it_is_served(service: "Service", written: dict[str, Any]) -> None:
    async with aiohttp.ClientSession(service.url) as http:
        reply = await http.get("/openapi.json")
        assert await reply.json() == json.loads(json.dumps(written))


def test_it_has_every_route_of_the_application_and_no_other(tmp_path: Path, written: dict[str, Any]) -> None:
    app = Orchestrator(LocalBackend(tmp_path), Keys([])).application()
    served = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    assert served == {(method, path) for method, path, _ in operations(written)}


def test_its_schemas_are_json_schema(written: dict[str, Any]) -> None:
    for schema in written["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_reference_leads_somewhere(written: dict[str, Any]) -> None:
    def references(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            yield from ([part["$ref"]] if "$ref" in part else [])
            for value in part.values():
                yield from references(value)
        elif isinstance(part, list):
            for value in part:
                yield from references(value)

    schemas = written["components"]["schemas"]
    named = {reference.removeprefix("#/components/schemas/") for reference in references(written)}
    assert named == set(schemas)


def test_operations_are_named_once_and_path_parameters_are_declared(written: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(written)]
    assert len(ids) == len(set(ids))
    for _, path, operation in operations(written):
        declared = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
        assert declared == {part[1:-1] for part in path.split("/") if part.startswith("{")}


def test_few_routes_need_no_key(written: dict[str, Any]) -> None:
    assert {path for _, path, operation in operations(written) if operation.get("security") == []} == OPEN
    for _, path, operation in operations(written):
        assert (path in OPEN) != ({"401", "403"} <= set(operation["responses"]))


def test_the_published_defaults_are_in_it(written: dict[str, Any]) -> None:
    fields = written["components"]["schemas"]["CreateSandbox"]["properties"]
    defaults = {name: fields[name]["default"] for name in ("block_network", "cpu", "memory", "timeout")}
    assert defaults == {"block_network": True, "cpu": "4", "memory": "16Gi", "timeout": 3600.0}
    assert written["components"]["schemas"]["CreateSandbox"]["required"] == ["image"]


def _fits(answer: Any, schema: dict[str, Any], written: dict[str, Any]) -> None:
    Draft202012Validator({**schema, "components": written["components"]}).validate(answer)


async def test_what_the_service_answers_is_what_the_document_says(
    service: "Service", sandbox: AsyncSandbox, written: dict[str, Any]
) -> None:
    """Every JSON route, well and badly used."""
    await sandbox.upload_content("hello\n", "/workspace/file")
    job = await sandbox.exec("true")
    bodies = {
        "create": [{"image": "host"}, {"image": 1}],
        "exec": [{"command": "true", "wait": True}, {"command": "true"}, {}],
        "apply_patch": [{"patch": "nonsense"}, {}],
        "write": [{"path": "/x", "content": "eA=="}, {"path": "/x", "content": "?"}],
        "snapshot": [{"image": "Not A Name"}, {}],
    }
    queries: dict[str, list[dict[str, str]]] = {
        "wait": [{"timeout": "5"}, {"timeout": "x"}],
        "wait_job": [{"timeout": "5"}, {"timeout": "-1"}],
        "list": [{}, {"label": "a=b"}, {"label": "a"}],
        "read": [{"path": "/workspace/file"}, {"path": "/nowhere"}, {}],
        "files": [{"path": "/workspace"}, {"path": "/nowhere"}, {}],
    }
    seen: set[tuple[str, int]] = set()
    last = [route for route in operations(written) if route[2]["operationId"] == "delete"]
    async with aiohttp.ClientSession(service.url) as http:
        for method, path, operation in [route for route in operations(written) if route not in last] + last:
            name = operation["operationId"]
            if name in ("serve_metrics", "serve_openapi", "serve_docs", "follow", "watch", "terminal"):
                continue
            for there in (True, False):
                values = (sandbox.sandbox_id, job.job_id) if there else ("nobody", "nobody.1")
                url = path.replace("{id}", values[0]).replace("{job}", values[1])
                for query in queries.get(name, [{}]):
                    for body in bodies.get(name, [None]):  # type: ignore[list-item]
                        reply = await http.request(method, url, params=query, json=body)
                        said = operation["responses"].get(str(reply.status))
                        assert said is not None, (name, reply.status)
                        answer = await reply.json()
                        _fits(answer, said["content"]["application/json"]["schema"], written)
                        seen.add((name, reply.status))
                        if name == "create" and reply.status == 200:
                            await http.delete(f"/sandboxes/{answer['sandbox_id']}")
    assert {
        ("exec", 200),
        ("exec", 404),
        ("exec", 422),
        ("read", 404),
        ("wait", 404),
        ("create", 422),
    } <= seen
