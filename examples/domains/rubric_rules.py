"""Teacher and judge by rules, over a chat endpoint: what a model would be asked, without one.

The teacher's criteria name file and lines of the known solution. The judge looks for them in the actions.
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

_CRITERION = re.compile(r"^\| (\d+): It (\w+) `(.*)`\.$", re.MULTILINE)
_STEP = re.compile(r"^## Step (\d+)$", re.MULTILINE)
_ACTION = re.compile(r"^Action:.*$\n((?:^\|.*$\n?)*)", re.MULTILINE)


def answer(asked: str) -> str:
    """The reply to the prompt of `pipelines/values/rubrics.py` for a teacher or for a judge."""
    found = criteria(asked) if "# The known solution" in asked else scores(asked)
    return json.dumps(found)


def criteria(asked: str) -> list[dict[str, Any]]:
    solution = [line.removeprefix("| ") for line in asked.partition("# The known solution")[2].splitlines()]
    paths = [line.removeprefix("+++ b/") for line in solution if line.startswith("+++ b/")]
    lines = [line[1:].strip() for line in solution if re.match(r"\+(?!\+\+ )", line)]
    wanted = [(f"It opens `{path}`.", 1.0) for path in paths[:3]] + [("It runs `python`.", 1.0)]
    wanted += [(f"It writes `{line}`.", 3.0) for line in lines[:6] if line]
    wanted += [(f"It opens `{extra}`.", 0.1) for extra in (".py", "tests")][: max(0, 3 - len(wanted))]
    return [{"criterion": text, "weight": weight} for text, weight in wanted]


def scores(asked: str) -> list[dict[str, Any]]:
    rubric = [(int(number), what) for number, _, what in _CRITERION.findall(asked)]
    verbs = {int(number): verb for number, verb, _ in _CRITERION.findall(asked)}
    parts = _STEP.split(asked)
    found, met = [], set[int]()
    for step, body in zip(parts[1::2], parts[2::2], strict=True):
        actions = "\n".join(re.sub(r"^\| ?", "", one, flags=re.MULTILINE) for one in _ACTION.findall(body))
        new = [number for number, what in rubric if number not in met and what in actions]
        met.update(new)
        found += [{"step": int(step), "criterion": number, "score": 1, "reasoning": "done"} for number in new]
        wrong = "sed -i" in actions and not any(verbs[number] == "writes" for number in new)
        written = [number for number, _ in rubric if verbs[number] == "writes" and number not in met]
        if wrong and written:
            entry = {"step": int(step), "criterion": written[0], "score": -1, "reasoning": "another line"}
            rubric = [one for one in rubric if one[0] != written[0]]
            found.append(entry)
    return found


@asynccontextmanager
async def served(port: int) -> AsyncIterator[None]:
    """Answers at this port of loopback during the block."""

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        asked = next(message["content"] for message in body["messages"] if message["role"] == "user")
        message = {"role": "assistant", "content": answer(asked)}
        return web.json_response(
            {
                "id": "rules",
                "object": "chat.completion",
                "model": "rules",
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": len(asked) // 4, "completion_tokens": 1, "total_tokens": 1},
            }
        )

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield
    finally:
        await runner.cleanup()
