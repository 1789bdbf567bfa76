"""The JSON Schema of what commands print with `--json`."""

from typing import Any

import msgspec

from orchard.actions.endpoint_trial import Trial
from orchard.cli.cost import CostFacts
from orchard.cli.dead import DeadLetterListing
from orchard.cli.evaluation import EvaluationFacts
from orchard.cli.facts import DoctorFacts, StatusFacts, WatchFacts
from orchard.cli.harness import ProgramListing
from orchard.cli.images import ImageListing
from orchard.cli.log import LogFacts
from orchard.cli.measuring import AgreementListing
from orchard.cli.store import StoreFacts, TableDigests
from orchard.cli.tasks import HackListing, TaskListing
from orchard.cli.values import ShapeListing
from orchard.pipelines.datasets.comparison import Difference
from orchard.pipelines.datasets.manifest import Manifest
from orchard.storage.archive.verify import Verified

FACTS: dict[str, Any] = {
    "status": StatusFacts,
    "watch": WatchFacts,
    "doctor": DoctorFacts,
    "try": Trial,
    "cost": CostFacts,
    "tasks list": TaskListing,
    "tasks hacks": HackListing,
    "harness list": ProgramListing,
    "images list": ImageListing,
    "store check": StoreFacts,
    "store digest": TableDigests,
    "dead list": DeadLetterListing,
    "log status": LogFacts,
    "log verify": Verified,
    "dataset show": Manifest,
    "dataset diff": Difference,
    "values shapes": ShapeListing,
    "values report": AgreementListing,
    "eval report": EvaluationFacts,
}
"""Type of the output by command; `watch` prints one a line."""


def facts_schema() -> str:
    """JSON Schema of every output; a command's is `$defs` by the name in `commands`."""
    schemas, components = msgspec.json.schema_components(list(FACTS.values()), ref_template="#/$defs/{name}")
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "commands": dict(zip(FACTS, schemas, strict=True)),
        "$defs": components,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"
