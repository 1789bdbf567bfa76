"""The real MCP client at the services of a world, over streamable HTTP."""

from datetime import UTC, datetime
from typing import Any

from mcp import Client

from orchard.schemas.claw import ClawWorld
from orchard.workers.domains.claw.engine import CallResult, Services
from orchard.workers.domains.claw.servers import Face, served

NOTE = {"note_id": "n1", "title": "Tea", "body": "Green", "updated": "now-1d"}
WORLD = ClawWorld(now=datetime(2026, 4, 10, tzinfo=UTC), services={"notes": {"notes": [NOTE]}})


class World:
    """What the faces need."""

    def __init__(self) -> None:
        self.services = Services(WORLD, 0)

    async def served(self, tool: str, arguments: Any, _face: Face) -> tuple[CallResult, float]:
        return self.services.call(tool, arguments), 0.0


async def test_a_client_lists_tools_and_calls_them() -> None:
    world = World()
    async with served(world) as (port, path), Client(f"http://127.0.0.1:{port}{path}") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == set(world.services.offers)
        assert tools["notes_get_note"].input_schema["required"] == ["note_id"]
        found = await client.call_tool("notes_get_note", {"note_id": "n1"})
        assert not found.is_error and '"body":"Green"' in found.content[0].text
        wrong = await client.call_tool("notes_get_note", {"note_id": "n2"})
        assert wrong.is_error and "there is no note 'n2'" in wrong.content[0].text
    assert [entry.status for entry in world.services.audit] == [200, 404]
