"""The oracle for tasks that are solved with a shell: it follows the gold patch, and annotates steps by it."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from orchard.schemas.identity import digest
from orchard.schemas.tasks import Task
from orchard.workers.domains.swe.oracle import annotator, repairs
from orchard.workers.domains.swe.oracle.script import turn
from orchard.workers.episode.stages import played
from orchard.workers.llm.answers import ORACLE_FINGERPRINT
from orchard.workers.oracle.behaviours import Behaviour, draw
from orchard.workers.oracle.interface import CannotPlay, OracleRequest
from orchard.workers.oracle.replies import Reply, Turn, as_text, block_label, text_of, usage


class StatementIndex:
    """Indexes a source's tasks by their statements; `reload` reads the source again."""

    def __init__(self, tasks: Callable[[], Iterable[Task]]) -> None:
        self._source = tasks
        self._by_first_line: dict[str, list[Task]] = {}

    def find(self, text: str) -> Task | None:
        """Returns the task whose whole statement occurs in `text`, the longest if several do. Reads no
        source."""
        lines = {line.strip() for line in text.splitlines()}
        found = [
            task
            for line in lines
            for task in self._by_first_line.get(line, ())
            if task.statement.strip() in text
        ]
        return max(found, key=lambda task: len(task.statement), default=None)

    def reload(self) -> None:
        """Reads the source again. A later task replaces an earlier one with the same id."""
        latest = {task.task_id: task for task in self._source()}
        index: dict[str, list[Task]] = {}
        for task in (alone for each in latest.values() for alone in played(each)):
            lines = task.statement.strip().splitlines()
            if lines:
                index.setdefault(lines[0].strip(), []).append(task)
        self._by_first_line = index


class ShellPlayer:
    """Acts through a tool named `bash` or blocks of bash in the text, and answers questions for values of
    steps."""

    def __init__(self, tasks: Callable[[], Iterable[Task]], mix: Mapping[Behaviour, float]) -> None:
        self._index = StatementIndex(tasks)
        self._mix = mix
        self._reading = asyncio.Lock()

    async def start(self) -> None:
        await asyncio.to_thread(self._index.reload)

    def plays(self, request: OracleRequest) -> bool:
        if request.tools:
            return "bash" in request.tool_names
        return _label(request) is not None or _annotation(request) is not None

    async def reply(self, request: OracleRequest) -> Reply:
        behaviour = _forced(request)
        if (asked := _annotation(request)) is not None:
            task = await self._task(annotator.unbarred(asked))
            said = Turn(text=annotator.annotate(task, asked))
            return _as_reply(request, "annotator", said, [task.task_id, asked])
        task, seed = await self._task(request.spoken("user")), request.seed or 0
        if behaviour is None:
            behaviour = draw(self._mix, seed, task.task_id)
        label = _label(request)
        roles = [message.get("role") for message in request.messages]
        number = roles.count("assistant")
        if label is not None:  # such a harness leaves out an answer that it cannot act on
            number += sum(pair == ("user", "user") for pair in pairwise(roles))
        if behaviour is Behaviour.RECOVERS and task.source == repairs.SOURCE:
            said = repairs.recover(task, _said(request))
        else:
            said = turn(task, behaviour, seed, number)
        if label is not None:
            said = as_text(said, label)
        return _as_reply(request, behaviour, said, [task.task_id, behaviour, seed, number])

    async def _task(self, text: str) -> Task:
        task = self._index.find(text)
        if task is None:
            async with self._reading:
                await asyncio.to_thread(self._index.reload)
            task = self._index.find(text)
        if task is None:
            raise CannotPlay("no task that the oracle knows has its statement in this conversation")
        return task


def _forced(request: OracleRequest) -> Behaviour | None:
    if not request.variant:
        return None
    try:
        return Behaviour(request.variant)
    except ValueError:
        raise CannotPlay(f"there is no model {request.model!r}", 404, "model_not_found") from None


def _said(request: OracleRequest) -> list[str]:
    """Returns text and commands of each message of the assistant."""
    found = []
    for message in request.messages:
        if message.get("role") == "assistant":
            calls = message.get("tool_calls") or ()
            arguments = [(call.get("function") or {}).get("arguments") for call in calls]
            found.append("\n".join([text_of(message), *map(_command, arguments)]))
    return found


def _command(arguments: object) -> str:
    """Returns the command of a call, empty if the model wrote none that can be read."""
    try:
        return str(msgspec.json.decode(str(arguments), type=dict[str, Any]).get("command", ""))
    except msgspec.DecodeError:
        return ""


def _label(request: OracleRequest) -> str | None:
    return None if request.tools else block_label(request.spoken("system", "user"))


def _annotation(request: OracleRequest) -> str | None:
    """Returns the prompt that asks for values of steps, if the conversation is about that."""
    if request.tools:
        return None
    first = next((text_of(message) for message in request.messages if message.get("role") == "user"), "")
    return first if annotator.is_annotation(first) else None


def _as_reply(request: OracleRequest, behaviour: str, said: Turn, identity: list[Any]) -> Reply:
    return Reply(
        id=f"oracle-{digest(identity, 12)}",
        model=request.model,
        fingerprint=f"{ORACLE_FINGERPRINT}/{behaviour}",
        turn=said,
        usage=usage(request.messages, request.tools or [], said),
    )
