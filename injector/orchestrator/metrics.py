"""Prometheus metrics of the orchestrator."""

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from orchard.injector.backend import Backend
from orchard.injector.errors import SandboxError
from orchard.schemas.sandboxes import Job, SandboxStatus

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
"""Seconds: from a health check to a command of two hours."""


class ServiceMetrics:
    """Metrics of one orchestrator process; Prometheus sums over replicas."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: the public name of each key, by its name in logs."""
        self._names = names
        self._registry = CollectorRegistry()
        count, gauge = partial(Counter, registry=self._registry), partial(Gauge, registry=self._registry)
        times = partial(Histogram, registry=self._registry, buckets=_BUCKETS)
        self._requests = count(
            "orchard_sandbox_requests", "Requests answered.", ("method", "route", "status")
        )
        self._seconds = times(
            "orchard_sandbox_request_seconds",
            "From a request's headers to the end of its handler, waiting included.",
            ("method", "route"),
        )
        self._in_flight = gauge("orchard_sandbox_requests_in_flight", "Requests being handled.")
        self._by_key = count(
            "orchard_sandbox_requests_by_key",
            "Requests let in, by key: `key-1` is the first; the log has its name.",
            ("key",),
        )
        self._in_flight_by_key = gauge(
            "orchard_sandbox_requests_in_flight_by_key", "Requests being handled, by key.", ("key",)
        )
        self._waiting = gauge(
            "orchard_sandbox_requests_waiting", "Requests that wait for their turn, by key.", ("key",)
        )
        self._refused = count(
            "orchard_sandbox_requests_refused",
            "Requests refused for a limit: rate, requests, sandboxes, overload.",
            ("key", "limit"),
        )
        self._commands = times(
            "orchard_sandbox_exec_seconds",
            "Run time of commands whose request waited for them.",
            ("outcome",),
        )
        self._sandboxes = gauge("orchard_sandbox_sandboxes", "Sandboxes there are.", ("status",))
        self._backend_up = gauge(
            "orchard_sandbox_backend_up", "1 when the backend could be asked for its sandboxes."
        )

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        with self._in_flight.track_inprogress():
            yield

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record a handled request; `route` is the pattern of its path."""
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)

    @contextmanager
    def asked_by(self, key: str) -> Iterator[None]:
        """Count a request of the key of this name while it is handled. A context manager."""
        self._by_key.labels(self._names[key]).inc()
        with self._in_flight_by_key.labels(self._names[key]).track_inprogress():
            yield

    @contextmanager
    def waiting(self, key: str) -> Iterator[None]:
        """Count a request of the key of this name while it waits to be admitted. A context manager."""
        with self._waiting.labels(self._names[key]).track_inprogress():
            yield

    def refused(self, key: str, limit: str) -> None:
        self._refused.labels(self._names[key], limit).inc()

    def executed(self, job: Job) -> None:
        """Record the run time of a finished command."""
        if job.started_at is None or job.completed_at is None:
            return
        outcome = "timeout" if job.timed_out else str(job.status)
        self._commands.labels(outcome).observe(job.completed_at - job.started_at)

    async def exposition(self, backend: Backend) -> bytes:
        """Return all metrics in Prometheus's text format; sandboxes are counted now."""
        self._sandboxes.clear()
        try:
            there = Tally(info.status for info in await backend.list({}))
        except SandboxError:
            self._backend_up.set(0)  # the sandboxes are unknown, so there are no figures of them
        else:
            self._backend_up.set(1)
            for status in SandboxStatus:
                if status is not SandboxStatus.NOT_FOUND:
                    self._sandboxes.labels(status).set(there[status])
        return generate_latest(self._registry)
