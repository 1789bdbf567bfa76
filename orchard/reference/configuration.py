"""Writes the reference of configuration files and environment variables."""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, get_origin, get_type_hints

import msgspec

from orchard.configuration.config import Config
from orchard.configuration.fields import describe, named, summary
from orchard.injector.front.upstreams import FrontSettings
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.orchestrator.limits import ServiceLimits
from orchard.pipelines.datasets.settings import DatasetSettings
from orchard.pipelines.domain import presets
from orchard.pipelines.rl.settings import RlSettings
from orchard.pipelines.sft.settings import SftSettings
from orchard.reference.page import code, page, table

_INTRODUCTION = """\
One file, `orchard.toml` in the current directory (`--config` or `ORCHARD_CONFIG` names another), for all
commands. The environment wins over the file, and a flag of a command wins over both: `slots = 4` in the
section `[worker]` is the key `worker.slots`, the variable `ORCHARD_WORKER__SLOTS=4` and the flag `--slots
4`. An unknown key is an error. `orchard config` prints the effective values. The default `none` stands for
a key that is left out. Secrets are never in the file, only names of environment variables that hold them."""


def _named(names: Iterable[str]) -> str:
    *most, last = (code(f'"{name}"') for name in names)
    return f"{', '.join(most)} or {last}"


_OTHER_FILES: tuple[tuple[str, type[msgspec.Struct], str], ...] = (
    ("Dataset", DatasetSettings, "The argument of `orchard dataset build` ([guide](../datasets.md))."),
    (
        "Fine-tuning",
        SftSettings,
        "The argument of `orchard sft` ([guide](../training.md)). `preset`, "
        f"{_named(presets(lambda each: each.sft_preset))}, sets the paper's values first; keys in the file "
        "win.",
    ),
    (
        "Reinforcement learning",
        RlSettings,
        "The argument of `orchard rl` ([guide](../training.md)). `preset` is "
        f"{_named(['paper', *presets(lambda each: each.rl_preset)])}; "
        '`method = "fixed"` (GRPO) or `"dynamic"` (DAPO) replaces balanced groups (`"bar"`).',
    ),
    (
        "Several sandbox services",
        FrontSettings,
        "The file of `python -m orchard.injector.front --upstreams FILE` "
        "([guide](../several-hosts.md#one-address-for-all-hosts)).",
    ),
    (
        "Sandboxes on Kubernetes",
        KubernetesSettings,
        "The file of `python -m orchard.injector.orchestrator --backend kubernetes "
        "--kubernetes-settings FILE`.",
    ),
    (
        "Limits of the sandbox service",
        ServiceLimits,
        "The file of `python -m orchard.injector.orchestrator --limits FILE` ([guide](../sandboxes.md)).",
    ),
)

_VARIABLES = (
    ("ORCHARD_CONFIG", "Configuration file, in place of `orchard.toml`"),
    ("ORCHARD_<SECTION>__<KEY>", "A key of the configuration, for example `ORCHARD_NATS__URL`"),
    ("SANDBOX_BASE_URL", "Address of the sandbox service, for `orchard.SandboxClient`"),
    ("SANDBOX_API_KEY", "Keys of the sandbox service, separated by commas; a client sends the first"),
    ("SANDBOX_ADMIN_KEYS", "Keys that see the sandboxes of all keys, for the service"),
    ("ORCHARD_SANDBOX_DISK", "Disk that one local sandbox may use, for the agent, such as `20Gi`"),
    ("ORCHARD_SANDBOX_COUNT", "Most sandboxes of one machine at once, for the agent; more wait"),
    ("ORCHARD_SANDBOX_FILES", "Files that one local sandbox may make, for the agent, such as `256Ki`"),
    ("ORCHARD_AGENT_SECRET", "Secret that agents' keys are made from, on Kubernetes; at least 32 characters"),
    ("OPENAI_API_KEY", "Key of the model endpoint, unless `api_key_env` names another variable"),
    (
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL",
        "Access to a store on `s3://`",
    ),
)


def configuration() -> str:
    """Text of the page: `orchard.toml`, the files of single commands, the environment."""
    return page(
        "Configuration",
        _INTRODUCTION,
        "## orchard.toml",
        *_sections(Config),
        "## Environment variables",
        table(("variable", "meaning"), [(code(name), text) for name, text in _VARIABLES]),
        "# Files of single commands",
        *(part for title, struct, text in _OTHER_FILES for part in (f"## {title}", text, *_sections(struct))),
    )


def _sections(struct: type[msgspec.Struct], path: str = "", *, array: bool = False) -> Iterator[str]:
    """Lists the plain keys of a table, then each table below it under its own heading; `array`: the table may
    be there several times."""
    hints = get_type_hints(struct, include_extras=True)
    parts = {
        name: one for name, hint in hints.items() for one in named(hint) if issubclass(one, msgspec.Struct)
    }
    rows = [
        (
            code(one.name),
            _written(one.type, hints[one.name]),
            one.unit,
            code(one.default) or "required",
            one.meaning,
        )
        for one in describe(struct, dict.fromkeys(parts, ""))
        if one.name not in parts
    ]
    if path:
        yield f"### `[[{path}]]`\n\n{summary(struct)}" if array else f"### `[{path}]`\n\n{summary(struct)}"
    if rows:
        yield table(("key", "type", "unit", "default", "meaning"), rows)
    for name, part in parts.items():
        several = ".<name>" if "dict" in str(hints[name]) else ""
        array = get_origin(hints[name]) is tuple
        yield from _sections(part, f"{path}.{name}{several}".removeprefix("."), array=array)


def _written(told: str, hint: Any) -> str:
    """Describes a type as its values are written in a file, without null and with the members of
    enumerations."""
    for one in named(hint):
        words = " or ".join(code(str(member.value)) for member in one) if issubclass(one, Enum) else ""
        told = told.replace(f"[{one.__name__}](#{one.__name__.lower()})", words)
    return told.removesuffix(" or null")
