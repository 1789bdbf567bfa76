"""`try`: what a model endpoint serves, and which harness suits."""

import asyncio
from typing import Annotated

import typer

from orchard.actions.session import Session
from orchard.cli.facts import AsJson, print_facts
from orchard.configuration.config import ConfigError
from orchard.configuration.config_toml import toml_value
from orchard.configuration.flags import with_endpoint
from orchard.terminal.console import console
from orchard.terminal.findings import findings_table
from orchard.terminal.options import ApiKeyEnv, BaseUrl
from orchard.workers.llm.settings import EndpointSettings

COMMANDS = {"try": "Ask a model endpoint a few questions: what works, what is missing, which harness suits."}


def register(app: typer.Typer) -> None:
    @app.command("try")
    def try_(
        context: typer.Context,
        endpoint: Annotated[
            str | None,
            typer.Argument(
                help="Endpoint, as the configuration names it.", show_default="default, or the only one"
            ),
        ] = None,
        model: Annotated[
            str | None,
            typer.Option(
                help="Model name at the endpoint.", show_default="the only one priced or listed there"
            ),
        ] = None,
        base_url: BaseUrl = None,
        api_key_env: ApiKeyEnv = None,
        seconds: Annotated[float, typer.Option(help="Maximum seconds of each question.", min=1)] = 120.0,
        as_json: AsJson = False,
    ) -> None:
        """Ask a model endpoint a few questions: what works, what is missing, which harness suits.

        Asks each server of the endpoint for a tool call, a stream, log-probabilities with token ids, and the
        length of the context, which costs a few hundred tokens, and names what servers differ in. Exit code 1
        if no harness works with the endpoint.

            orchard try --base-url http://localhost:8000/v1 --model NAME
        """
        from orchard.actions.replica_trial import try_endpoint  # a second that others need not wait
        from orchard.actions.tried_endpoints import remember

        session: Session = context.obj
        endpoints = with_endpoint(session.config, base_url, api_key_env).endpoints
        name = _chosen(endpoint, list(endpoints))
        trial = asyncio.run(try_endpoint(name, endpoints[name], model, seconds))
        remember(session.directory, endpoints[name], trial)
        if as_json:
            print_facts(trial)
        else:
            console.print(findings_table(trial.findings))
        if trial.problem:
            raise typer.Exit(1)
        if not as_json:
            tokens = (
                "tokens that not every answer counted" if trial.tokens is None else f"{trial.tokens} tokens"
            )
            cost = "" if trial.cost_usd is None else f", {trial.cost_usd:.6f} USD"
            console.print(f"The questions took {tokens}{cost}.")
            if endpoints[name] != session.config.endpoints.get(name):
                console.print("To keep the endpoint, add to orchard.toml:\n")
                lines = "\n".join(f"    {line}" for line in _section(name, endpoints[name], trial.model))
                console.print(f"{lines}\n", soft_wrap=True, highlight=False, markup=False)
            console.print(f"Continue with: {trial.command}", soft_wrap=True, highlight=False, markup=False)


def _section(name: str, settings: EndpointSettings, model: str) -> list[str]:
    """Lines of a configuration file with an endpoint that options gave, its prices to be filled in."""
    lines = [f"[endpoints.{name}]", f"base_url = {toml_value(settings.base_url)}"]
    if settings.api_key_env:
        lines.append(f"api_key_env = {toml_value(settings.api_key_env)}")
    if model in settings.prices:
        return lines
    return [
        *lines,
        f"# [endpoints.{name}.prices.{toml_value(model)}]   # USD per million tokens, or costs stay unknown",
        "# prompt = ",
        "# completion = ",
    ]


def _chosen(given: str | None, there: list[str]) -> str:
    """Returns the endpoint that is meant. Raises ConfigError."""
    known = ", ".join(there) or "none"
    if given is None:
        given = "default" if "default" in there or not there else there[0] if len(there) == 1 else None
    if given is None:
        raise ConfigError(f"there are several endpoints: name one of {known}")
    if given not in there:
        raise ConfigError(
            f"no endpoint is named {given!r} in the configuration (there is: {known}): pass --base-url "
            f"http://HOST/v1, or add a section [endpoints.{given}] with its base_url"
        )
    return given
