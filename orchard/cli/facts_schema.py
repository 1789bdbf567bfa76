"""The JSON Schema of what commands print with `--json`."""

from typing import Any

import msgspec

from orchard.actions.endpoint_trial import Trial
from orchard.cli.facts import DoctorFacts, StatusFacts
from orchard.pipelines.datasets.manifest import Manifest

FACTS: dict[str, Any] = {"status": StatusFacts, "doctor": DoctorFacts, "try": Trial, "dataset show": Manifest}
"""Type of the output by command."""


def facts_schema() -> str:
    """JSON Schema of every output; a command's is `$defs` by the name in `commands`."""
    schemas, components = msgspec.json.schema_components(list(FACTS.values()), ref_template="#/$defs/{name}")
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "commands": dict(zip(FACTS, schemas, strict=True)),
        "$defs": components,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"
