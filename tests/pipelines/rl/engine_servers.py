"""Servers that speak the routes of SGLang 0.5.23 and vLLM 0.32 for new weights, over real HTTP.

Behind each is our own policy server, so what they generate is sampled by the weights that they were given.
Requests wait while a server is paused. SGLang's refuses weights while it is not, as its documentation asks.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from orchard.pipelines.policy.server import PolicyServer
from orchard.pipelines.rl.settings import EngineKind


class ForeignServer:
    """An async context manager; `calls` are the routes of its POSTs, but for those that generate."""

    def __init__(self, kind: EngineKind, behind: PolicyServer) -> None:
        self.kind, self.behind = kind, behind
        self.calls: list[str] = []
        self.weight_version = "default"
        self.waiting = asyncio.Event()
        """A request came while the server was paused."""
        self.refuses = 0
        """Status with which it answers weights, unless 0."""
        self.loaded: list[str] = []
        """Paths of weights, in their order."""
        self.failing = 0
        """Times that it will answer an error to the call that resumes it."""
        self._going = asyncio.Event()
        self._going.set()
        app = web.Application()
        app.router.add_post("/v1/completions", self._generate)
        for route, handler in self._routes().items():
            app.router.add_post(route, handler)
        route = "/get_model_info" if kind is EngineKind.SGLANG else "/weight_info"
        app.router.add_get(route, self._told)
        self._runner = web.AppRunner(app, access_log=None)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    @property
    def paused(self) -> bool:
        return not self._going.is_set()

    async def __aenter__(self) -> "ForeignServer":
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def _routes(self) -> dict[str, Any]:
        if self.kind is EngineKind.SGLANG:
            return {
                "/pause_generation": self._pause,
                "/update_weights_from_disk": self._from_disk,
                "/continue_generation": self._resume,
            }
        return {
            "/pause": self._pause,
            "/collective_rpc": self._rpc,
            "/v1/load_lora_adapter": self._adapter,
            "/reset_prefix_cache": self._done,
            "/update_weight_version": self._label,
            "/resume": self._resume,
        }

    async def _told(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.weight_version})

    def pause(self) -> None:
        """As a trainer left it that was killed."""
        self._going.clear()

    async def _pause(self, request: web.Request) -> web.Response:
        self.calls.append(request.path_qs)
        sglang = self.kind is EngineKind.SGLANG
        mode = (await request.json())["mode"] if sglang else request.query["mode"]
        assert mode in (("abort", "retract", "in_place") if sglang else ("abort", "wait", "keep"))
        self._going.clear()
        return web.json_response({})

    async def _resume(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        if self.failing:
            self.failing -= 1
            return web.Response(status=503)
        self._going.set()
        return web.json_response({})

    async def _done(self, request: web.Request) -> web.Response:
        self.calls.append(request.path_qs)
        return web.Response()

    async def _label(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        self.weight_version = (await request.json())["new_version"]
        return web.json_response({"success": True})

    async def _from_disk(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        body = await request.json()
        if self.refuses or self._going.is_set():
            return web.json_response({"success": False, "message": "not paused"}, status=self.refuses or 400)
        await self._load(body["model_path"])
        self.weight_version = body["weight_version"]
        return web.json_response({"success": True, "message": "Succeeded to update model weights."})

    async def _rpc(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        body = await request.json()
        assert body["method"] == "reload_weights"
        if self.refuses:
            return web.Response(status=self.refuses)
        await self._load(body["kwargs"]["weights_path"])
        return web.json_response({"results": [None]})

    async def _adapter(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        body = await request.json()
        file = Path(body["lora_path"]) / "adapter_config.json"
        if not body["load_inplace"] or json.loads(file.read_text())["peft_type"] != "LORA":
            return web.Response(status=400)
        await self._load(body["lora_path"])
        return web.Response(text=f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    async def _load(self, path: str) -> None:
        self.loaded.append(path)
        version = int(path.rpartition("-")[2])
        await self.behind._exchange(Path(path), version)

    async def _generate(self, request: web.Request) -> web.Response:
        if not self._going.is_set():
            self.waiting.set()
        await self._going.wait()
        body = await request.json()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.behind.url}/completions", json=body) as reply,
        ):
            return web.json_response(await reply.json(), status=reply.status)
