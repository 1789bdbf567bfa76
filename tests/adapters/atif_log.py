"""`python -m tests.adapters.atif_log STORE make|commit`: a store with what an ATIF file can have.

Run by Orchard's own Python: Harbor's has none of it.
"""

import asyncio
import sys
from pathlib import Path

from orchard.schemas import events as e
from orchard.schemas.messages import MessageNode, Role, TokenRecord, ToolCall, node_id
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import embedded
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.trajectory_log import Author, llm_call

BROKEN = ToolCall(id="b", name="bash", arguments='{"command": ')


def events() -> list[e.Event]:
    """A rollout with tokens, calls, arguments that are no JSON, a branch and a conversation of its own; and
    one that failed."""
    author = Author()
    tokens = TokenRecord(ids=(5, 6), logprobs=(-0.5, -1.0), prompt_ids=(1, 2, 3, 4))
    made = author.rollout(0, ["ls", "cat a"], resolved=True, tokens=lambda *_: tokens)
    rollout = made[0].rollout_id
    assert rollout is not None
    said = [node for event in made if isinstance(node := e.payload(event), MessageNode)]
    more: list[MessageNode] = []
    for parent, role, text, calls in (
        (said[-1].node_id, Role.ASSISTANT, "Another way.", (BROKEN,)),
        (None, Role.USER, "Name this conversation.", ()),
        ("before", Role.ASSISTANT, "Repairs", ()),
    ):
        parent = more[-1].node_id if parent == "before" else parent
        name = node_id(parent, role, text, calls, "")
        more.append(
            MessageNode(node_id=name, parent=parent, role=role, turn=3, content=text, tool_calls=calls)
        )
    answers = [node for node in [*said, *more] if node.role is Role.ASSISTANT]
    calls_made = [
        llm_call(turn, parent=node.parent, node=node.node_id) for turn, node in enumerate(answers, start=1)
    ]
    extra = [author.event(each, rollout) for each in (*more, *calls_made)]
    return [*made[:-1], *extra, made[-1], *author.rollout(1, ["ls"], resolved=False)]


async def _main(store: Path, verb: str) -> None:
    """`make` publishes those events; both verbs commit what is in the store's stream to its tables."""
    settings = NatsSettings()
    async with (
        embedded(store, settings) as server,
        connect(settings, name="atif", url=server.url) as connection,
    ):
        if verb == "make":
            await declare(connection, settings, [])
            await Publisher(connection).events(events())
        stop = asyncio.Event()
        stop.set()
        await Writer(str(store), connection).run(stop)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2]))
