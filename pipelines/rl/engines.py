"""Hands policies to the engine that serves a run, and asks it which one it serves.

Engines load a policy from its directory, which they must see under the same path, and name it by run
and version: `first#7`. Requests in flight are kept: they pause, and resume with the new weights.
Routes of SGLang are those of its 0.5.23 ("SGLang for RL Systems"), of vLLM those of its 0.32
(entrypoints/serve/dev/rlhf, under VLLM_SERVER_DEV_MODE=1).
"""

import asyncio
import logging
import re
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import aiohttp
import msgspec

from orchard.pipelines.rl.policies import Newest
from orchard.pipelines.rl.settings import EngineKind

POLL_SECONDS = 0.5
LOAD_SECONDS = 600.0
"""Timeout for loading a policy."""
_TELL_SECONDS = 30.0
_AWAY = (502, 503, 504)
"""Status codes of a proxy whose engine is starting."""
RESUME_PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds between retries of resuming an engine that answers with an error."""

log = logging.getLogger("orchard.rl.engines")


class Refused(RuntimeError):
    """A reachable engine does not take a policy; the message is one sentence."""


class Call(NamedTuple):
    """One POST to an engine."""

    route: str
    body: dict[str, Any] | None = None


class Exchange(NamedTuple):
    """The calls that give an engine a policy. `after` undoes the pause, whatever happens between."""

    before: tuple[Call, ...]
    load: tuple[Call, ...]
    after: tuple[Call, ...]


def exchange(kind: EngineKind, run: str, newest: Newest, adapter: str | None) -> Exchange:
    """The calls by which an engine takes a policy of `run`; `adapter` is the name under which it serves
    adapters, None where a policy is a whole model."""
    label = f"{run}#{newest.version}"
    match kind:
        case EngineKind.ORCHARD:
            return Exchange((), (Call("/admin/reload", msgspec.structs.asdict(newest) | {"run": run}),), ())
        case EngineKind.SGLANG:
            new = {"model_path": newest.path, "weight_version": label, "abort_all_requests": False}
            return Exchange(
                # Requests go back to the queue and are read again, so that no old key or value is left.
                (Call("/pause_generation", {"mode": "retract"}),),
                (Call("/update_weights_from_disk", new | {"flush_cache": True}),),
                (Call("/continue_generation", {}),),
            )
        case EngineKind.VLLM:
            new = {"weights_path": newest.path}
            load = Call("/collective_rpc", {"method": "reload_weights", "kwargs": new})
            if adapter is not None:
                named = {"lora_name": adapter, "lora_path": newest.path, "load_inplace": True}
                load = Call("/v1/load_lora_adapter", named)
            return Exchange(
                (Call("/pause?mode=keep"),),
                (
                    # Until all weights are there, what is sampled names no version.
                    Call("/update_weight_version", {"new_version": f"{run}#"}),
                    load,
                    Call("/reset_prefix_cache?reset_running_requests=true"),
                    Call("/update_weight_version", {"new_version": label}),
                ),
                (Call("/resume"),),
            )


_LABELS = {
    EngineKind.ORCHARD: ("/health", ("run", "policy_version")),
    EngineKind.SGLANG: ("/get_model_info", ("weight_version",)),
    EngineKind.VLLM: ("/weight_info", ("weight_version",)),
}
"""Route and fields that report which policy is served."""


class ServingEngine:
    """One engine at `address` (without the version path), with its key, for one run."""

    def __init__(
        self, kind: EngineKind, address: str, run: str, *, key: str | None = None, adapter: str | None = None
    ) -> None:
        self.kind, self.address, self.run = kind, address, run
        self._adapter = adapter
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._one = asyncio.Lock()
        self._given: Newest | None = None
        """Policy that this process gave it last and that it generates with."""

    async def version(self) -> int | None:
        """The run's policy version that it serves; -1 for any other weights, such as those that it began
        with or another run's; None while it is away. Raises Refused where it has no route that reports
        it."""
        route, fields = _LABELS[self.kind]
        try:
            async with self._session(_TELL_SECONDS) as session, session.get(self.address + route) as reply:
                if reply.status in (401, 403, 404):
                    raise Refused(f"{self._named} answers {route} with {reply.status}: {_FIXES[self.kind]}")
                if reply.status != 200:
                    return None
                told = await reply.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
        label = "#".join(str(told.get(field)) for field in fields)
        number = re.fullmatch(rf"{re.escape(self.run)}#([0-9]{{1,9}})", label)
        return int(number[1]) if number else -1

    async def take(self, newest: Newest) -> None:
        """Give it a policy, unless it got that one from this process and serves it.

        Its label is not enough: the process that gave it may have died before generation was resumed.
        Raises Refused, and aiohttp's errors and TimeoutError where it is away.
        """
        async with self._one:
            served = await self.version()
            if served is None:
                raise aiohttp.ClientConnectionError(f"{self._named} {self._serves(served)}")
            if self._given == newest and served == newest.version:
                return
            self._given = None
            steps = exchange(self.kind, self.run, newest, self._adapter)
            refused = False
            async with self._session(LOAD_SECONDS) as session:
                try:
                    for call in (*steps.before, *steps.load):
                        await self._post(session, call)
                except Refused:
                    refused = True
                    raise
                finally:
                    await self._resume(session, steps.after, refused)
            if (served := await self.version()) != newest.version:
                raise Refused(f"{self._named} took version {newest.version} and {self._serves(served)}")
            self._given = newest

    async def wait_for(self, version: int) -> None:
        """Wait until it serves that policy version of the run, or a newer one. Raises Refused."""
        told = time.monotonic()
        while (served := await self.version()) is None or served < version:
            if time.monotonic() - told > _TELL_SECONDS:
                told = time.monotonic()
                what = self._serves(served)
                log.warning("%s %s: rollouts wait for version %d", self._named, what, version)
            await asyncio.sleep(POLL_SECONDS)

    def _serves(self, served: int | None) -> str:
        if served is None:
            return "does not answer"
        return f"serves version {served}" if served >= 0 else f"serves no policy of run {self.run!r}"

    async def _resume(self, session: aiohttp.ClientSession, calls: tuple[Call, ...], refused: bool) -> None:
        """Undo a pause; harmless where there is none. Raises Refused where it stays paused, unless a call was
        `refused` before: that says more. Raises aiohttp's ClientConnectionError for an engine that is away,
        and will have forgotten its pause."""
        for pause in (*RESUME_PAUSES, None):
            try:
                for call in calls:
                    await self._post(session, call)
                return
            except aiohttp.ClientConnectionError:
                raise
            except (aiohttp.ClientError, Refused) as error:
                if pause is not None:
                    log.warning("%s stays paused, next try in %g s: %s", self._named, pause, error)
                    await asyncio.sleep(pause)
                elif refused:
                    log.warning("%s stays paused: %s", self._named, error)
                else:
                    raise Refused(f"{self._named} stays paused: {error}") from error

    @property
    def _named(self) -> str:
        return f"the engine at {self.address} ({self.kind})"

    def _session(self, seconds: float) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds), headers=self._headers)

    async def _post(self, session: aiohttp.ClientSession, call: Call) -> None:
        async with session.post(self.address + call.route, json=call.body) as reply:
            text = await reply.text()
        if reply.status in _AWAY:
            raise aiohttp.ClientError(f"{call.route} is answered with {reply.status}: {text[:200]}")
        if reply.status != 200:
            raise Refused(f"{self._named} answers {call.route} with {reply.status}: {text[:200]}")


async def all_serve(engines: Iterable[ServingEngine], version: int) -> None:
    """Wait until each of the engines serves that policy version of the run, or a newer one. Raises
    Refused."""
    for engine in engines:
        await engine.wait_for(version)


_FIXES = {
    EngineKind.ORCHARD: "is it `orchard serve-policy`, and the key right?",
    EngineKind.SGLANG: "is it SGLang, and the key right?",
    EngineKind.VLLM: "start it with VLLM_SERVER_DEV_MODE=1, "
    "and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 for adapters",
}
