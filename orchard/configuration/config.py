"""Configuration: one TOML file, then the environment, then flags; unknown keys are errors.

Every value has one place in one tree, for example `worker.slots`: `[worker] slots = 4` in the file,
`ORCHARD_WORKER__SLOTS=4` in the environment, `--slots 4` as a flag.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from orchard.configuration.access import AccessSettings
from orchard.configuration.run_files import UNSAFE_HOST
from orchard.configuration.variables import FILE_VARIABLE, UnknownVariable, settings, typed
from orchard.schemas.addresses import check_base_path, check_http_url
from orchard.schemas.faults import ConfigFault, fault
from orchard.schemas.identity import check_name
from orchard.schemas.plugins import PluginSettings
from orchard.schemas.quantities import Seconds, Weight
from orchard.schemas.toml_text import parsed_toml
from orchard.storage.settings import ArchiveSettings, WriterSettings
from orchard.streams.settings import NatsSettings, TeamSettings
from orchard.workers.episode.settings import JudgeSettings, SandboxSettings, WorkerSettings
from orchard.workers.llm.settings import EndpointSettings
from orchard.workers.oracle.behaviours import DEFAULT_MIX, checked_mix

FILE_NAME = "orchard.toml"
RETIRED = {
    "nats.event_max_age": "nats.event_max_age is gone, because old events are the fences that keep a rollout "
    "from having two outcomes: remove it, and use `orchard log archive` to move closed campaigns out of the "
    "stream"
}
"""Keys that earlier versions had, each with a sentence that says what replaces it."""


class ConfigError(ValueError):
    """The configuration cannot be used; the text is one sentence."""


class UpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processes that `orchard up` runs (configuration section `[up]`)."""

    workers: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 2
    """Number of worker processes."""
    oracle: bool = True
    """Run the oracle teacher, the endpoint named `oracle`."""
    page: bool = True
    """Serve the page, as `orchard ui` does, on loopback."""
    page_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8780
    """Port of the page; if it is taken, a free one."""
    page_base_path: str = ""
    """Path below which a proxy in front serves the page, such as /orchard."""
    page_hosts: tuple[str, ...] = ()
    """Host names under which a proxy serves the page."""
    shutdown_seconds: Seconds = 30.0
    """Seconds that running rollouts may take to finish after Ctrl-C before they go back to the queue."""
    restart_seconds: Seconds = 0.5
    """Pause before a process that ended by itself is restarted."""

    def __post_init__(self) -> None:
        check_base_path(self.page_base_path)


class OracleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Behaviour of the oracle teacher (configuration section `[oracle]`)."""

    mix: dict[str, Weight] = msgspec.field(default_factory=DEFAULT_MIX.copy)
    """Share of each behaviour among rollouts that name none."""

    def __post_init__(self) -> None:
        """Checks the mix. Raises ValueError."""
        checked_mix(self.mix)


TRACKERS = ("tensorboard", "mlflow", "wandb")


class TrackingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Destinations of training metrics beside the log (configuration section `[tracking]`)."""

    to: str = ""
    """`tensorboard`, `mlflow` or `wandb`, or several separated by commas; empty: none."""
    project: str = "orchard"
    """Name of MLflow's experiment and of the W&B project."""
    directory: str | None = None
    """Folder of TensorBoard's files, with a folder for each run. Default: `tracking` in the state
    directory."""
    mlflow_uri: str | None = None
    """Address of MLflow's tracking server. Default: MLFLOW_TRACKING_URI, else MLflow's own default."""

    def __post_init__(self) -> None:
        """Checks the names. Raises ValueError."""
        if unknown := set(self.names) - set(TRACKERS):
            raise ValueError(
                f"tracking.to names {', '.join(sorted(unknown))}: choose from {', '.join(TRACKERS)}"
            )

    @property
    def names(self) -> list[str]:
        return [name.strip() for name in self.to.split(",") if name.strip()]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration."""

    store: str = ".orchard"
    """Directory, or `s3://bucket/prefix`, of tables and blobs."""
    state: str | None = None
    """Directory of this machine's files: embedded NATS server, local sandboxes, package cache, logs.
    Default: the store if it is a directory, else a folder named after it below `.orchard`."""
    nats: NatsSettings = NatsSettings()
    sandbox: SandboxSettings = SandboxSettings()
    worker: WorkerSettings = WorkerSettings()
    judge: JudgeSettings = JudgeSettings()
    writer: WriterSettings = WriterSettings()
    archive: ArchiveSettings = ArchiveSettings()
    up: UpSettings = UpSettings()
    oracle: OracleSettings = OracleSettings()
    plugins: PluginSettings = PluginSettings()
    tracking: TrackingSettings = TrackingSettings()
    access: AccessSettings = AccessSettings()
    teams: dict[str, TeamSettings] = {}
    """Teams by name: each has a queue of its own at every priority."""
    endpoints: dict[str, EndpointSettings] = {}
    """Model endpoints by name; a campaign's model names one of them."""

    def __post_init__(self) -> None:
        """Checks store and directory. Raises ValueError."""
        for key, path in (("store", self.store), ("state", self.state)):
            if path == "" or "\0" in (path or ""):
                raise ValueError(f"{key} is {path!r}, which is not a path: name a directory")
        if self.sandbox.url not in (None, UNSAFE_HOST):
            check_http_url(str(self.sandbox.url), "sandbox.url")
        for team in self.teams:
            check_name(team, "team")
        for name, endpoint in self.endpoints.items():
            if not endpoint.base_url:
                raise ValueError(f"endpoints.{name}.base_url is empty: write it as https://HOST/v1")

    @property
    def directory(self) -> Path:
        """Absolute path of the state directory."""
        scheme, remote, name = self.store.rpartition("://")
        default = Path(".orchard", scheme, *name.split("/")) if remote else Path(self.store)
        return (Path(self.state) if self.state else default).expanduser().absolute()


def load(flags: Mapping[str, Any] | None = None, *, file: Path | None = None) -> Config:
    """Loads the configuration from its file, the environment and flags.

    `flags` maps dotted paths (`worker.slots`) to values; None values are flags that were not given. Raises
    ConfigError for a file that is missing or malformed, an unknown key, or a value of the wrong type.
    """
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    path = config_path(file)
    if path != Path(FILE_NAME) and not path.is_file():
        raise ConfigError(f"configuration file {path} does not exist: create it or drop --config")
    if path.is_file():
        try:
            tree = parsed_toml(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
        except OSError as error:
            raise ConfigError(
                f"configuration file {path} cannot be read ({error.strerror}): allow it, or name "
                "another by --config"
            ) from error
    origins[""] = str(path.absolute())
    try:
        for variable, keys in settings(os.environ, Config, RETIRED):
            _put(tree, keys, typed(Config, keys, os.environ[variable]), variable)
            origins[".".join(keys)] = variable
    except UnknownVariable as error:
        raise ConfigError(str(error)) from None
    for dotted, value in (flags or {}).items():
        if value is not None:
            _put(tree, dotted.split("."), value, f"flag for {dotted}")
            origins[dotted] = f"flag for {dotted}"
    for key, sentence in RETIRED.items():
        section, _, name = key.partition(".")
        branch = tree.get(section)
        if isinstance(branch, dict) and name in branch:
            raise ConfigError(sentence)
    return checked(tree, origins)


def config_path(file: Path | None = None) -> Path:
    """Path of the configuration file, which may not exist: `given`, ORCHARD_CONFIG, or `orchard.toml`
    here."""
    return file or Path(os.environ.get(FILE_VARIABLE, FILE_NAME))


def checked(tree: Any, origins: Mapping[str, str] | None = None) -> Config:
    """Converts a tree of plain values to the configuration. Raises ConfigError for a value that its key
    refuses."""
    try:
        return msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        found = fault(tree, Config) or ConfigFault((), str(error))
        where = _origin(found, origins or {})
        raise ConfigError(
            f"{where}: {found.reason}; see `orchard config` for every key and its value"
        ) from error


def _origin(found: ConfigFault, origins: Mapping[str, str]) -> str:
    """The variable or flag that set the value, else the file, variables that set a part of it, and its
    key."""
    at = found.key
    if at and at in origins:
        return origins[at]
    parts = [
        origin for key, origin in origins.items() if key and (key.startswith(f"{at}.") or key in found.reason)
    ]
    where = ", ".join([origins.get("", "configuration"), *parts])
    return f"{where}: {at}" if at else where


_ALWAYS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Environment variables with the keys of a store on S3; no configuration key names them."""


def secrets(config: Config, environment: Mapping[str, str]) -> dict[str, str]:
    """Secrets by name: values of the variables that the configuration names, and passwords in its
    addresses."""
    names = {*_ALWAYS, *_variables_in(config)}
    found = {name: value for name in sorted(names) if (value := environment.get(name))}
    passwords = [urlsplit(url.strip()).password for url in (config.nats.url or "").split(",")]
    return found | {f"nats.url {number}": one for number, one in enumerate(passwords) if one}


def _variables_in(value: Any) -> Iterator[str]:
    """Names of environment variables: values of the keys that end with `_env`."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            if name.endswith("_env") and isinstance(inner, str):
                yield inner
            else:
                yield from _variables_in(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _variables_in(inner)


def _put(tree: dict[str, Any], keys: list[str], value: Any, origin: str) -> None:
    for key in keys[:-1]:
        branch = tree.setdefault(key, {})
        if not isinstance(branch, dict):
            raise ConfigError(f"{origin} has a value for {key!r}: write a table")
        tree = branch
    tree[keys[-1]] = value
