"""`python -m tests.adapters.atif_log STORE make|commit`: a store with what an ATIF file can have; and
`... FILE read`: what becomes of the documents of a file.

Run by Orchard's own Python: Harbor's has none of it.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from orchard.pipelines.datasets.foreign import UNKNOWN_MODEL
from orchard.pipelines.interchange.kept import call_row, said_again
from orchard.pipelines.interchange.reading import read_trajectories
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.schemas import events as e
from orchard.schemas.messages import MessageNode, Role, TokenRecord, ToolCall, node_id
from orchard.storage.blobs import BlobStore
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
    asked = next(node.node_id for node in said if node.tool_calls)
    calls_made = [
        llm_call(
            turn,
            parent=node.parent,
            node=node.node_id,
            derived_from=asked if node.content == "Repairs" else None,
        )
        for turn, node in enumerate(answers, start=1)
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


def verdicts(file: Path) -> list[dict[str, Any] | str]:
    """What an export would write of each document of a file, or why it is left out."""
    found: list[dict[str, Any] | str] = []
    for one in read_trajectories([file]):
        if isinstance(one, LeftOut):
            found.append(one.why)
            continue
        row = {"harness": one.harness, "model": one.model or UNKNOWN_MODEL}
        nodes = {node.node_id: node for node in one.nodes}
        calls = {call.node: call_row(call) for call in one.calls}
        again = said_again(one.metadata, row, nodes, calls, BlobStore(file.parent))
        assert again is not None
        found.append(again)
    return found


if __name__ == "__main__":
    if sys.argv[2] == "read":
        sys.stdout.buffer.write(msgspec.json.encode(verdicts(Path(sys.argv[1]))))
    else:
        asyncio.run(_main(Path(sys.argv[1]), sys.argv[2]))
