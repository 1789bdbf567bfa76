"""Handlers of the image operations, which add the owner and forward to the agent that stores images."""

from typing import Any

from aiohttp import web

from orchard.injector import operations
from orchard.injector.backend import Backend
from orchard.injector.operations import ApiOperation
from orchard.injector.orchestrator.deadlines import arriving
from orchard.injector.orchestrator.keys import Keys
from orchard.injector.orchestrator.replies import KEY_NAME, Handler, json_reply
from orchard.injector.orchestrator.requests import Invalid, decoded

OPERATIONS = (
    operations.IMAGES,
    operations.PULL_IMAGE,
    operations.DEMAND,
    operations.PREPARE,
    operations.IMPORT_IMAGE,
    operations.DELETE_IMAGE,
)


def handler(backend: Backend, keys: Keys, operation: ApiOperation) -> Handler:
    """Make the handler of one of OPERATIONS. A key that sees only its own is the `owner` of its images."""

    async def handle(request: web.Request) -> web.StreamResponse:
        agent = backend.images()
        asked = {"owner": request[KEY_NAME]} if keys.owns(request[KEY_NAME]) else {}
        for one in operation.parameters:
            if not request.query.get(one.name):
                raise Invalid(["query", one.name], f"the query needs `{one.name}`", "missing")
            asked[one.name] = request.query[one.name]
        body: Any = arriving(request) if operation.request_media else None
        if operation.request is not None:
            body = await decoded(request, operation.request)
        return json_reply(
            await agent.call(operation.reply, operation.method, operation.path, body=body, params=asked)
        )

    return handle
