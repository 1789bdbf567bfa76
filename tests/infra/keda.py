"""How KEDA finds the lag in a cluster of NATS servers: its walk from one monitoring port to the next.

After KEDA's `nats_jetstream_scaler.go`, and `scalers_cache.go` for what it does after an error.
"""

from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from tests.infra.scaling import ScalingError, Trigger, lag

PATIENCE = aiohttp.ClientTimeout(total=3.0)
"""KEDA's own, by default."""


class Scaler:
    """One trigger's, as it lives from poll to poll."""

    def __init__(self, http: aiohttp.ClientSession, trigger: Trigger) -> None:
        self._http = http
        self._trigger = trigger
        self._leader = ""
        self._leaders_url = ""

    async def poll(self) -> int:
        """The lag. Raises ScalingError where KEDA reports an error and starts nothing."""
        try:
            return await self._walk()
        except ScalingError:  # it makes another scaler then, which knows no leader, and asks that once
            self._leader = self._leaders_url = ""
            return await self._walk()

    async def _walk(self) -> int:
        answer = await self._get(self._leaders_url or self._trigger.url)
        known, self._leader = self._leader, _leader(answer, self._trigger)
        if self._leader and known == self._leader:
            return lag(answer, self._trigger)
        self._leaders_url = "" if known and not self._leader else self._leaders_url
        if msgspec.json.decode(answer).get("meta_cluster", {}).get("cluster_size", 0) <= 1:
            return lag(answer, self._trigger)
        about = await self._about(self._trigger.endpoint)
        advertised = about.get("connect_urls") or []
        for url in advertised or about["cluster"]["urls"]:
            if advertised:
                host = f"{url.split(':')[0]}:{urlsplit(self._trigger.url).port}"
                node = (await self._about(host))["server_name"]
            else:
                node = url.split(".")[0]
                host = f"{node}.{self._trigger.endpoint}"
            asked = msgspec.structs.replace(self._trigger, endpoint=host).url
            answer = await self._get(asked)
            if _leader(answer, self._trigger) == node:
                self._leader, self._leaders_url = node, asked
                return lag(answer, self._trigger)
        raise ScalingError(f"no server says that it leads the consumer {self._trigger.consumer}")

    async def _about(self, endpoint: str) -> Any:
        return msgspec.json.decode(await self._get(f"{self._trigger.scheme}://{endpoint}/varz"))

    async def _get(self, url: str) -> bytes:
        """One server that does not answer is the end of the walk."""
        try:
            async with self._http.get(url, timeout=PATIENCE) as reply:
                return await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ScalingError(f"{url} does not answer: {error}") from error


def _leader(answer: bytes, trigger: Trigger) -> str:
    """Name of the server that leads the consumer, as the answering server knows; empty without one."""
    for account in msgspec.json.decode(answer).get("account_details", []):
        for stream in account.get("stream_detail", []):
            if (account["name"], stream["name"]) == (trigger.account, trigger.stream):
                for consumer in stream.get("consumer_detail", []):
                    if consumer["name"] == trigger.consumer:
                        leader: str = consumer.get("cluster", {}).get("leader", "")
                        return leader
    return ""
