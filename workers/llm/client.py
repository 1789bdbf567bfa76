"""The model client: one assistant message from any OpenAI-compatible endpoint, or a typed failure."""

import math
import os
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.rests import Rest
from orchard.workers.failures import EndpointRests, InfrastructureError
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.circuit_breaker import LOOK_SECONDS
from orchard.workers.llm.endpoint import ModelEndpoint, key_of
from orchard.workers.llm.endpoint_rests import ProbeFailure, RestTracker
from orchard.workers.llm.rest_policy import is_held, servers
from orchard.workers.llm.settings import EndpointSettings

_NONE: Mapping[str, Any] = MappingProxyType({})


class ModelClient:
    """Calls models at the endpoints that the configuration names; used and closed in one event loop.

    With `rests` an endpoint that fails or asks to wait rests for the whole fleet, and calls to it raise
    EndpointRests or, if this client `waits`, continue after the rest.
    """

    def __init__(
        self,
        endpoints: Mapping[str, EndpointSettings],
        rests: RestTracker | None = None,
        *,
        waits: bool = False,
    ) -> None:
        self._settings = dict(endpoints)
        self._open: dict[str, ModelEndpoint] = {}
        self._rests = rests
        self._waits = waits
        if rests is not None:
            for name, settings in self._settings.items():
                if settings.api_key_env is None or os.environ.get(settings.api_key_env):
                    probe = partial(self._probe, name)
                    rests.attend(key_of(settings), probe, len(servers(settings)))

    async def complete(
        self,
        spec: ModelSpec,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        *,
        seed: int,
        timeout: float,
        wall: float = math.inf,
        fields: Mapping[str, Any] = _NONE,
    ) -> Completion:
        """Returns one assistant message that answers `messages`.

        `fields` are further ones of the request; what `spec` and the configuration set wins over them.
        `timeout`, in seconds, bounds all tries and the pauses between them, from the moment the call has its
        place at the endpoint. `wall` is the number of seconds that the agent has left: a try that takes
        longer raises OutOfTime. Also raises ContextLengthExceeded, or InfrastructureError with
        LLM_UNAVAILABLE (no answer within the tries or the time; an EndpointRests if the endpoint answers
        nobody) or LLM_REFUSED (the request would be refused again: a RequestRefused if its content is the
        reason).
        """
        endpoint = self._endpoint(spec.endpoint)
        return await endpoint.complete(
            spec, messages, tools, seed=seed, timeout=timeout, wall=wall, fields=fields
        )

    def recall(self, spec: ModelSpec, answer: Completion) -> None:
        """Learns from a recorded answer in which field its endpoint wants reasoning sent back, before it has
        answered this process."""
        if answer.reasoning_field:
            self._endpoint(spec.endpoint).learn(answer)

    def has(self, endpoint: str) -> bool:
        return endpoint in self._settings

    async def resting(self, endpoint: str) -> EndpointRests | None:
        """Waits for the end of a short rest. Returns a longer one, which no call waits for, as the whole
        fleet knows it; None if the endpoint does not rest."""
        settings, rests = self._settings.get(endpoint), self._rests
        if settings is None or rests is None or self._waits:
            return None
        key = key_of(settings)
        if rests.of(key) is not None:
            await rests.look(fresh=True)
        while (rest := rests.of(key)) is not None:
            if not is_held(age=rest.age, left=rest.left):
                return EndpointRests(key, endpoint, rest.left, rest.rest.reason)
            await rests.change(LOOK_SECONDS)
        return None

    async def rest_over(self, rest: EndpointRests) -> None:
        while self._rests is not None and self._rests.of(rest.key) is not None:
            await self._rests.change(LOOK_SECONDS)

    async def _probe(self, endpoint: str, rest: Rest) -> ProbeFailure | None:
        return await self._endpoint(endpoint).probe(rest.model, rest.probes)

    def asked(self, endpoint: str) -> dict[str, Any]:
        """Returns what the configuration decides of every request to an endpoint: server and fields. The
        URL's port is left out, since a restarted server may have another one."""
        settings = self._settings.get(endpoint)
        if settings is None:
            return {}
        url = urlsplit(settings.base_url)
        return {
            "server": [url.hostname, url.path],
            "fields": settings.extra_body,
            "reasoning": settings.reasoning_field,
        }

    async def close(self) -> None:
        for endpoint in self._open.values():
            await endpoint.close()
        self._open.clear()

    async def __aenter__(self) -> "ModelClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _endpoint(self, name: str) -> ModelEndpoint:
        if name not in self._open:
            settings = self._settings.get(name)
            if settings is None:
                known = ", ".join(sorted(self._settings)) or "none"
                raise InfrastructureError(
                    AbortCause.LLM_REFUSED,
                    f"no endpoint is named {name!r} in the configuration (there is: {known}): "
                    f"add a section [endpoints.{name}] with its base_url",
                )
            self._open[name] = ModelEndpoint(name, settings, self._rests, waits=self._waits)
        return self._open[name]
