"""The agent's HTTP interface, which an orchestrator calls: handlers of the sandbox contract."""

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from functools import partial
from typing import IO, Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from orchard.injector.agent import archives, bodies, file_transfer, files, job_events, patches, watching
from orchard.injector.agent.bodies import query
from orchard.injector.agent.errors import AgentError, RequestInvalid, SandboxGone
from orchard.injector.agent.image_requests import ImageRequests
from orchard.injector.agent.interfaces import Host, RunningSandbox, SandboxSpec
from orchard.injector.agent.jobs import TrackedJob
from orchard.injector.agent.logs import REQUEST_ID
from orchard.injector.agent.protocol import (
    COMMAND_TIMEOUT,
    FRAME_LIMIT,
    KEY_HEADER,
    REASON_HEADER,
    REQUEST_ID_HEADER,
    VERSION,
    VERSION_HEADER,
    WAIT_TIMEOUT,
    WORKSPACE,
)
from orchard.injector.agent.sandbox import HostedSandbox
from orchard.injector.agent.sandboxes import Sandboxes, matching
from orchard.injector.agent.state_requests import StateRequests
from orchard.injector.agent.terminal_sessions import TerminalSession
from orchard.injector.agent.tunnel_requests import TunnelRequest
from orchard.injector.agent.tunnels import Tunnels
from orchard.injector.agent.uploads import FileUpload, discarded

FAREWELL = 1.0
"""Seconds that the other end of a tunnel has to close its connection."""
EXEC_WAIT_MARGIN = 30.0
"""Seconds that a waiting exec is held beyond the command's own timeout."""

log = logging.getLogger(__name__)
T = TypeVar("T")
_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _json(document: Any) -> web.Response:
    return web.Response(body=_dumps(document).encode("utf-8", "replace"), content_type="application/json")


def _exact(document: Any) -> web.Response:
    """Respond with paths and names, in which bytes that are not UTF-8 are escaped lone surrogates."""
    return web.Response(body=json.dumps(document).encode(), content_type="application/json")


class AgentServer:
    """Handlers; every request on a sandbox resets its expiry."""

    def __init__(self, sandboxes: Sandboxes, host: Host) -> None:
        self._sandboxes = sandboxes
        self._host = host
        self._tunnels = Tunnels()

    def application(self, *middlewares: Middleware) -> web.Application:
        app = web.Application(middlewares=[_errors, *middlewares], client_max_size=1 << 40)
        held = self._held
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/capabilities", self._capabilities),
                web.post("/sandboxes", self._create),
                web.get("/sandboxes", self._list),
                web.get("/sandboxes/{id}", held(self._get)),
                web.get("/sandboxes/{id}/wait", held(self._wait)),
                web.delete("/sandboxes/{id}", self._delete),
                web.post("/sandboxes/{id}/heartbeat", held(self._heartbeat)),
                web.post("/sandboxes/{id}/exec", held(self._exec)),
                web.get("/sandboxes/{id}/exec/pty", held(self._terminal)),
                web.get("/sandboxes/{id}/tunnel", held(self._tunnel)),
                web.post("/sandboxes/{id}/apply_patch", held(self._apply_patch)),
                web.put("/sandboxes/{id}/files", held(self._write)),
                web.put("/sandboxes/{id}/files/sized", held(self._write)),
                web.get("/sandboxes/{id}/files", held(self._read)),
                web.delete("/sandboxes/{id}/files", held(self._remove)),
                web.post("/sandboxes/{id}/files/move", held(self._move)),
                web.get("/sandboxes/{id}/files/watch", held(self._watch)),
                web.get("/sandboxes/{id}/jobs", held(self._jobs)),
                web.get("/sandboxes/{id}/files/list", held(self._files)),
                web.get("/sandboxes/{id}/archive", held(self._read_archive)),
                web.put("/sandboxes/{id}/archive", held(self._write_archive)),
                web.post("/sandboxes/{id}/snapshot", held(self._snapshot)),
                web.post("/sandboxes/{id}/fork", held(self._fork)),
                web.get("/jobs/{job}", self._job),
                web.get("/jobs/{job}/wait", self._wait_job),
                web.get("/jobs/{job}/events", self._follow),
                web.delete("/jobs/{job}", self._cancel_job),
                *StateRequests(self._sandboxes, held).routes(),
                *ImageRequests(self._sandboxes, self._host).routes(),
            ]
        )
        return app

    def _held(self, work: Callable[[web.Request, HostedSandbox], Awaitable[web.StreamResponse]]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            sandbox = self._sandboxes.get(request.match_info["id"])
            with self._sandboxes.active(sandbox):
                return await work(request, sandbox)

        return handle

    async def _health(self, _request: web.Request) -> web.Response:
        return _json({"status": "healthy"})

    async def _capabilities(self, _request: web.Request) -> web.Response:
        return _json(self._host.capabilities())

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        fields = {name: body[name] for name in SandboxSpec.__dataclass_fields__ if body.get(name) is not None}
        spec = SandboxSpec(**{"sandbox_id": "", **fields})
        return _json(self._sandboxes.create(spec, request.headers.get(KEY_HEADER)).document())

    async def _list(self, request: web.Request) -> web.Response:
        labels = dict(label.split("=", 1) for label in request.query.getall("label", []))
        return _json(matching(self._sandboxes, labels))

    async def _get(self, _request: web.Request, sandbox: HostedSandbox) -> web.Response:
        return _json(sandbox.document())

    async def _wait(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        await self._sandboxes.wait(sandbox.spec.sandbox_id, _seconds(request))
        return _json(sandbox.document())

    async def _delete(self, request: web.Request) -> web.Response:
        sandbox_id = request.match_info["id"]
        await self._sandboxes.delete(sandbox_id)
        return _json({"status": "deleted", "sandbox_id": sandbox_id})

    async def _heartbeat(self, _request: web.Request, sandbox: HostedSandbox) -> web.Response:
        sandbox.ready()
        return _json({"status": "ok", "sandbox_id": sandbox.spec.sandbox_id})

    async def _exec(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        body = await request.json()
        _, jobs = sandbox.running()
        wait = body.pop("wait", False)
        job = await jobs.start(body, request.headers.get(KEY_HEADER))
        if not wait:
            return _json({"job_id": job.job_id, "status": "queued"})
        return await _finished(job, float(body.get("timeout_seconds") or COMMAND_TIMEOUT) + EXEC_WAIT_MARGIN)

    async def _terminal(self, request: web.Request, sandbox: HostedSandbox) -> web.WebSocketResponse:
        machine, _ = sandbox.running()
        line = web.WebSocketResponse(max_msg_size=FRAME_LIMIT, compress=False)
        await line.prepare(request)
        await TerminalSession(line, machine, self._sandboxes.spawner).run()
        await line.close()
        return line

    async def _tunnel(self, request: web.Request, sandbox: HostedSandbox) -> web.WebSocketResponse:
        sandbox.ready()
        wanted = TunnelRequest.of(request.query)
        line = web.WebSocketResponse(timeout=FAREWELL, max_msg_size=FRAME_LIMIT, compress=False)
        await line.prepare(request)
        await self._tunnels.serve(line, sandbox, wanted)
        await line.close()
        return line

    async def _apply_patch(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        body = await request.json()
        _, jobs = sandbox.running()
        return _json(await patches.apply(jobs, body, request.headers.get(KEY_HEADER)))

    async def _write(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        machine, _ = sandbox.ready()
        path = _path(request, machine)
        size = 0
        upload = FileUpload(machine.user, _mode(request))
        try:
            await _in_thread(upload.open, machine, path)
            if "size" in request.query:
                size = int(request.query["size"])
                await file_transfer.receive(request, size, upload.write)
            else:
                async for piece in bodies.pieces(request):
                    await asyncio.to_thread(upload.write, piece)
                    size += len(piece)
            await asyncio.to_thread(upload.finish)
        except ConnectionError as error:
            raise AgentError(f"{path}: {error}", reason="cut_off") from error
        except OSError as error:
            raise AgentError(f"{path}: {error.strerror}", reason="write_failed") from error
        finally:
            await discarded(upload)
        return _exact({"success": True, "path": query(request)["path"], "size": size})

    async def _read(self, request: web.Request, sandbox: HostedSandbox) -> web.StreamResponse:
        machine, _ = sandbox.ready()
        path = _path(request, machine)
        limit = int(request.query["limit"]) if "limit" in request.query else None
        source, size = await _in_thread(partial(files.open_for_reading, limit=limit), machine, path)
        with source:
            if size <= files.CHUNK:
                data = await asyncio.to_thread(source.read, size)
                return web.Response(body=data, content_type="application/octet-stream")
            if bodies.OUTGOING in request:
                return await bodies.streamed(request, "application/octet-stream", _first(source, size))
            reply = bodies.stream(request, "application/octet-stream")
            with bodies.broken_off(request):
                await file_transfer.send(request, reply, source, size)
            return reply

    async def _files(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        machine, _ = sandbox.ready()
        path = _path(request, machine, WORKSPACE)
        return _exact(
            {
                "path": query(request).get("path", WORKSPACE),
                "files": await _in_thread(files.listing, machine, path),
            }
        )

    async def _remove(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        machine, _ = sandbox.ready()
        await _in_thread(files.remove, machine, _path(request, machine))
        return _exact({"success": True, "path": query(request)["path"]})

    async def _move(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        body = await request.json()
        machine, _ = sandbox.ready()
        source, target = (_absolute(machine, body[name]) for name in ("path", "target"))
        await _in_thread(partial(files.move, target=target), machine, source)
        return _exact({"success": True, "path": body["target"]})

    async def _watch(self, request: web.Request, sandbox: HostedSandbox) -> web.StreamResponse:
        machine, _ = sandbox.ready()
        path = _path(request, machine, WORKSPACE)
        seconds = _seconds(request) if "timeout" in request.query else None
        with sandbox.watching():
            watch = await _in_thread(watching.DirectoryWatch, machine, path)
            try:
                async with aclosing(watching.events(watch, sandbox.ended, seconds)) as changes:
                    return await bodies.streamed(request, "text/event-stream", changes)
            finally:
                asyncio.get_running_loop().run_in_executor(None, watch.close)  # a thread may still read

    async def _jobs(self, _request: web.Request, sandbox: HostedSandbox) -> web.Response:
        _, jobs = sandbox.ready()
        return _json(jobs.summaries())

    async def _snapshot(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        body = await request.json()
        machine, _ = sandbox.ready()
        return _json(await machine.snapshot(body["image"]))

    async def _read_archive(self, request: web.Request, sandbox: HostedSandbox) -> web.StreamResponse:
        machine, _ = sandbox.ready()
        path = _path(request, machine)
        with _root(machine) as root:
            async with archives.packed(root, path) as pieces:
                return await bodies.streamed(request, "application/x-tar", pieces)

    async def _write_archive(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        machine, _ = sandbox.ready()
        path = _path(request, machine)
        with _root(machine) as root:
            done = await archives.unpack(root, path, bodies.pieces(request))
        return _exact({"success": True, "path": query(request)["path"], "size": done.size})

    async def _fork(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        forks = await self._sandboxes.fork(sandbox, await request.json(), request.headers.get(KEY_HEADER))
        return _json([fork.document() for fork in forks])

    async def _job(self, request: web.Request) -> web.Response:
        return await _job_reply(self._find_job(request)[1])

    async def _wait_job(self, request: web.Request) -> web.Response:
        sandbox, job = self._find_job(request)
        with self._sandboxes.active(sandbox):
            return await _finished(job, _seconds(request))

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        sandbox, job = self._find_job(request)
        begin = job_events.place(request.query.get("offset", job_events.BEGINNING))
        job.document()  # says so where its output is not kept
        with self._sandboxes.active(sandbox):
            return await bodies.streamed(request, "text/event-stream", job_events.events(job, begin))

    async def _cancel_job(self, request: web.Request) -> web.Response:
        sandbox, job = self._find_job(request)
        if sandbox.jobs is not None:
            sandbox.jobs.cancel(job.job_id)
        return await _job_reply(job)

    def _find_job(self, request: web.Request) -> tuple[HostedSandbox, TrackedJob]:
        job_id = request.match_info["job"]
        sandbox = self._sandboxes.of_job(job_id)
        if sandbox.jobs is None:
            sandbox.ready()
            raise AssertionError("a ready sandbox has jobs")
        return sandbox, sandbox.jobs.get(job_id)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    REQUEST_ID.set(request.headers.get(REQUEST_ID_HEADER))
    try:
        reply = await handler(request)
    except AgentError as error:
        if error.status >= 500:
            log.warning("%s %s: %s", request.method, request.path, error.detail)
        reply = _error(error)
    except web.HTTPException as error:  # a route or method that this version does not have
        error.headers[VERSION_HEADER] = VERSION
        raise
    except Exception:
        log.exception("%s %s", request.method, request.path)
        reply = _error(AgentError("the agent failed; its log says how"))
    if not reply.prepared:
        reply.headers[VERSION_HEADER] = VERSION
    return reply


def _error(error: AgentError) -> web.Response:
    body = _dumps({"detail": error.detail}).encode("utf-8", "replace")
    return web.Response(
        status=error.status,
        body=body,
        content_type="application/json",
        headers={REASON_HEADER: error.reason},
    )


async def _finished(job: TrackedJob, timeout: float) -> web.Response:
    """Respond with the job once it has ended, or in its state after `timeout` seconds."""
    with job.kept():
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await job.done.wait()
        return await _job_reply(job)


async def _job_reply(job: TrackedJob) -> web.Response:
    if job.out.kept + job.err.kept < files.CHUNK:
        return _json(job.document())
    return await asyncio.to_thread(lambda: _json(job.document()))


def _seconds(request: web.Request) -> float:
    return float(request.query.get("timeout", WAIT_TIMEOUT))


def _path(request: web.Request, machine: RunningSandbox, default: str | None = None) -> str:
    """The query's path, absolute; a relative one starts in the image's working directory."""
    path = query(request).get("path", default)
    if path is None:
        raise RequestInvalid("the query needs `path`")
    return _absolute(machine, path)


def _absolute(machine: RunningSandbox, path: str) -> str:
    return os.path.join(machine.working_directory, path)  # noqa: PTH118


def _mode(request: web.Request) -> int | None:
    mode = request.query.get("mode")
    if mode is None:
        return None
    if not re.fullmatch("[0-7]{3,4}", mode):
        raise RequestInvalid(f"`{mode[:40]}` is no mode: use octal digits, as in `755`")
    return int(mode, 8)


@contextmanager
def _root(machine: RunningSandbox) -> Iterator[int]:
    """A duplicate of the root's descriptor, because the machine may close its own before a thread uses it."""
    if machine.root < 0:
        raise SandboxGone("the sandbox is gone", reason="deleted")
    root = os.dup(machine.root)
    try:
        yield root
    finally:
        os.close(root)


async def _first(source: IO[bytes], size: int) -> AsyncIterator[bytes]:
    """Yield `size` bytes; what is added meanwhile is ignored, since a task could add for ever."""
    while size > 0 and (piece := await asyncio.to_thread(source.read, min(size, files.CHUNK))):
        size -= len(piece)
        yield piece


async def _in_thread(work: Callable[[int, str], T], machine: RunningSandbox, path: str) -> T:
    """Work on a file in a thread, without delaying other sandboxes."""

    with ExitStack() as kept:
        root = kept.enter_context(_root(machine))
        done = asyncio.ensure_future(asyncio.to_thread(work, root, path))
        # A request that is given up does not end the thread, which needs the descriptor to its end.
        holding = kept.pop_all()
        done.add_done_callback(lambda _: holding.close())
        return await asyncio.shield(done)
