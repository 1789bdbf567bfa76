"""The policy server as a process: options, signals, exit codes. Shared by both command lines."""

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Annotated

import msgspec

from orchard.pipelines.models.errors import ModelError, require_torch
from orchard.pipelines.policy.families import check_directory

log = logging.getLogger(__name__)

SLOTS = 32
"""Requests at once of a server that is told nothing else. Each has the memory of a whole context."""


class ServingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a server process. Importable without torch."""

    model: Path
    """Hugging Face directory of a model with its tokenizer, of a family in `policy.families`."""
    name: str = "policy"
    """Model name in requests."""
    version: int = 0
    run: str = ""
    """Run whose policy these weights are; empty: none."""
    host: str = "127.0.0.1"
    port: int = 8800
    """Port to listen on; 0 chooses a free one."""
    port_file: Path | None = None
    """File that gets the port once the server listens."""
    newest_file: Path | None = None
    """File that names the newest policy, as `{"path": DIRECTORY, "version": 7}`. It is read when the server
    listens already, so that a policy which was announced while it started is not missed."""
    api_key_env: str | None = None
    """Environment variable with the key that clients must send; None: no key."""
    slots: Annotated[int, msgspec.Meta(ge=1)] = SLOTS
    context: Annotated[int, msgspec.Meta(ge=2)] = 4096
    waiting: Annotated[int, msgspec.Meta(ge=0)] = 256
    prefix_cache: bool = False
    dtype: str = "float32"
    """dtype of the weights: `float32` or `bfloat16`."""
    threads: int = 0
    """CPU threads; 0: torch decides."""
    drain_seconds: float = 30.0
    """Seconds that running requests have after SIGTERM."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that it accepts besides those of this machine, for example behind a proxy."""
    eager: bool = False
    """Start every kernel of a step by itself on a GPU, without CUDA graphs."""
    blind: bool = False
    """Answer as if every picture were black: the score that the policy still reaches is not owed to
    seeing."""


def serve(settings: ServingSettings) -> int:
    """Serve until SIGTERM or SIGINT, which drain. Exit code 1 when generation failed.

    Raises ModelError or DatasetError where there is nothing to serve.
    """
    check_directory(settings.model)
    require_torch("the policy server")
    key = None
    if settings.api_key_env is not None:
        key = os.environ.get(settings.api_key_env)
        if not key:
            raise ModelError(f"the key's environment variable {settings.api_key_env} is empty: set it")
    return asyncio.run(_serve(settings, key))


async def _serve(settings: ServingSettings, key: str | None) -> int:
    import torch

    from orchard.pipelines.policy.engine import EngineSettings
    from orchard.pipelines.policy.requests import ReloadRequest, read_body
    from orchard.pipelines.policy.server import PolicyServer

    if settings.threads:
        torch.set_num_threads(settings.threads)
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if settings.dtype not in dtypes:
        raise ModelError(f"dtype {settings.dtype!r} is not known: choose one of {', '.join(dtypes)}")
    server = PolicyServer(
        settings.model,
        name=settings.name,
        version=settings.version,
        run=settings.run,
        settings=EngineSettings(
            slots=settings.slots,
            context=settings.context,
            waiting=settings.waiting,
            prefix_cache=settings.prefix_cache,
            graphs=False if settings.eager else None,
        ),
        dtype=dtypes[settings.dtype],
        host=settings.host,
        port=settings.port,
        api_key=key,
        drain_seconds=settings.drain_seconds,
        blind=settings.blind,
        hosts=settings.allowed_hosts,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with server:
        server.engine.ended.add_done_callback(lambda _: loop.call_soon_threadsafe(stop.set))
        if settings.newest_file is not None and settings.newest_file.exists():
            newest = read_body(settings.newest_file.read_bytes(), ReloadRequest)
            await server.load(Path(newest.path), newest.version)
        if settings.port_file is not None:
            temporary = settings.port_file.with_name(f".{settings.port_file.name}")
            temporary.write_text(str(server.port))
            temporary.replace(settings.port_file)
        log.info("serving %s as %r at %s", settings.model, settings.name, server.url)
        await stop.wait()
        log.info("draining")
    error = server.engine.ended.result()
    if error is not None:
        log.error("generation failed", exc_info=error)
        return 1
    return 0
