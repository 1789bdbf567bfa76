"""Applies command-line flags to the configuration, and passes them to child processes."""

import os

import msgspec

from orchard.configuration.config import Config, ConfigError, checked, secrets
from orchard.workers.llm.settings import EndpointSettings
from orchard.workers.masking import learn


def replaced(config: Config, section: str, **changes: object) -> Config:
    """Applies the given flags of one section; None means not given. Raises ConfigError."""
    given = {name: value for name, value in changes.items() if value is not None}
    tree = msgspec.to_builtins(config)
    tree[section] |= given
    return checked(tree)


def with_endpoint(config: Config, base_url: str | None, api_key_env: str | None) -> Config:
    """Sets the endpoint `default` from the flags or from OPENAI_BASE_URL; its key is masked from now on."""
    known = config.endpoints.get("default")
    url = base_url or (known.base_url if known else None) or os.environ.get("OPENAI_BASE_URL")
    if url is None:
        return config
    key = api_key_env or (known.api_key_env if known else None)
    if key is None and "OPENAI_API_KEY" in os.environ:
        key = "OPENAI_API_KEY"
    try:
        endpoint = (
            msgspec.structs.replace(known, base_url=url, api_key_env=key)
            if known
            else EndpointSettings(base_url=url, api_key_env=key)
        )
    except ValueError as error:
        raise ConfigError(f"endpoints.default: {error}") from error
    config = msgspec.structs.replace(config, endpoints={**config.endpoints, "default": endpoint})
    learn(secrets(config, os.environ))
    return config


def endpoint_environment(config: Config) -> dict[str, str]:
    """Variables that set the endpoint `default` in child processes. They name the key's variable, not the
    key."""
    endpoint = config.endpoints.get("default")
    if endpoint is None:
        return {}
    prefix = "ORCHARD_ENDPOINTS__DEFAULT__"
    key = {f"{prefix}API_KEY_ENV": endpoint.api_key_env} if endpoint.api_key_env else {}
    return {f"{prefix}BASE_URL": endpoint.base_url, **key}


def up_environment(config: Config) -> dict[str, str]:
    """Variables that pass the flags of `up` on to its children."""
    return {**endpoint_environment(config), "ORCHARD_WORKER__SLOTS": str(config.worker.slots)}
