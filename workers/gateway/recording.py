"""Records the calls of one program in the attempt's message tree, and answers them within the budget.

The record is complete whatever happens to a call. Messages are recorded before the model is asked, and an
answer as soon as it came; both finish even if the program disconnects. A call that is cancelled while the
model works leaves no answer.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from orchard.schemas.campaigns import Budget, ModelSpec
from orchard.schemas.identity import canonical
from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import MessageNode, Role, ToolCall
from orchard.schemas.outcomes import ExitStatus
from orchard.workers.episode.agent_clock import AgentClock, CallTime
from orchard.workers.episode.budgets import spent, time_left
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.episode.pictures import Picture, picture_of_url
from orchard.workers.episode.prompts import ModelPrompt
from orchard.workers.episode.totals import Totals
from orchard.workers.gateway.call_kinds import ProgramText, Root, delegates, kind_of, quotes, root_of
from orchard.workers.gateway.forest import Forest
from orchard.workers.gateway.upstream import messages_of, sampling_of
from orchard.workers.gateway.wire_types import (
    CallError,
    CallRejected,
    ProgramMessage,
    ProgramRequest,
    image_mark,
    named_as,
)
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.errors import ContextLengthExceeded, OutOfTime, RequestRefused, context_too_small

T = TypeVar("T")

MOST_RECORDED = 256 * 1024 * 1024
"""Maximum bytes that one program sends, because calls without an answer cost no step but are recorded."""
_MESSAGE = 1000
"""Bytes that a message takes in addition to its text."""
_MOST_TYPES = 50
"""Maximum types of parts that a call counts by name; the rest is counted as `other`."""
_LONGEST_SLEEP = 3600.0
_OWN = (CallKind.MAIN, CallKind.COMPACTION)
"""Kinds of calls whose replies may end the rollout."""


class _Reply(NamedTuple):
    """A recorded answer, as the program received it."""

    kind: CallKind
    text: str
    calls: tuple[ToolCall, ...]


class _Question(NamedTuple):
    node: str
    prompt: ModelPrompt
    kind: CallKind
    derived_from: str | None
    tools: Sequence[dict[str, Any]]
    not_shown: Mapping[str, int]


def _split_pictures(said: ProgramMessage) -> tuple[str, list[Picture], list[str]]:
    """Splits a message into its text, its pictures with their positions, and the URLs whose marks stay in the
    text: network addresses, and data that is no picture."""
    text, at = "", 0
    pictures: list[Picture] = []
    others: list[str] = []
    for url in said.images:
        mark = image_mark(url)
        start = said.text.index(mark, at)
        text += said.text[at:start]
        at = start + len(mark)
        picture = None if said.role is Role.ASSISTANT else picture_of_url(url, at=len(text))
        if picture is None:
            text += mark
            others.append(url)
        else:
            pictures.append(picture)
    return text + said.text[at:], pictures, others


def _size(said: ProgramMessage) -> int:
    texts = (said.text, said.reasoning, *said.images, *(call.arguments for call in said.tool_calls))
    return _MESSAGE * (1 + len(said.tool_calls)) + sum(len(text.encode()) for text in texts)


def _not_shown(ask: ProgramRequest) -> dict[str, int]:
    """Counts what the model of a request cannot read or call, by type."""
    found = Counter(ask.left_out)
    for said in ask.messages:
        if said.not_shown:
            found.update(said.not_shown)
        if said.images and said.role is Role.ASSISTANT:  # no endpoint takes pictures of a model
            found["image"] += len(said.images)
    if unanswered := _without_result(ask.messages):
        found["call_without_result"] = unanswered
    named = dict(found.most_common(_MOST_TYPES))
    rest = found.total() - sum(named.values())
    return named | ({"other": rest} if rest else {})


def _without_result(messages: Sequence[ProgramMessage]) -> int:
    """Counts calls without a result before the next answer: the model reads them in words or not at all."""
    found, waiting = 0, Counter[str]()
    for said in messages:
        if said.role is Role.ASSISTANT:
            if waiting or said.tool_calls:
                found += waiting.total()
                waiting = Counter(call.id for call in said.tool_calls)
        elif waiting.get(said.tool_call_id):
            waiting[said.tool_call_id] -= 1
    return found + waiting.total()


def _resolved(said: ProgramMessage, ids: list[str]) -> ProgramMessage:
    """Returns a message with the recorded ids of calls that the program left without one. `ids` are those of
    the conversation's recorded calls."""
    return msgspec.structs.replace(said, tool_call_id=named_as(said.tool_call_id, ids))


class Recording:
    """Records one program's calls and asks its model. Use it in one event loop.

    Calls may overlap: running calls count as steps of the budget, and a call that could exceed it waits for
    them.
    """

    def __init__(
        self,
        trace: MessageTree,
        model: ModelClient,
        spec: Callable[[], ModelSpec],
        budget: Budget,
        *,
        seed: int,
        timeout: float,
    ) -> None:
        self._spec = spec
        self.leaf = ""
        """Node id of the last reply of the main conversation."""
        self.failed = asyncio.Event()
        """Set after an infrastructure failure: `check` raises it, and no later call is answered."""
        self._trace = trace
        self._model = model
        self._budget = budget
        self._seed = seed
        self._timeout = timeout
        self._failure: BaseException | None = None
        self._refusal: RequestRefused | None = None
        self._over: ExitStatus | None = None
        self._too_long: ContextLengthExceeded | None = None
        """The error of the main conversation's newest call, if that exceeded the model's context."""
        self._forest = Forest()
        self._replies: dict[str, _Reply] = {}
        """Replies by node, in the order in which they first came."""
        self._images: dict[str, str] = {}
        """Maps marks to URLs of images that are not stored as pictures."""
        self._offered: set[bytes] = set()
        """Canonical tool lists that are already recorded."""
        self._main: Root | None = None
        self.start_clock()
        self._recorded = 0
        self._flying = 0
        self._given_up = False
        """Whether a call was cancelled while the model owed its answer, with no later answer."""
        self._landed = asyncio.Event()
        self._recording = asyncio.Lock()

    @property
    def spec(self) -> ModelSpec:
        """The model that answers now."""
        return self._spec()

    @property
    def ended(self) -> ExitStatus | None:
        """What ran out, if a call was rejected for it and none was answered since. None if the program's own
        end decides."""
        return self._over or (ExitStatus.TOKEN_LIMIT if self._too_long else None)

    def start_clock(self) -> None:
        """Lets the program's clock begin now, and not with the recording."""
        self._clock, self._before = AgentClock(), self._trace.own.seconds

    def stop_clock(self) -> None:
        """Adds what the clock says to what the rollout has used, once the program has ended."""
        self._totals()

    @property
    def seconds_left(self) -> float:
        """Seconds of the wall clock that the program has left; infinite without one."""
        return time_left(self._totals(), self._budget)

    async def out_of_time(self) -> None:
        """Returns when the wall clock has run out. A call under way has its own share of it, and only its end
        says how much it took."""
        while self._flying or (left := self.seconds_left) > 0:
            if self._flying:
                await self._landed.wait()
            else:
                await asyncio.sleep(min(left, _LONGEST_SLEEP))

    def _totals(self) -> Totals:
        """Returns what the rollout has used, and the program's time by its clock: calls side by side take no
        more time than one."""
        own = self._trace.own
        own.seconds_beside += self._before + self._clock.seconds - own.seconds
        return self._trace.totals

    @property
    def unanswered(self) -> bool:
        """Whether the model owes the program an answer, or owed one when the program disconnected."""
        return self._flying > 0 or self._given_up

    def check(self) -> None:
        """Raises the infrastructure failure of this program, if any: an InfrastructureError, or a bug.

        The attempt then has no reward, however the program ended. An endpoint that refused the main
        conversation, or serves too small a context for it, and never answered it cannot serve the program.
        After an answer, a refusal is caused by the conversation, and so by the program or its model.
        """
        if self._failure is not None:
            raise self._failure
        if self.leaf:
            return
        if self._refusal is not None:
            raise self._refusal
        if self._too_long is not None and self._over is None:
            raise context_too_small(self._too_long)

    async def answer(self, ask: ProgramRequest, headers: Mapping[str, str]) -> Completion:
        """Returns the model's answer. `headers` have lower-case names. Raises CallRejected, and nothing else.

        An infrastructure failure lasts: all later calls are rejected.
        """
        await self._take_slot()
        try:
            with self._clock.call() as timed:
                question = await self._to_its_end(self._asked(ask, headers))
                ask = msgspec.structs.replace(ask, messages=())  # what the model reads is in the tree
                completion = await self._completion(ask, question, timed)
                await self._to_its_end(self._answered(question, completion))
        except CallRejected:
            raise
        except Exception as error:
            self._fail(error)
            raise CallRejected(CallError.UNAVAILABLE) from error
        finally:
            self._flying -= 1
            self._landed.set()
            self._landed = asyncio.Event()
        return completion

    async def _take_slot(self) -> None:
        """Counts a call as running. Raises CallRejected if no more calls are allowed."""
        while True:
            if self._failure is not None:
                raise CallRejected(CallError.UNAVAILABLE)
            self._over = self._over or spent(self._totals(), self._budget)
            if self._over is not None:
                raise CallRejected(CallError.BUDGET, f"{CallError.BUDGET.value}: {self._over.value}")
            steps = self._budget.steps
            if not (0 < steps <= self._trace.totals.turns + self._flying):
                break
            await self._landed.wait()
        self._flying += 1

    async def _asked(self, ask: ProgramRequest, headers: Mapping[str, str]) -> _Question:
        async with self._recording:
            known, node = self._forest.match(ask.messages)
            trunk = self._trace.path(node) if node is not None else []
            self._make_room(ask.messages[known:], ask.tools)
            ids = [call.id for each in trunk for call in each.tool_calls]
            for said in ask.messages[known:]:
                said = _resolved(said, ids)
                parent, node = node, await self._said(node, said)
                self._forest.add(parent, said, node)
            assert node is not None  # a ProgramRequest has messages
            return await self._question(ask, headers, node, trunk)

    def _make_room(self, messages: Sequence[ProgramMessage], tools: Sequence[dict[str, Any]]) -> None:
        """Raises CallRejected if the record would become too large."""
        offered = canonical(tools)
        size = self._recorded + sum(map(_size, messages))
        if offered not in self._offered:
            size += len(offered)
        if size > MOST_RECORDED:
            self._over = ExitStatus.TOKEN_LIMIT
            raise CallRejected(CallError.BUDGET, f"all that was sent has more than {MOST_RECORDED} bytes")
        self._recorded = size
        self._offered.add(offered)

    async def _said(self, parent: str | None, said: ProgramMessage) -> str:
        text, pictures, others = _split_pictures(said)
        self._images |= {image_mark(url): url for url in others}
        return await self._trace.said(
            parent,
            said.role,
            text,
            reasoning=said.reasoning,
            tool_calls=said.tool_calls,
            tool_call_id=said.tool_call_id,
            pictures=pictures,
        )

    async def _question(
        self, ask: ProgramRequest, headers: Mapping[str, str], node: str, trunk: list[MessageNode]
    ) -> _Question:
        before = [reply for each in trunk if (reply := self._replies.get(each.node_id))]
        source, quoted = (None, False) if before else self._source(ask.messages[len(trunk) :])
        kind = kind_of(
            ask,
            headers,
            continues=before[-1].kind if before else None,
            quotes_reply=quoted,
            main=self._main,
        )
        if kind is CallKind.MAIN and self._main is None:
            self._main = root_of(ask)
        return _Question(node, await self._trace.prompt(node), kind, source, ask.tools, _not_shown(ask))

    def _source(self, messages: tuple[ProgramMessage, ...]) -> tuple[str | None, bool]:
        """Returns the newest reply that new messages start from, and whether they quote its text."""
        told = ProgramText(messages)
        for node, reply in reversed(self._replies.items()):
            if quotes(told, reply.text):
                return node, True
            if any(delegates(call, told) for call in reply.calls):
                return node, False
        return None, False

    async def _completion(self, ask: ProgramRequest, question: _Question, timed: CallTime) -> Completion:
        spec, fields = sampling_of(ask, self.spec)
        own = question.kind in _OWN
        asked, wall = time.monotonic(), self.seconds_left
        try:
            completion = await self._model.complete(
                spec,
                messages_of(question.prompt.messages, self._images),
                list(ask.tools),
                seed=self._seed,
                timeout=self._timeout,
                wall=wall,
                fields=fields,
            )
            timed.worked(completion.seconds)
            return completion
        except asyncio.CancelledError:
            self._given_up = True
            self._trace.waited(time.monotonic() - asked)
            raise
        except OutOfTime:
            self._over = ExitStatus.UNANSWERED
            timed.worked(wall)
            self._trace.waited(time.monotonic() - asked)
            raise CallRejected(CallError.BUDGET, f"{CallError.BUDGET.value}: {self._over.value}") from None
        except ContextLengthExceeded as error:
            self._too_long = error if own else self._too_long
            raise CallRejected(CallError.CONTEXT) from None
        except RequestRefused as error:
            self._refusal = error if own else self._refusal
            raise CallRejected(CallError.INVALID, error.detail) from None

    async def _answered(self, question: _Question, completion: Completion) -> None:
        async with self._recording:
            node = await self._trace.answered(
                question.node,
                completion,
                call_kind=question.kind,
                derived_from=question.derived_from,
                tools=question.tools,
                images_shown=question.prompt.images,
                not_shown=question.not_shown,
            )
            said = ProgramMessage(
                role=Role.ASSISTANT,
                text=completion.text,
                reasoning=completion.reasoning,
                tool_calls=completion.tool_calls,
            )
            self._forest.add(question.node, said, node)
            self._replies.setdefault(node, _Reply(question.kind, completion.text, completion.tool_calls))
            self._given_up = False
            if question.kind in _OWN:
                self.leaf, self._too_long = node, None

    async def _to_its_end(self, step: Coroutine[Any, Any, T]) -> T:
        """Finishes a step of recording even if its caller is cancelled, so that the log has no half of it. An
        exception after the cancellation is kept as the failure."""
        task = asyncio.create_task(step)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({task})
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, CallRejected):
                self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.failed.set()
