"""The message tree of one attempt: the only code that appends nodes, publishing each as it happens."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.events import AttemptInherited
from orchard.schemas.identity import canonical
from orchard.schemas.llm_calls import CallKind, LLMCall
from orchard.schemas.messages import Image, MessageNode, Role, TokenRecord, ToolCall, ToolResult, node_id
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.divergence import Divergence, Executed, compare, output_sha256
from orchard.workers.episode.large_messages import is_large, slimmed
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.pictures import Picture, PictureStore
from orchard.workers.episode.prompts import ModelPrompt, chat_messages, newest, url_part
from orchard.workers.episode.replay_record import ReplayRecord
from orchard.workers.episode.routed_nodes import with_experts
from orchard.workers.episode.totals import Totals, used_by
from orchard.workers.failures import storing
from orchard.workers.llm.answers import Completion
from orchard.workers.masking import masked

Publish = Callable[[msgspec.Struct], Awaitable[None]]


class MessageTree:
    """An append-only tree of messages. Parent and content make the id, so equal nodes are one node.

    Keys of known vendors are masked before a node is made: what is stored, what a model is shown next and
    what is trained on are the same text.

    Every method that appends returns the new node's id when its event is stored, and raises
    InfrastructureError (STORE_FAILED) if a picture, or a text too large for an event, cannot be stored as a
    blob.
    """

    def __init__(self, publish: Publish, blobs: BlobStore) -> None:
        self.own = Totals()
        """Usage of this attempt, without what was inherited or replayed."""
        self.replayed = Totals()
        """Usage of adopted turns in the earlier attempts of this rollout that made them."""
        self.keys_masked = 0
        self._inherited = Totals()
        self._record: ReplayRecord | None = None
        self._adopted: list[str] = []
        self._replay_began = 0.0
        self._publish = publish
        self._blobs = blobs
        self._pictures = PictureStore(blobs)
        self._tools: dict[bytes, BlobRef] = {}
        """Blobs of the tools that programs offered, by their JSON."""
        self._nodes: dict[str, MessageNode] = {}
        """Whole nodes, including the parts that went into blobs."""
        self.newest = ""
        """Id of the node that was appended last."""

    @property
    def totals(self) -> Totals:
        """All that the path has used; budgets are compared with this."""
        return self._inherited + self.replayed + self.own

    async def inherit(self, history: Sequence[MessageNode], spent: Totals) -> None:
        """Continues from the whole nodes of another rollout, root first, which had `spent` this much.

        They are published here too, under the same ids, so that this tree is complete by itself. The calls
        that made them are not published: each was made, and paid for, once.
        """
        for node in history:
            node = msgspec.structs.replace(node, inherited_from=None)
            self._nodes[node.node_id], self.newest = node, node.node_id
            await self._publish(await self._slimmed(node))
        self._inherited += spent

    def replay(self, record: ReplayRecord) -> None:
        """Adopts the messages that an earlier attempt of this rollout has recorded, one by one, while this
        attempt produces the same. They are published here too, so that this tree is complete by itself."""
        self._record = record
        self._replay_began = time.monotonic()

    async def recalled(self, parent: str) -> tuple[str, Completion] | None:
        """Adopts and returns the recorded answer to the path that ends at `parent`. None if the model is to
        be asked: without a record, at its end, and after the first difference from it."""
        answer = self._record.take_answer(parent) if self._record else None
        if answer is None:
            await self.end_replay()
            return None
        completion = answer.completion
        node = await self._keep(answer.node)
        self.replayed += used_by(completion)
        return node, completion

    async def end_replay(self, divergence: Divergence | None = None) -> None:
        """Publishes what was adopted, once; nothing is recalled after it."""
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
        return await self._append(None, Role.SYSTEM, text)

    async def user(self, parent: str | None, text: str, pictures: Sequence[Picture] = ()) -> str:
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
        """Appends a message of any role from a conversation that a program wrote."""
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
        not_shown: Mapping[str, int] | None = None,
    ) -> str:
        """Appends the model's answer to the path that ends at `parent`, and publishes its call. `call_kind`,
        `derived_from`, `tools`, `images_shown` and `not_shown` are as in LLMCall."""
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
                not_shown=dict(not_shown) if not_shown else None,
                answer=None if node.node_id in self._nodes else sent,
            )
        )
        return await self._keep(node, sent)

    def waited(self, seconds: float) -> None:
        self.own.seconds_waiting += seconds

    async def result(
        self, parent: str, call: ToolCall, text: str, outcome: CommandOutcome, *, role: Role = Role.TOOL
    ) -> str:
        """Appends what the model is shown of a command's `outcome`, in answer to `call`: a text, and the
        outcome's pictures at their places in it. `role` is the user's if the text of the answer was the
        action.

        If the command is recorded and did the same, apart from timing, the recorded message is appended.
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
        nodes = []
        at: str | None = leaf
        while at is not None:
            nodes.append(self._nodes[at])
            at = nodes[-1].parent
        return nodes[::-1]

    def messages(self, leaf: str) -> list[dict[str, Any]]:
        """Returns the path to `leaf` as OpenAI chat messages, without pictures."""
        return chat_messages(self.path(leaf))

    async def prompt(self, leaf: str, last: int | None = None) -> ModelPrompt:
        """Returns the path to `leaf` as a model is asked, with its `last` pictures, or with all, as `data:`
        URLs. Raises InfrastructureError (STORE_FAILED) for a picture that cannot be read."""
        path = self.path(leaf)
        shown = newest(path, last)
        images = [image for each in shown for image in each]
        with storing():
            urls = {image.blob.sha256: await self._pictures.url(image) for image in images}
        messages = chat_messages(path, shown, lambda image: url_part(urls[image.blob.sha256]))
        return ModelPrompt(messages, tuple(image.blob.sha256 for image in images))

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
        node = await self._made(
            parent,
            Role.ASSISTANT,
            completion.text,
            reasoning=completion.reasoning,
            tool_calls=completion.tool_calls,
            tokens=completion.tokens,
        )
        if completion.experts is None:
            return node
        with storing():
            return await asyncio.to_thread(
                with_experts, node, completion.experts, self.path(parent), self._blobs
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
        """Makes a message without appending it. `images` are those `pictures` that are stored already, with a
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
        ids = tokens.ids if tokens else ()
        identity = node_id(
            parent, role, content, tool_calls, tool_call_id, images, reasoning=reasoning, token_ids=ids
        )
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
        """Appends a node, unless the tree has it, and returns its id. `sent` is the result of `_slimmed`, if
        that is known."""
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
        """Masks the text, and stores the pictures as blobs at their places in it."""
        ordered = sorted(pictures, key=lambda picture: (picture.at is None, picture.at or 0))
        cuts = [max(0, picture.at) for picture in ordered if picture.at is not None]
        pieces = [self._masked(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        places = list(accumulate(map(len, pieces)))
        stored = []
        with storing():
            for number, picture in enumerate(ordered):
                at = None if picture.at is None else places[number]
                caption = self._masked(picture.caption)
                stored.append(
                    await self._pictures.put(msgspec.structs.replace(picture, at=at, caption=caption))
                )
        return "".join(pieces), tuple(stored)

    def _masked(self, text: str) -> str:
        found = masked(text)
        self.keys_masked += found.keys
        return found.text

    async def _offered(self, tools: Sequence[dict[str, Any]]) -> BlobRef:
        """Stores the tools as a blob; equal ones are stored once."""
        said = canonical(tools)
        if said not in self._tools:
            text = self._masked(said.decode()).encode()
            with storing():
                self._tools[said] = await asyncio.to_thread(self._blobs.put, text, "application/json")
        return self._tools[said]

    async def _slimmed(self, node: MessageNode) -> MessageNode:
        if not is_large(node):
            return node
        with storing():
            return await asyncio.to_thread(slimmed, node, self._blobs)
