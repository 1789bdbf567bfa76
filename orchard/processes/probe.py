"""Probe server of processes without a service: liveness, readiness and metrics.

`GET /healthy` is answered for as long as the process's event loop turns, `/ready` says in a sentence why the
process does no work (503), `/metrics` is Prometheus' text.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client.core import GaugeMetricFamily

from orchard.processes.metrics import render
from orchard.streams.connection import Connection

Numbers = Callable[[], Mapping[str, float]]
"""Further metrics of the process, by names of `HELP`."""

HELP = {
    "orchard_process_working": "1 when the process is connected and nothing holds it, else 0.",
    "orchard_process_held": "1 when the process works again only when somebody acts (`orchard status`).",
    "orchard_nats_certificate_end_seconds": "When the certificate of the NATS server ends, in Unix time.",
    "orchard_writer_position": "Sequence in the stream of the last event that the writer has committed.",
}
"""Help of each family of `/metrics`; the last two are optional."""


@asynccontextmanager
async def probing(
    port: int | None, kind: str, connection: Connection, numbers: Numbers = dict
) -> AsyncIterator[None]:
    """Serves the probe on `port` of every address during the block; `port` None: does nothing.

    Raises OSError when the port is taken.
    """
    if port is None:
        yield
        return
    app = web.Application()
    app.router.add_get("/healthy", _healthy)

    async def ready(_request: web.Request) -> web.Response:
        why = reason(connection)
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def metrics(_request: web.Request) -> web.Response:
        text = render(families(kind, connection, numbers()))
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4"})

    app.router.add_get("/ready", ready)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        yield
    finally:
        await runner.cleanup()


def reason(connection: Connection) -> str:
    """Sentence that says why the process does no work; empty if it works."""
    if connection.held or connection.waiting:
        return connection.held or connection.waiting
    return "" if connection.trusted else f"no connection to NATS at {connection.host}"


def families(kind: str, connection: Connection, numbers: Mapping[str, float]) -> list[GaugeMetricFamily]:
    """Metrics of `HELP` with a known value, each with one sample."""
    values = {
        "orchard_process_working": float(not reason(connection)),
        "orchard_process_held": float(bool(connection.held)),
        **numbers,
    }
    if (end := connection.nats.certificate_end) is not None:
        values["orchard_nats_certificate_end_seconds"] = end
    found = []
    for name in HELP.keys() & values.keys():
        family = GaugeMetricFamily(name, HELP[name], labels=["process"])
        family.add_metric([kind], values[name])
        found.append(family)
    return found


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")
