"""Checks at submission whether a campaign can run, instead of later in a worker."""

from collections.abc import Iterable, Mapping, Sequence

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.schemas.campaigns import CampaignSpec, TakeoverPlan
from orchard.schemas.health import ProcessReport
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.plugins import GUIDE, Kind
from orchard.schemas.queues import Queue
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.settings import EndpointSettings, uncut


async def check_programs(session: Session, harnesses: Iterable[str]) -> None:
    """Raises InfrastructureError if a harness needs a program that is not installed, as far as the sandbox
    service can be asked from here; workers may use another service."""
    from orchard.workers.harnesses import get_harness
    from orchard.workers.harnesses.programs.layers import installed
    from orchard.workers.harnesses.programs.runner import ProgramHarness

    programs = [name for name in harnesses if isinstance(get_harness(name), ProgramHarness)]
    if not programs:
        return
    try:
        async with session.sandboxes() as client:
            for name in programs:
                await installed(client, name)
    except ConfigError:
        return
    except InfrastructureError as error:
        if error.cause is AbortCause.HARNESS_MISSING:
            raise


async def sandbox_copies(session: Session) -> bool | None:
    """Whether the sandbox service has copies of sandboxes; None if that cannot be asked from here."""
    from orchard.injector.errors import SandboxError

    try:
        async with session.sandboxes() as client:
            return (await client.health()).copies
    except (ConfigError, SandboxError):
        return None


def check_workers(
    spec: CampaignSpec,
    working: Sequence[ProcessReport],
    needed: Mapping[Kind, set[str]],
    configured: Sequence[str],
) -> list[str]:
    """Notes for the submitter, a sentence each.

    `working` are the processes alive, `configured` the endpoints known here. Raises ConfigError when workers
    serve the queue and none of them has the plug-ins or endpoints that the campaign needs.
    """
    serving = _serving(spec, working)
    endpoints = {model.endpoint for model in spec.actors}
    if not serving:
        notes = [f"no worker serves this campaign now: {how_to_serve(spec.queue.consumer)}"]
        missing = ", ".join(sorted(endpoints - set(configured)))
        return notes + ([f"the configuration here has no endpoint {missing}: {_ADD}"] if missing else [])
    for kind, names in needed.items():
        if not any(names <= set(each.plugins.get(kind, [])) for each in serving):
            raise ConfigError(
                f"no worker has the {kind.value} {', '.join(sorted(names))}: install the plug-in where "
                f"the workers run, and start them again ({GUIDE})"
            )
    known = [each.endpoints for each in serving]
    if not any(names is None or endpoints <= set(names) for names in known):
        there = sorted({name for names in known for name in names or ()})
        raise ConfigError(
            f"no worker has the endpoint {', '.join(sorted(endpoints - set(there))) or 'set'} (there is: "
            f"{', '.join(there) or 'none'}): name another endpoint, or {_ADD}"
        )
    return []


def _serving(spec: CampaignSpec, working: Sequence[ProcessReport]) -> list[ProcessReport]:
    consumer = spec.queue.consumer
    return [each for each in working if consumer in each.serves.split(",")]


def unpriced(spec: CampaignSpec, endpoints: Mapping[str, EndpointSettings]) -> list[str]:
    """Names of models without a price in this configuration."""
    return [
        model.name
        for model in spec.actors
        if model.kind is not ModelKind.ORACLE
        and (model.endpoint not in endpoints or model.name not in endpoints[model.endpoint].prices)
    ]


def check_prices(
    spec: CampaignSpec, endpoints: Mapping[str, EndpointSettings], working: Sequence[ProcessReport] = ()
) -> None:
    """Raises ConfigError if the campaign has a cap and a model has no price, by the workers that serve the
    queue or, without any, by this configuration."""
    if spec.max_cost_usd is None:
        return
    here = {name: list(settings.prices) for name, settings in endpoints.items()}
    told = [each.priced for each in _serving(spec, working) if each.priced is not None]
    for model in spec.actors:
        if model.kind is ModelKind.ORACLE:
            continue
        prices = [priced[model.endpoint] for priced in told if model.endpoint in priced]
        if not all(model.name in known for known in prices or [here.get(model.endpoint, [])]):
            raise ConfigError(
                f"the model {model.name} has no price {'at a worker' if prices else 'here'}, so --max-cost "
                "cannot hold: add prompt and completion under "
                f'[endpoints.{model.endpoint}.prices."{model.name}"] to orchard.toml, here and where the '
                "workers run, and start them again, or leave --max-cost out"
            )


def added_fields(spec: CampaignSpec, endpoints: Mapping[str, EndpointSettings]) -> list[str]:
    """Sentences about request fields that endpoints add, one for each model."""
    notes = []
    for model in spec.models:
        if model.endpoint in endpoints and (fields := uncut(endpoints[model.endpoint], model)):
            said = ", ".join(f"{name} = {value}" for name, value in fields.items())
            notes.append(
                f"{model.name} is asked with {said}, so that the tokens come from the model itself: other "
                f"values in [endpoints.{model.endpoint}.extra_body] win"
            )
    return notes


def endpoints_of(models: Sequence[str], given: Sequence[str]) -> list[str]:
    """Endpoint of each model. Raises ConfigError if it is ambiguous."""
    if not given:
        return ["oracle" if model == "oracle" else "default" for model in models]
    if len(given) not in (1, len(models)):
        raise ConfigError(
            f"--endpoint is given {len(given)} times for {len(models)} models: give it once for all of them, "
            "or once for each, in their order"
        )
    return [*given] if len(given) == len(models) else [*given] * len(models)


def takeover_plan(teacher: str | None, endpoint: str | None, after: str) -> TakeoverPlan | None:
    """Plan of a takeover by a teacher after a number of turns, `3`, or one that is drawn, `1:5`. Raises
    ConfigError."""
    if teacher is None:
        if endpoint is not None or after != "1":
            raise ConfigError("--takeover-endpoint and --takeover-after belong to --takeover: name a teacher")
        return None
    least, _, most = after.partition(":")
    played = teacher.partition("/")[0] == "oracle"
    try:
        return TakeoverPlan(
            teacher=teacher,
            teacher_endpoint=endpoint or ("oracle" if played else "default"),
            teacher_kind=ModelKind.ORACLE if played else ModelKind.MODEL,
            least=int(least),
            most=int(most or least),
        )
    except ValueError as error:
        raise ConfigError(
            f"--takeover-after is {after!r}: give a number of turns, or two rising ones as 1:5"
        ) from error


_ADD = (
    "add [endpoints.NAME] with its base_url to orchard.toml (or, for `default`, pass --base-url to `orchard "
    "up`), and start the workers again"
)


def how_to_serve(consumer: str) -> str:
    """Advice on starting a worker of a queue, without a full stop."""
    usual = Queue()
    queue, _, team = consumer.partition(":")
    if team:
        return (
            f"start the workers again with [teams.{team}] in their orchard.toml; on a cluster `teams` in the "
            "chart's values must have it"
        )
    domain, _, priority = queue.partition("-")[2].partition("-")
    options = ["--domain", domain] if domain != usual.domain else []
    options += ["--priority", priority] if options or priority != usual.priority else []
    other = "" if options else "`orchard up`, or "
    return (
        f"start one with {other}`{' '.join(('orchard worker', *options))}`; on a cluster, KEDA starts one "
        f"for the waiting requests, from zero, if the chart's `queues` lists {consumer}"
    )
