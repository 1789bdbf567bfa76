"""The calls of one program in one attempt: recorded in the message tree, answered within the budget.

The record is whole whatever becomes of a call. What a program sent is recorded before the model is asked, an
answer as soon as it came, each to its end though the program has gone away. A call that is given up while
the model is at work leaves no answer.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from orchard.schemas.campaigns import Budget, ModelSpec
from orchard.schemas.identity import canonical
from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import MessageNode, Role, ToolCall
from orchard.schemas.outcomes import ExitStatus
from orchard.workers.episode.budgets import spent, time_left
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.episode.prompts import Prompt
from orchard.workers.gateway.forest import Forest
from orchard.workers.gateway.kinds import Root, Told, gives, kind_of, quotes, root_of
from orchard.workers.gateway.pictured import pictured
from orchard.workers.gateway.upstream import messages_of, sampling_of
from orchard.workers.gateway.words import Ask, Refused, Said, Trouble, image_mark
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.errors import ContextLengthExceeded, OutOfTime, RequestRefused, context_too_small

T = TypeVar("T")

MOST_RECORDED = 256 * 1024 * 1024
"""Bytes of all that one program says: what its model does not answer costs no step, and is recorded."""
_MESSAGE = 1000
"""Bytes that a message takes beside what it says."""
_OWN = (CallKind.MAIN, CallKind.COMPACTION)
"""Kinds whose replies may be the last word of the rollout."""


class _Reply(NamedTuple):
    """A recorded answer, as the program was told it."""

    kind: CallKind
    text: str
    calls: tuple[ToolCall, ...]


class _Question(NamedTuple):
    """A call, recorded, that waits for its answer."""

    node: str
    prompt: Prompt
    kind: CallKind
    derived_from: str | None
    tools: Sequence[dict[str, Any]]


def _size(said: Said) -> int:
    """About the bytes of a message."""
    texts = (said.text, said.reasoning, *said.images, *(call.arguments for call in said.tool_calls))
    return _MESSAGE * (1 + len(said.tool_calls)) + sum(len(text.encode()) for text in texts)


class Recording:
    """What one program asks its model, and what becomes of it. Used in one event loop.

    Its calls may overlap: steps of the budget count those under way, and one that would be too many waits for
    them.
    """

    def __init__(
        self,
        trace: MessageTree,
        model: ModelClient,
        spec: ModelSpec,
        budget: Budget,
        *,
        seed: int,
        timeout: float,
    ) -> None:
        self.spec = spec
        self.leaf = ""
        """Node id of the last reply of the main conversation."""
        self.failed = asyncio.Event()
        """Set when something failed on our side: `check` raises it, and no call is answered any more."""
        self._trace = trace
        self._model = model
        self._budget = budget
        self._seed = seed
        self._timeout = timeout
        self._failure: BaseException | None = None
        self._refusal: RequestRefused | None = None
        """Of the main conversation."""
        self._over: ExitStatus | None = None
        self._too_long: ContextLengthExceeded | None = None
        """Of the newest call of the main conversation, where it was longer than the model takes."""
        self._forest = Forest()
        self._replies: dict[str, _Reply] = {}
        """By node, in the order in which they came first."""
        self._images: dict[str, str] = {}
        """URLs of images that are no pictures of the record, by their marks."""
        self._offered: set[bytes] = set()
        """Sets of tools that are in the record."""
        self._main: Root | None = None
        self._recorded = 0
        self._flying = 0
        self._given_up = False
        """Whether a call was given up while the model owed its answer, and none was answered since."""
        self._landed = asyncio.Event()
        self._recording = asyncio.Lock()

    @property
    def ended(self) -> ExitStatus | None:
        """What ran out: a call was refused for it, and none was answered since. None: the program is to say
        itself how it ended."""
        return self._over or (ExitStatus.TOKEN_LIMIT if self._too_long else None)

    @property
    def unanswered(self) -> bool:
        """Whether the model owes the program an answer, or owed one when the program went away."""
        return self._flying > 0 or self._given_up

    def check(self) -> None:
        """Raise what failed on our side, as a dead endpoint does: an InfrastructureError, or a fault.

        However the program ended, its attempt has no reward then. An endpoint that refused the main
        conversation, or served too small a context for it, and never answered it cannot serve the program.
        Where it has answered, a refusal is for what stands in the conversation, and that is the program's or
        its model's.
        """
        if self._failure is not None:
            raise self._failure
        if self.leaf:
            return
        if self._refusal is not None:
            raise self._refusal
        if self._too_long is not None and self._over is None:
            raise context_too_small(self._too_long)

    async def answer(self, ask: Ask, headers: Mapping[str, str]) -> Completion:
        """What the model answers. `headers` have lower-case names. Raises Refused, and nothing else.

        What failed on our side lasts: all later calls are refused.
        """
        await self._take_place()
        try:
            question = await self._to_its_end(self._asked(ask, headers))
            ask = msgspec.structs.replace(ask, messages=())  # what the model reads is in the tree
            completion = await self._completion(ask, question)
            await self._to_its_end(self._answered(question, completion))
        except Refused:
            raise
        except Exception as error:
            self._fail(error)
            raise Refused(Trouble.UNAVAILABLE) from error
        finally:
            self._flying -= 1
            self._landed.set()
            self._landed = asyncio.Event()
        return completion

    async def _take_place(self) -> None:
        """Count a call as under way. Raises Refused where there is to be none any more."""
        while True:
            if self._failure is not None:
                raise Refused(Trouble.UNAVAILABLE)
            self._over = self._over or spent(self._trace.totals, self._budget)
            if self._over is not None:
                raise Refused(Trouble.BUDGET, f"{Trouble.BUDGET.value}: {self._over.value}")
            steps = self._budget.steps
            if not (0 < steps <= self._trace.totals.turns + self._flying):
                break
            await self._landed.wait()
        self._flying += 1

    async def _asked(self, ask: Ask, headers: Mapping[str, str]) -> _Question:
        async with self._recording:
            known, node = self._forest.match(ask.messages)
            trunk = self._trace.path(node) if node is not None else []
            self._make_room(ask.messages[known:], ask.tools)
            for said in ask.messages[known:]:
                parent, node = node, await self._said(node, said)
                self._forest.add(parent, said, node)
            assert node is not None  # an Ask has messages
            return await self._question(ask, headers, node, trunk)

    def _make_room(self, messages: Sequence[Said], tools: Sequence[dict[str, Any]]) -> None:
        """Raises Refused where so much more is too much for a record."""
        offered = canonical(tools)
        size = self._recorded + sum(map(_size, messages))
        if offered not in self._offered:
            size += len(offered)
        if size > MOST_RECORDED:
            self._over = ExitStatus.TOKEN_LIMIT
            raise Refused(Trouble.BUDGET, f"all that was sent has more than {MOST_RECORDED} bytes")
        self._recorded = size
        self._offered.add(offered)

    async def _said(self, parent: str | None, said: Said) -> str:
        text, pictures, others = pictured(said)
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
        self, ask: Ask, headers: Mapping[str, str], node: str, trunk: list[MessageNode]
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
        return _Question(node, await self._trace.prompt(node), kind, source, ask.tools)

    def _source(self, messages: tuple[Said, ...]) -> tuple[str | None, bool]:
        """The newest reply that new messages begin from, and whether they quote its text."""
        told = Told(messages)
        for node, reply in reversed(self._replies.items()):
            if quotes(told, reply.text):
                return node, True
            if any(gives(call, told) for call in reply.calls):
                return node, False
        return None, False

    async def _completion(self, ask: Ask, question: _Question) -> Completion:
        spec, fields = sampling_of(ask, self.spec)
        own = question.kind in _OWN
        asked = time.monotonic()
        try:
            return await self._model.complete(
                spec,
                messages_of(question.prompt.messages, self._images),
                list(ask.tools),
                seed=self._seed,
                timeout=self._timeout,
                wall=time_left(self._trace.totals, self._budget),
                fields=fields,
            )
        except asyncio.CancelledError:
            self._given_up = True
            self._trace.waited(time.monotonic() - asked)
            raise
        except OutOfTime:
            self._over = ExitStatus.UNANSWERED
            self._trace.waited(time.monotonic() - asked)
            raise Refused(Trouble.BUDGET, f"{Trouble.BUDGET.value}: {self._over.value}") from None
        except ContextLengthExceeded as error:
            self._too_long = error if own else self._too_long
            raise Refused(Trouble.CONTEXT) from None
        except RequestRefused as error:
            self._refusal = error if own else self._refusal
            raise Refused(Trouble.INVALID, error.detail) from None

    async def _answered(self, question: _Question, completion: Completion) -> None:
        async with self._recording:
            node = await self._trace.answered(
                question.node,
                completion,
                call_kind=question.kind,
                derived_from=question.derived_from,
                tools=question.tools,
                images_shown=question.prompt.images,
            )
            said = Said(role=Role.ASSISTANT, text=completion.text, tool_calls=completion.tool_calls)
            self._forest.add(question.node, said, node)
            self._replies.setdefault(node, _Reply(question.kind, completion.text, completion.tool_calls))
            self._given_up = False
            if question.kind in _OWN:
                self.leaf, self._too_long = node, None

    async def _to_its_end(self, step: Coroutine[Any, Any, T]) -> T:
        """A step of recording, to its end though its caller is cancelled: the log has no half of it. What it
        raises then is not lost."""
        task = asyncio.create_task(step)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({task})
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, Refused):
                self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.failed.set()
