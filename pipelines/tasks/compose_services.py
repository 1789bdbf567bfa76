"""The services of a compose file that run beside the agent's. Pure.

What decides how a service behaves is honored, or refused by name; what is about the keeping of its container
is ignored. A service with a healthcheck is waited for, whatever depends on it.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from orchard.pipelines.tasks.compose_variables import interpolated, variables
from orchard.schemas.tasks import TaskService

_KEPT = (
    *("deploy", "init", "labels", "logging", "platform", "pull_policy", "restart", "stdin_open"),
    *("stop_grace_period", "stop_signal", "tty"),
)
"""Keys about the keeping of a container."""
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_ENDED = "service_completed_successfully"
_READY_SECONDS = 60.0
"""Time that a service without a healthcheck has to listen at its ports, or to end."""


class _Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    context: str = "."
    dockerfile: str = "Dockerfile"


class _Healthcheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    test: str | list[str] = []
    interval: str = "30s"
    timeout: str = "30s"
    retries: int = 3
    start_period: str = "0s"
    start_interval: str = "5s"
    disable: bool = False


class _Condition(msgspec.Struct, frozen=True):
    condition: str = "service_started"


class _Beside(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    image: str = ""
    build: str | _Build | None = None
    command: str | list[str] | None = None
    entrypoint: str | list[str] | None = None
    environment: dict[str, str | int | float | bool | None] | list[str] | None = None
    working_dir: str = ""
    user: str | int = ""
    expose: list[str | int] | None = None
    ports: list[str | int | dict[str, Any]] | None = None
    depends_on: list[str] | dict[str, _Condition | None] = []
    healthcheck: _Healthcheck | None = None
    hostname: str = ""
    container_name: str = ""


class BesideService(msgspec.Struct, frozen=True, kw_only=True):
    """A service beside the agent's; what its image starts may not be known yet."""

    service: TaskService
    context: Path | None = None
    """Directory of the Dockerfile of its image; None: the image is published."""
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    """None: the image's, as for the entrypoint."""

    def of(self, image: str, entrypoint: Sequence[str] = (), command: Sequence[str] = ()) -> TaskService:
        """The service, of an image with such an entrypoint and command. Raises ValueError if nothing says
        what it starts."""
        own = self.entrypoint is not None
        program = self.entrypoint if self.entrypoint is not None else tuple(entrypoint)
        arguments = self.command if self.command is not None else () if own else tuple(command)
        if not program and not arguments:
            raise ValueError(
                f"the service {self.service.names[0]} has neither an entrypoint nor a command, and those of "
                f"{image} are not known here: import the image first, or write the entrypoint"
            )
        return msgspec.structs.replace(self.service, image=image, argv=(*program, *arguments))


def read_beside(services: Mapping[str, Any], path: Path) -> tuple[BesideService, ...]:
    """The services, in the order of their start. Raises ValueError for what cannot be had here."""
    given = {}
    for name, said in services.items():
        keys = {key: value for key, value in (said or {}).items() if key not in _KEPT}
        try:
            given[name] = msgspec.convert(keys, _Beside)
        except msgspec.ValidationError as error:
            raise ValueError(
                f"{path.name}, service {name}: it asks for what a sandbox here does not have: {error}"
            ) from error
    wanted = [each.depends_on for each in given.values()]
    ends = {
        name
        for each in wanted
        if isinstance(each, dict)
        for name, how in each.items()
        if how is not None and how.condition == _ENDED
    }
    try:
        order = list(
            TopologicalSorter({name: set(each.depends_on) for name, each in given.items()}).static_order()
        )
    except CycleError as error:
        raise ValueError(f"{path.name}: its services depend on each other: {error.args[1]}") from error
    if unknown := next((name for name in order if name not in given), None):
        raise ValueError(f"{path.name}: a service depends on {unknown!r}, which is none beside the agent's")
    return tuple(_service(name, given[name], path, ends=name in ends) for name in order)


def _service(name: str, given: _Beside, path: Path, *, ends: bool) -> BesideService:
    def wrong(why: str) -> NoReturn:
        raise ValueError(f"{path.name}, service {name}: {why}")

    build = _Build(given.build) if isinstance(given.build, str) else given.build
    context = None
    if build is not None:
        context = path.parent / build.context.replace("${CONTEXT_DIR}", ".")
        if build.dockerfile != "Dockerfile" or not (context / "Dockerfile").is_file():
            wrong(f"there is no {build.context}/Dockerfile, which alone is built here")
    elif not given.image:
        wrong("it has neither an image nor a build")
    check = given.healthcheck
    test = None if check is None or check.disable else _test(check)
    try:
        ports = tuple(sorted({*_exposed(given.expose or ()), *_published(given.ports or ())}))
        said = [interpolated(text) for text in (given.image, given.working_dir, str(given.user))]
        environment = {key: interpolated(value) for key, value in variables(given.environment).items()}
        entrypoint, command = _words(given.entrypoint), _words(given.command)
        ready, seconds = ("", _READY_SECONDS) if check is None or test is None else _waiting(check, test)
    except ValueError as error:
        wrong(str(error))
    if not ports and test is None and not ends and given.expose is None:
        wrong(
            "it names no port and has no healthcheck: write expose: with the ports at which it listens, or "
            "expose: [] if it listens at none"
        )
    known = bool(ports) or given.expose is not None or ends
    names = dict.fromkeys(filter(None, (name, given.hostname, given.container_name)))
    image, workdir, user = said
    return BesideService(
        service=TaskService(
            names=tuple(names),
            image=image,
            environment=environment,
            workdir=workdir,
            user=user,
            ports=ports if known else None,
            ready=ready,
            ready_seconds=seconds,
            ends=ends,
        ),
        context=context,
        entrypoint=entrypoint,
        command=command,
    )


def _words(said: str | list[str] | None) -> tuple[str, ...] | None:
    if said is None:
        return None
    return tuple(interpolated(word) for word in (shlex.split(said) if isinstance(said, str) else said))


def _test(check: _Healthcheck) -> str | None:
    """The test as shell text; None: there is none."""
    if isinstance(check.test, str):
        return interpolated(check.test)
    how, *words = map(interpolated, check.test or ["NONE"])
    if how == "CMD":
        return shlex.join(words)
    return " ".join(words) if how == "CMD-SHELL" else None


def _waiting(check: _Healthcheck, test: str) -> tuple[str, float]:
    """Shell text that waits until the test succeeds, and the most seconds that it takes."""
    interval, limit, start = map(_seconds, (check.interval, check.timeout, check.start_period))
    # An early try costs nothing, and what is ready sooner begins sooner.
    pause = min(interval, _seconds(check.start_interval), 1.0)
    text = f"until timeout {max(limit, 1.0):g} sh -c {shlex.quote(test)}; do sleep {pause:g}; done"
    return text, start + max(check.retries, 1) * (interval + limit)


def _seconds(text: str) -> float:
    found = _PARTS.findall(text)
    if not found or "".join(number + unit for number, unit in found) != text:
        raise ValueError(f"{text!r} is no duration: write it like 5s or 1m30s")
    return float(sum(float(number) * _SECONDS[unit] for number, unit in found))


def _exposed(entries: Sequence[str | int]) -> Iterator[int]:
    for entry in entries:
        yield from _range(str(entry))


def _published(entries: Sequence[str | int | Mapping[str, Any]]) -> Iterator[int]:
    for entry in entries:
        inside = entry.get("target", "") if isinstance(entry, Mapping) else str(entry).rpartition(":")[2]
        yield from _range(str(inside))


def _range(text: str) -> Iterator[int]:
    ports, _, protocol = interpolated(text).partition("/")
    first, _, last = ports.partition("-")
    if protocol not in ("", "tcp") or not first.isdigit() or not (last or first).isdigit():
        raise ValueError(f"the port {text!r} is no TCP port, and only those are reached")
    yield from range(int(first), int(last or first) + 1)
