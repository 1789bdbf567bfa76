"""The message tree of one attempt: the only code that appends nodes, publishing each as it happens."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.events import AttemptInherited
from orchard.schemas.identity import canonical
from orchard.schemas.llm_calls import CallKind, LLMCall, ModelKind
from orchard.schemas.messages import Image, MessageNode, Role, TokenRecord, ToolCall, ToolResult, node_id
from orchard.schemas.outcomes import AbortCause
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StorageError
from orchard.workers.episode.comparing import Divergence, Executed, compare, output_sha256
from orchard.workers.episode.large_messages import is_large, slimmed
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.pictures import Picture, PictureStore
from orchard.workers.episode.prompts import Prompt, chat_messages, newest, url_part
from orchard.workers.episode.records import Record
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.answers import Completion
from orchard.workers.masking import masked

Publish = Callable[[msgspec.Struct], Awaitable[None]]


class Totals(msgspec.Struct, kw_only=True):
    """Running sums over all calls and commands, branches that were left included. Of tokens and cost they
    have what is known. Budgets end by that; what is published of a sum with a gap is that it is not known."""

    turns: int = 0
    calls: int = 0
    prompt: int = 0
    """Tokens."""
    completion: int = 0
    """Tokens."""
    uncounted: int = 0
    """Calls whose tokens are not known."""
    usd: float = 0.0
    unpriced: int = 0
    """Calls whose cost is not known."""
    seconds_llm: float = 0.0
    seconds_commands: float = 0.0
    seconds_waiting: float = 0.0
    """For places at the endpoint, by tries that failed, and for answers that did not come."""
    model_kind: ModelKind | None = None
    """ORACLE as soon as one answer came from an oracle; None before the first call."""

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens that are known, summed over the calls."""
        return self.prompt + self.completion

    @property
    def prompt_tokens(self) -> int | None:
        """Of all calls; None as soon as one did not say."""
        return None if self.uncounted else self.prompt

    @property
    def completion_tokens(self) -> int | None:
        """Of all calls; None as soon as one did not say."""
        return None if self.uncounted else self.completion

    @property
    def cost_usd(self) -> float | None:
        """Of all calls; None as soon as one had no known price."""
        return None if self.unpriced else self.usd

    @property
    def seconds(self) -> float:
        """What the agent itself has used: thinking and commands, not our queues, retries and storage."""
        return self.seconds_llm + self.seconds_commands

    def __add__(self, other: "Totals") -> "Totals":
        """Both together."""
        oracle = ModelKind.ORACLE in (self.model_kind, other.model_kind)
        return Totals(
            turns=self.turns + other.turns,
            calls=self.calls + other.calls,
            prompt=self.prompt + other.prompt,
            completion=self.completion + other.completion,
            uncounted=self.uncounted + other.uncounted,
            usd=self.usd + other.usd,
            unpriced=self.unpriced + other.unpriced,
            seconds_llm=self.seconds_llm + other.seconds_llm,
            seconds_commands=self.seconds_commands + other.seconds_commands,
            seconds_waiting=self.seconds_waiting + other.seconds_waiting,
            model_kind=ModelKind.ORACLE if oracle else self.model_kind or other.model_kind,
        )


def used_by(call: LLMCall | Completion) -> Totals:
    """What one answer took."""
    usage = call.usage
    return Totals(
        turns=1,
        calls=1,
        prompt=usage.prompt_tokens or 0,
        completion=usage.completion_tokens or 0,
        uncounted=None in (usage.prompt_tokens, usage.completion_tokens),
        usd=call.cost_usd or 0.0,
        unpriced=call.cost_usd is None,
        seconds_llm=call.seconds or 0.0,
        seconds_waiting=call.seconds_waiting or 0.0,
        model_kind=call.model_kind,
    )


class MessageTree:
    """Append-only tree of messages. A parent and a content make an id, so an equal node is the same node.

    Keys of known vendors are masked before a node is made: what is stored, what a model is shown next and
    what is trained on are the same text.

    Every method that appends returns the new node's id when its event is stored, and raises
    InfrastructureError (STORE_FAILED) when a picture, or a text too large for an event, cannot be stored as
    a blob.
    """

    def __init__(self, publish: Publish, blobs: BlobStore) -> None:
        self.own = Totals()
        """What was used here, without what was inherited."""
        self.replayed = Totals()
        """What adopted turns had used in the earlier attempts of this rollout that made them."""
        self.keys_masked = 0
        self._inherited = Totals()
        self._record: Record | None = None
        self._adopted: list[str] = []
        self._replay_began = 0.0
        self._publish = publish
        self._blobs = blobs
        self._pictures = PictureStore(blobs)
        self._tools: dict[bytes, BlobRef] = {}
        """What programs offered, by its text."""
        self._nodes: dict[str, MessageNode] = {}
        """Whole nodes, whatever of them went into blobs."""
        self.newest = ""
        """Id of the node that was appended last."""

    @property
    def totals(self) -> Totals:
        """All that the path has used: what budgets are compared with."""
        return self._inherited + self.replayed + self.own

    async def inherit(self, history: Sequence[MessageNode], spent: Totals) -> None:
        """Go on from the whole nodes of another rollout, root first, which had `spent` so much.

        They are published here too, under the ids that they have there, so that this tree is whole by
        itself. The calls that made them are not: each was made, and paid for, once.
        """
        for node in history:
            node = msgspec.structs.replace(node, inherited_from=None)
            self._nodes[node.node_id], self.newest = node, node.node_id
            await self._publish(await self._slimmed(node))
        self._inherited += spent

    def replay(self, record: Record) -> None:
        """Adopt what an earlier attempt of this rollout has recorded, message by message, as long as this one
        comes by the same messages. They are published here too, so that this tree is whole by itself."""
        self._record = record
        self._replay_began = time.monotonic()

    async def recalled(self, parent: str) -> tuple[str, Completion] | None:
        """The recorded answer to the path that ends at `parent`, adopted; None where the model is to be
        asked: without a record, at its end, and after the first difference from it."""
        answer = self._record.take_answer(parent) if self._record else None
        if answer is None:
            await self.end_replay()
            return None
        completion = answer.completion
        node = await self._keep(await self._answer(parent, completion))
        self.replayed += used_by(completion)
        return node, completion

    async def end_replay(self, divergence: Divergence | None = None) -> None:
        """Say in the log what was adopted, once; nothing is recalled from here on."""
        record, self._record = self._record, None
        if record is None or not self.replayed.turns:
            return
        await self._publish(
            AttemptInherited(
                from_attempt=record.attempt,
                leaf=self._adopted[-1],
                messages=len(self._adopted),
                turns=self.replayed.turns,
                prompt_tokens=self.replayed.prompt_tokens,
                completion_tokens=self.replayed.completion_tokens,
                cost_usd=self.replayed.cost_usd,
                seconds=time.monotonic() - self._replay_began,
                replay_key=record.replay_key,
                divergence=divergence.what if divergence else "",
            )
        )

    async def system(self, text: str) -> str:
        """A root."""
        return await self._append(None, Role.SYSTEM, text)

    async def user(self, parent: str | None, text: str, pictures: Sequence[Picture] = ()) -> str:
        """A task, a format error, an instruction to go on."""
        return await self._append(parent, Role.USER, text, pictures=pictures)

    async def said(
        self,
        parent: str | None,
        role: Role,
        text: str,
        *,
        reasoning: str = "",
        tool_calls: tuple[ToolCall, ...] = (),
        tool_call_id: str = "",
        pictures: Sequence[Picture] = (),
    ) -> str:
        """A message of a conversation that a program wrote, whoever speaks in it."""
        return await self._append(
            parent,
            role,
            text,
            reasoning=reasoning,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            pictures=pictures,
        )

    async def answered(
        self,
        parent: str,
        completion: Completion,
        *,
        call_kind: CallKind | None = None,
        derived_from: str | None = None,
        tools: Sequence[dict[str, Any]] = (),
        images_shown: Sequence[str] = (),
    ) -> str:
        """What the model answered to the path that ends at `parent`, and the call that it took. The last
        four as LLMCall has them."""
        offered = await self._offered(tools) if tools else None
        node = await self._answer(parent, completion)
        sent = await self._slimmed(node)
        self.own += used_by(completion)
        await self._publish(
            LLMCall(
                parent=parent,
                node=node.node_id,
                turn=node.turn,
                endpoint=completion.endpoint,
                model=completion.model,
                served_model=completion.served_model,
                model_kind=completion.model_kind,
                finish_reason=completion.finish_reason,
                usage=completion.usage,
                cost_usd=completion.cost_usd,
                seconds=completion.seconds,
                tries=completion.tries,
                system_fingerprint=completion.system_fingerprint,
                call_kind=call_kind,
                derived_from=derived_from,
                tools=offered,
                reasoning_field=completion.reasoning_field or None,
                seed=completion.seed,
                tools_left_out=completion.tools_left_out,
                images_shown=tuple(images_shown) or None,
                seconds_waiting=completion.seconds_waiting,
                answer=None if node.node_id in self._nodes else sent,
            )
        )
        return await self._keep(node, sent)

    def waited(self, seconds: float) -> None:
        """Count seconds in which no answer came."""
        self.own.seconds_waiting += seconds

    async def result(
        self, parent: str, call: ToolCall, text: str, outcome: CommandOutcome, *, role: Role = Role.TOOL
    ) -> str:
        """What the model is shown of a command's `outcome`, in answer to `call`: a text, and the outcome's
        pictures at their places in it. The user speaks it where the text of the answer was the action.

        Where the command is recorded and did the same, at other times at most, the recorded message is shown.
        """
        text, images = await self._stored(text, outcome.pictures)
        recorded = await self._recorded_result(parent, call, text, images, outcome)
        if recorded is not None and recorded.result is not None:
            self.replayed.seconds_commands += recorded.result.seconds
            return await self._append(
                parent, role, recorded.content, tool_call_id=call.id, images=recorded.images
            )
        self.own.seconds_commands += outcome.seconds
        return await self._append(
            parent,
            role,
            text,
            tool_call_id=call.id,
            result=ToolResult(
                returncode=outcome.returncode,
                seconds=outcome.seconds,
                timed_out=outcome.timed_out,
                output_sha256=output_sha256(outcome.output),
            ),
            images=images,
        )

    def path(self, leaf: str) -> list[MessageNode]:
        """The nodes from the root to `leaf`, whole."""
        nodes = []
        at: str | None = leaf
        while at is not None:
            nodes.append(self._nodes[at])
            at = nodes[-1].parent
        return nodes[::-1]

    def messages(self, leaf: str) -> list[dict[str, Any]]:
        """The path to `leaf` as OpenAI chat messages, without pictures."""
        return chat_messages(self.path(leaf))

    async def prompt(self, leaf: str, last: int | None = None) -> Prompt:
        """The path to `leaf` as a model is asked, with its `last` pictures, or with all, as `data:` URLs.
        Raises InfrastructureError (STORE_FAILED) for a picture that cannot be read."""
        path = self.path(leaf)
        shown = newest(path, last)
        images = [image for each in shown for image in each]
        try:
            urls = {image.blob.sha256: await self._pictures.url(image) for image in images}
        except StorageError as error:
            raise InfrastructureError(AbortCause.STORE_FAILED, str(error)) from error
        messages = chat_messages(path, shown, lambda image: url_part(urls[image.blob.sha256]))
        return Prompt(messages, tuple(image.blob.sha256 for image in images))

    async def _recorded_result(
        self, parent: str, call: ToolCall, text: str, images: tuple[Image, ...], outcome: CommandOutcome
    ) -> MessageNode | None:
        node = self._record.results.get((parent, call.id)) if self._record else None
        if node is None:
            return None
        found = compare(Executed(node.turn - 1, call, node), outcome, text, images)
        if found is None or found.timing:
            return node
        await self.end_replay(found)
        return None

    async def _answer(self, parent: str, completion: Completion) -> MessageNode:
        return await self._made(
            parent,
            Role.ASSISTANT,
            completion.text,
            reasoning=completion.reasoning,
            tool_calls=completion.tool_calls,
            tokens=completion.tokens,
        )

    async def _append(self, parent: str | None, role: Role, content: str, **more: Any) -> str:
        return await self._keep(await self._made(parent, role, content, **more))

    async def _made(
        self,
        parent: str | None,
        role: Role,
        content: str,
        *,
        reasoning: str = "",
        tool_calls: tuple[ToolCall, ...] = (),
        tool_call_id: str = "",
        result: ToolResult | None = None,
        tokens: TokenRecord | None = None,
        pictures: Sequence[Picture] = (),
        images: tuple[Image, ...] = (),
    ) -> MessageNode:
        """A message that is nowhere yet. `images` are those of `pictures` that are stored already, with a
        content that is masked."""
        before_masking = self.keys_masked
        if not images:
            content, images = await self._stored(content, pictures)
        reasoning = self._masked(reasoning)
        tool_calls = tuple(
            msgspec.structs.replace(call, arguments=self._masked(call.arguments)) for call in tool_calls
        )
        if self.keys_masked > before_masking:
            tokens = None  # they spell it out
        identity = node_id(parent, role, content, tool_calls, tool_call_id, images)
        before = self._nodes[parent].turn if parent is not None else 0
        return MessageNode(
            node_id=identity,
            parent=parent,
            role=role,
            turn=before + (role is Role.ASSISTANT),
            content=content,
            reasoning=reasoning,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            result=result,
            tokens=tokens,
            images=images,
        )

    async def _keep(self, node: MessageNode, sent: MessageNode | None = None) -> str:
        """A part of the tree from now on; its id. One that the path has already changes nothing. `sent` is
        what `_slimmed` made of it, where that is known."""
        identity = node.node_id
        if identity in self._nodes:
            return identity
        if self._record is not None and (adopted := self._record.nodes.get(identity)) is not None:
            node, sent = adopted, None
            self._adopted.append(identity)
        self._nodes[identity], self.newest = node, identity
        await self._publish(sent or await self._slimmed(node))
        return identity

    async def _stored(self, text: str, pictures: Sequence[Picture]) -> tuple[str, tuple[Image, ...]]:
        """A text without keys, and pictures as blobs at their places in it."""
        ordered = sorted(pictures, key=lambda picture: (picture.at is None, picture.at or 0))
        cuts = [max(0, picture.at) for picture in ordered if picture.at is not None]
        pieces = [self._masked(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        places = list(accumulate(map(len, pieces)))
        stored = []
        try:
            for number, picture in enumerate(ordered):
                at = None if picture.at is None else places[number]
                caption = self._masked(picture.caption)
                stored.append(
                    await self._pictures.put(msgspec.structs.replace(picture, at=at, caption=caption))
                )
        except StorageError as error:
            raise InfrastructureError(AbortCause.STORE_FAILED, str(error)) from error
        return "".join(pieces), tuple(stored)

    def _masked(self, text: str) -> str:
        found = masked(text)
        self.keys_masked += found.keys
        return found.text

    async def _offered(self, tools: Sequence[dict[str, Any]]) -> BlobRef:
        """The tools as a blob; equal ones are stored once."""
        said = canonical(tools)
        if said not in self._tools:
            text = self._masked(said.decode()).encode()
            try:
                self._tools[said] = await asyncio.to_thread(self._blobs.put, text, "application/json")
            except StorageError as error:
                raise InfrastructureError(AbortCause.STORE_FAILED, str(error)) from error
        return self._tools[said]

    async def _slimmed(self, node: MessageNode) -> MessageNode:
        """The node as an event may carry it."""
        if not is_large(node):
            return node
        try:
            return await asyncio.to_thread(slimmed, node, self._blobs)
        except StorageError as error:
            raise InfrastructureError(AbortCause.STORE_FAILED, str(error)) from error
