"""One endpoint: its limit of calls, its circuit breaker, the bodies of requests, and when they are retried.

Retries are made here and not by a library, because only here is it known what a refusal means and how much
time is left. A call keeps its place at the endpoint while it waits to try again, so an endpoint in trouble is
asked less, not more.
"""

import asyncio
import logging
import math
import os
import random
import socket
import time
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec

from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.outcomes import AbortCause
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.answers import REASONING_FIELDS, Completion, unparsed
from orchard.workers.llm.circuit_breaker import CircuitBreaker
from orchard.workers.llm.concurrency import ConcurrencyLimit
from orchard.workers.llm.connection import EndpointConnection, FailedRequest
from orchard.workers.llm.endpoint_rests import ProbeFailure, RestTracker
from orchard.workers.llm.errors import ContextLengthExceeded, OutOfTime, RequestRefused
from orchard.workers.llm.refusals import Meaning, pause
from orchard.workers.llm.replicas import Replica, choose
from orchard.workers.llm.rest_policy import PROBE_SECONDS, host_of, rest_key, servers
from orchard.workers.llm.settings import EndpointSettings, cost_usd, uncut
from orchard.workers.llm.tool_counts import QUESTION_SECONDS, ToolCounts, question

HELLO: Mapping[str, Any] = MappingProxyType({"role": "user", "content": "Say yes."})
TRUSTED_PROBES = 3
"""Probes of a few words whose internal errors are believed, in a process that has not sent a request yet."""


class ProbeRequests:
    """The requests that find out whether an endpoint answers at all, apart from what it was asked last.

    The shortest request that it has answered before proves most. Without one, the request that it refused is
    tried again, and then a few words: a request may be the reason for its own failure, and some servers fail
    at a few words.
    """

    def __init__(self) -> None:
        self._answered: dict[str, bytes] = {}
        self._refused: dict[str, bytes] = {}

    def answered(self, model: str, request: bytes) -> None:
        before = self._answered.get(model)
        if before is None or len(request) < len(before):
            self._answered[model] = request
        self._refused.pop(model, None)

    def refused(self, model: str, request: bytes) -> None:
        self._refused[model] = request

    def of(self, model: str, few_words: bytes) -> list[bytes]:
        """Returns the probes in order, each for one token; a later one is sent only if the one before failed
        with an error that its own content may cause."""
        if (answered := self._answered.get(model)) is not None:
            return [_short(answered)]
        refused = self._refused.get(model)
        return [few_words] if refused is None else [_short(refused), few_words]

    def believed(self, model: str, number: int) -> bool:
        """Whether an internal error at probe `number` shows that the endpoint fails. Otherwise the rest ends
        on trial, and the next one is longer."""
        return model in self._answered or model in self._refused or number < TRUSTED_PROBES


def _short(request: bytes) -> bytes:
    body = msgspec.json.decode(request)
    body["max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"] = 1
    return msgspec.json.encode(body)


log = logging.getLogger(__name__)


class ModelEndpoint:
    def __init__(
        self, name: str, settings: EndpointSettings, rests: RestTracker | None, *, waits: bool
    ) -> None:
        self.name = name
        self.settings = settings
        key = os.environ.get(settings.api_key_env, "") if settings.api_key_env else ""
        if settings.api_key_env and not key:
            raise InfrastructureError(
                AbortCause.LLM_REFUSED,
                f"endpoint {name!r} needs its key in the environment variable {settings.api_key_env}: set it",
            )
        self._replicas = [Replica(url) for url in servers(settings)]
        self._connection = EndpointConnection(name, settings, key, servers(settings))
        self._limit = ConcurrencyLimit(settings.concurrency)
        self._breaker = CircuitBreaker(
            name, key_of(settings), rests, self.probe, waits=waits, restored=self._limit.restored
        )
        self._probes = ProbeRequests()
        self._tools = ToolCounts()
        self._reasoning_field = REASONING_FIELDS[0]

    async def close(self) -> None:
        await self._connection.close()

    def learn(self, answer: Completion) -> None:
        self._reasoning_field = answer.reasoning_field or self._reasoning_field

    async def complete(
        self,
        spec: ModelSpec,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        *,
        seed: int,
        timeout: float,
        wall: float,
        fields: Mapping[str, Any],
    ) -> Completion:
        began = time.monotonic()
        request = msgspec.json.encode({**fields, **self._body(spec, messages, tools, seed)})
        used = seed
        async with self._limit.place():
            deadline = time.monotonic() + timeout
            tries, failures = 0, 0
            while True:
                deadline += await self._breaker.ready()
                tries += 1
                try:
                    with self._breaker.asking() as started:
                        async with asyncio.timeout(wall if wall < math.inf else None) as clock:
                            answer = await self._try(request, spec.name, deadline, session=str(seed))
                except TimeoutError as error:
                    assert clock.expired()  # of any other a refusal is made
                    raise OutOfTime(f"no answer within the {wall:.1f} s that were left") from error
                except FailedRequest as error:
                    wait = self._pause_after(error, tries, started)
                    failures += error.meaning is Meaning.TRANSIENT
                    spent = failures >= self.settings.max_tries or time.monotonic() + wait >= deadline
                    self._probes.refused(spec.name, request)
                    if await self._breaker.refused(error.failure, spec.name, started=started, spent=spent):
                        continue
                    if spent:
                        raise InfrastructureError(
                            AbortCause.LLM_UNAVAILABLE,
                            f"no completion in {tries} tries within {timeout:g} s; the last: {error.detail}",
                        ) from None
                    log.warning("try %d: %s; next in %.1f s", tries, error.detail, wait)
                    await asyncio.sleep(wait)
                    if error.anew:
                        used = seed + tries
                        request = msgspec.json.encode({**fields, **self._body(spec, messages, tools, used)})
                    continue
                self._limit.answered()
                self._breaker.answered()
                self._probes.answered(spec.name, request)
                self.learn(answer)
                answer = msgspec.structs.replace(
                    answer,
                    tries=tries,
                    seconds=time.monotonic() - started,
                    seconds_waiting=started - began,
                    endpoint=self.name,
                    model=spec.name,
                    cost_usd=cost_usd(self.settings, spec.name, answer.usage),
                    seed=self._sent(used),
                )
                if not tools:
                    return answer
                until = min(deadline, started + wall)
                return await self._tools.told(answer, messages, partial(self._counted, spec, until))

    async def _counted(self, spec: ModelSpec, deadline: float) -> Completion | None:
        """Asks the question that shows whether `spec`'s model is told of tools; None if it is not
        answered."""
        request = msgspec.json.encode(self._body(*question(spec), 0))
        until = min(deadline, time.monotonic() + QUESTION_SECONDS)
        try:
            reply = await self._try(request, spec.name, until, session="")
        except FailedRequest as error:
            log.warning(
                "whether the template of %r leaves tools out is not known: %s", spec.name, error.detail
            )
            return None
        return msgspec.structs.replace(reply, cost_usd=cost_usd(self.settings, spec.name, reply.usage))

    def _sent(self, seed: int) -> int | None:
        """Returns the seed that a request really has: the configuration's, if it sets one."""
        sent = self.settings.extra_body.get("seed", seed)
        return sent if isinstance(sent, int) else None

    async def probe(self, model: str, number: int = 0) -> ProbeFailure | None:
        """Asks for one token: every reply counts as an answer, except a failure that may pass. `number`
        counts the probes of a rest, and chooses among the endpoint's servers."""
        few_words = self._body(ModelSpec(name=model, max_tokens=1), [dict(HELLO)], [], 0)
        url = self._replicas[number % len(self._replicas)].url
        none: ProbeFailure | None = None
        for request in self._probes.of(model, msgspec.json.encode(few_words)):
            try:
                await self._connection.ask(url, request, model, time.monotonic() + PROBE_SECONDS)
            except FailedRequest as error:
                if error.meaning not in (Meaning.TRANSIENT, Meaning.THROTTLED):
                    return None
                none = ProbeFailure(error.failure.said, error.failure.asked)
                if error.failure.certain:
                    return none
            else:
                return None
        return none if self._probes.believed(model, number) else None

    def _pause_after(self, refusal: FailedRequest, tries: int, started: float) -> float:
        """Returns the seconds until the next try; raises for a refusal that would be repeated."""
        if refusal.meaning is Meaning.CONTEXT_EXCEEDED:
            raise ContextLengthExceeded(refusal.detail) from None
        if refusal.meaning is Meaning.REFUSED:
            refused = RequestRefused if refusal.request else InfrastructureError
            raise refused(AbortCause.LLM_REFUSED, refusal.detail) from None
        if refusal.meaning is Meaning.THROTTLED:
            self._limit.throttled(started=started, now=time.monotonic())
        return pause(tries, refusal.failure.asked, random.random())

    def _body(
        self, spec: ModelSpec, messages: list[dict[str, Any]], tools: list[dict[str, Any]], seed: int
    ) -> dict[str, Any]:
        """Returns the request's body: only fields that were asked for, so that strict endpoints accept it,
        and those of `uncut`."""
        body: dict[str, Any] = {"model": spec.name, "messages": self._messages(messages), "seed": seed}
        body |= uncut(self.settings, spec)
        if tools:
            body["tools"] = tools
        for field in ("temperature", "top_p", "max_tokens"):
            value = getattr(spec, field)
            if value is not None:
                body[field] = value
        if spec.logprobs:
            body["logprobs"] = True
        if self.settings.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | self.settings.extra_body

    def _messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Renames `reasoning_content` to the field that this endpoint reads, or removes it."""
        field = self.settings.reasoning_field
        name = self._reasoning_field if field is None else field
        sent = []
        for message in messages:
            kept = {key: value for key, value in message.items() if key != "reasoning_content"}
            if name and "reasoning_content" in message:
                kept[name] = message["reasoning_content"]
            sent.append(kept)
        return sent

    async def _try(self, request: bytes, model: str, deadline: float, *, session: str) -> Completion:
        """Sends one request to the session's replica. Raises FailedRequest if it brings no answer."""
        replica = choose(self._replicas, session, time.monotonic())
        try:
            answer = await self._connection.ask(replica.url, request, model, deadline)
        except FailedRequest as error:
            log.debug("endpoint %r at %s: %s", self.name, host_of(replica.url), error.failure.said)
            if error.meaning is Meaning.TRANSIENT:
                replica.failed(time.monotonic())
                raise
            replica.answered()
            if error.meaning is Meaning.UNPARSED:
                log.warning("%s: it counts as an answer without a call", error.detail)
                return unparsed()
            raise
        replica.answered()
        return answer


def key_of(settings: EndpointSettings) -> str:
    return rest_key(settings, socket.gethostname())
