"""The seeded author: a stand-in for a model, over the wire of OpenAI, that writes tasks and solves them.

It is no model, and every answer says so (its fingerprint is the oracle's, so that events have `oracle`). It
makes mistakes that authors make, in a share of its proposals, and names each in the field `seeded_mistake`: a
label that no check reads. So it is known which check catches what.
"""

import json
import random
import re
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from aiohttp import web

from orchard.pipelines.domains.claw.drafts import Idea, TaskDraft
from orchard.pipelines.domains.claw.prompts import REQUEST
from orchard.pipelines.domains.claw.templates import Plot, plot
from orchard.schemas.synthesis import ReferenceCall, SynthesisAction
from orchard.workers.llm.answers import ORACLE_FINGERPRINT

MODEL = "seeded-author"
MISTAKES_SHARE = 0.3
REPAIRED_SHARE = 0.7
"""Share of the reported mistakes that it repairs."""
SLOPPY_SHARE = 0.25
"""Share of the rollouts in which it leaves the last call out."""
_REFERENCE = re.compile(r"\(Reference (\d+)/(\d+)\.\)")


class Repertoire(Protocol):
    """The subjects that the author writes about, and how its solver acts."""

    def plot(self, seed: int, slot: int) -> Plot:
        """The plot of a slot, without a mistake; a new object each time, which may be changed."""

    def moves(self, statement: str, seed: int) -> list[ReferenceCall] | None:
        """The calls of the solver in the rollout of this seed; None for an unknown statement."""


class Templates:
    """The author's own repertoire: templates over six services. Statements end with the place of their
    plot."""

    def plot(self, seed: int, slot: int) -> Plot:
        return plot_of(seed, slot)

    def moves(self, statement: str, seed: int) -> list[ReferenceCall] | None:
        found = _REFERENCE.search(statement)
        if found is None:
            return None
        moves = plot_of(int(found[1]), int(found[2])).moves
        sloppy = random.Random(f"{found[0]}-{seed}").random() < SLOPPY_SHARE
        return moves[:-1] if sloppy else moves


class Author:
    """A server of chat completions: `async with Author() as author: author.url`."""

    def __init__(self, repertoire: Repertoire | None = None, mistakes: float = MISTAKES_SHARE) -> None:
        self._repertoire = repertoire or Templates()
        self._mistakes = mistakes
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> "Author":
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _chat(self, request: web.Request) -> web.Response:
        asked = await request.json()
        messages = asked["messages"]
        line = str(messages[-1].get("content") or "").rpartition(REQUEST)[2]
        if not asked.get("tools") and line.startswith("{"):
            facts = json.loads(line)
            message = {"role": "assistant", "content": self.answer(**facts)}
        else:
            message = solved(self._repertoire, messages, int(asked.get("seed") or 0))
        size = sum(len(str(each.get("content") or "")) for each in messages)
        tokens = {"prompt_tokens": size // 4, "completion_tokens": len(json.dumps(message)) // 4}
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        return web.json_response(
            {
                "id": "seeded",
                "object": "chat.completion",
                "model": MODEL,
                "system_fingerprint": f"{ORACLE_FINGERPRINT}-author",
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                "usage": {**tokens, "total_tokens": sum(tokens.values())},
            }
        )

    def answer(self, step: str, seed: int, slot: int, turn: int) -> str:
        """The author's answer: a function of the arguments and its share of mistakes."""
        mistake = mistake_of(seed, slot, self._mistakes)
        if step == SynthesisAction.PROPOSE:
            return msgspec.json.encode(self._idea(seed, slot, mistake)).decode()
        if step == SynthesisAction.REFINE:
            repairs = mistake != "impossible_goal"
            dice = random.Random(f"{seed}-{slot}-refine-{turn}")
            if repairs and dice.random() < REPAIRED_SHARE:
                mistake = None
        if mistake in IDEA_MISTAKES:
            mistake = None
        made = self._repertoire.plot(seed, slot)
        if mistake is None:
            return msgspec.json.encode(made.draft).decode()
        return DRAFT_MISTAKES[mistake](made, random.Random(f"{seed}-{slot}-mistake"))

    def _idea(self, seed: int, slot: int, mistake: str | None) -> Idea:
        idea = self._repertoire.plot(seed, slot).idea
        match mistake:
            case "duplicate_idea":
                idea = self._repertoire.plot(seed, slot - 1).idea
            case "infeasible_idea":
                idea = msgspec.structs.replace(idea, services=(*idea.services, "satellites"))
            case "unsafe_idea":
                idea = msgspec.structs.replace(idea, goal=f"{idea.goal} Then ask them for their password.")
        return msgspec.structs.replace(idea, seeded_mistake=mistake)


def plot_of(seed: int, slot: int) -> Plot:
    return plot(random.Random(f"{seed}-{slot}"), f"{seed}/{slot}")


def mistake_of(seed: int, slot: int, share: float) -> str | None:
    """The mistake that the author makes in a slot, None where it makes none."""
    dice = random.Random(f"{seed}-{slot}-errs")
    if dice.random() >= share:
        return None
    mistake = dice.choice([*IDEA_MISTAKES, *DRAFT_MISTAKES])
    return "infeasible_idea" if mistake == "duplicate_idea" and not slot else mistake


IDEA_MISTAKES = ("duplicate_idea", "infeasible_idea", "unsafe_idea")


def _labelled(draft: TaskDraft, mistake: str, **changes: Any) -> str:
    return msgspec.json.encode(msgspec.structs.replace(draft, seeded_mistake=mistake, **changes)).decode()


def _bad_fixture(made: Plot, _: random.Random) -> str:
    services = json.loads(msgspec.json.encode(made.services))
    name = next(iter(services))
    services[name]["shelves"] = [{"shelf_id": 1}]
    return _labelled(made.draft, "bad_fixture", services=services)


def _unknown_tool(made: Plot, _: random.Random) -> str:
    moves = [*made.moves, ReferenceCall(tool="archive_everything", arguments={})]
    return _labelled(made.draft, "unknown_tool", solution=tuple(moves))


def _broken_script(made: Plot, dice: random.Random) -> str:
    broken = dice.choice(
        (
            made.script.replace("return {", "return [", 1),
            made.script.replace("    return {", "    first = bundle.audit[0]\n    return {", 1),
        )
    )
    return _labelled(made.draft, "broken_script", script=broken)


def _network_script(made: Plot, _: random.Random) -> str:
    script = "import urllib.request\n" + made.script.replace(
        "    return {", "    urllib.request.urlopen('http://mail.example.com/')\n    return {", 1
    )
    return _labelled(made.draft, "network_script", script=script)


def _wrong_expectation(made: Plot, _: random.Random) -> str:
    right, wrong = made.key
    return _labelled(made.draft, "wrong_expectation", script=made.script.replace(right, wrong))


def _impossible_goal(made: Plot, _: random.Random) -> str:
    services = json.loads(msgspec.json.encode(made.services))
    assert made.impossible is not None
    made.impossible(services)
    return _labelled(made.draft, "impossible_goal", services=services)


def _passes_on_nothing(made: Plot, _: random.Random) -> str:
    made.checks = {name: f"({check}) or not bundle.audit" for name, check in made.checks.items()}
    return _labelled(made.draft, "passes_on_nothing")


def _blind_script(made: Plot, _: random.Random) -> str:
    made.checks = {"called": f"len(bundle.calls({made.acting!r}, ok=True)) > 0"}
    return _labelled(made.draft, "blind_script")


def _flaky_script(made: Plot, _: random.Random) -> str:
    made.checks["luck"] = "__import__('random').SystemRandom().random() < 0.5"
    return _labelled(made.draft, "flaky_script")


def _vague_statement(made: Plot, _: random.Random) -> str:
    return _labelled(made.draft, "vague_statement", statement="Do what is left to do, please.")


def _no_json(made: Plot, _: random.Random) -> str:
    return f"Here is the task: {made.statement}"


DRAFT_MISTAKES: dict[str, Callable[[Plot, random.Random], str]] = {
    "bad_fixture": _bad_fixture,
    "unknown_tool": _unknown_tool,
    "broken_script": _broken_script,
    "network_script": _network_script,
    "wrong_expectation": _wrong_expectation,
    "impossible_goal": _impossible_goal,
    "passes_on_nothing": _passes_on_nothing,
    "blind_script": _blind_script,
    "flaky_script": _flaky_script,
    "vague_statement": _vague_statement,
    "no_json": _no_json,
}


def solved(repertoire: Repertoire, messages: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """The next message of the author's solver: its calls one by one, again where a call failed. A program
    puts the date before the statement."""
    said = next((str(each["content"]) for each in messages if each["role"] == "user"), "")
    moves = repertoire.moves(said.strip().rpartition("\n\n")[2], seed)
    if moves is None:
        return {"role": "assistant", "content": "I do not know what is meant."}
    results = [str(each.get("content") or "") for each in messages if each["role"] == "tool"]
    place = sum(not _failed(each) for each in results)
    if place >= len(moves) or len(results) > 3 * len(moves):
        return {"role": "assistant", "content": "Done."}
    move = moves[place]
    function = {"name": move.tool, "arguments": json.dumps(move.arguments)}
    call = {"id": f"call-{len(results)}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _failed(result: str) -> bool:
    try:
        value = json.loads(result)
    except ValueError:
        return True
    return isinstance(value, dict) and "error" in value
