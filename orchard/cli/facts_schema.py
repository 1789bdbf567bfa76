"""The JSON Schema of what commands print with `--json`."""

from typing import Any

import msgspec

from orchard.actions.domain import answers
from orchard.actions.endpoint_trial import Trial
from orchard.cli.campaign_facts import StatusFacts, WatchFacts
from orchard.cli.cost import SpendingFacts
from orchard.cli.datasets import RowFacts
from orchard.cli.dead import DeadLetterFacts, DeadLetterListing
from orchard.cli.evaluation import EvaluationFacts, PlanFacts
from orchard.cli.facts import DoctorFacts
from orchard.cli.harness import ProgramListing, ProgramRecord
from orchard.cli.images import ImageListing
from orchard.cli.log import LogFacts
from orchard.cli.logs import ProcessLogs
from orchard.cli.measuring import AgreementListing
from orchard.cli.rl_facts import GroupListing, WhatIfFacts
from orchard.cli.sandbox import SandboxCostFacts
from orchard.cli.shown_message import ShownMessage
from orchard.cli.store import StoreFacts, TableDigests
from orchard.cli.task_page import TaskRecord
from orchard.cli.tasks import HackListing, TaskListing
from orchard.cli.values import ShapeListing
from orchard.configuration.config import Config
from orchard.pipelines.datasets.comparison import Difference
from orchard.pipelines.datasets.manifest import Manifest
from orchard.storage.archive.verify import Verified

CORE_FACTS: dict[str, Any] = {
    "status": StatusFacts,
    "watch": WatchFacts,
    "doctor": DoctorFacts,
    "try": Trial,
    "show": ShownMessage,
    "cost": SpendingFacts,
    "sandbox cost": SandboxCostFacts,
    "config": Config,
    "logs": ProcessLogs,
    "tasks list": TaskListing,
    "tasks hacks": HackListing,
    "tasks show": TaskRecord,
    "harness list": ProgramListing,
    "harness show": ProgramRecord,
    "images list": ImageListing,
    "store check": StoreFacts,
    "store digest": TableDigests,
    "dead list": DeadLetterListing,
    "dead show": DeadLetterFacts,
    "log status": LogFacts,
    "log verify": Verified,
    "dataset show": Manifest,
    "dataset diff": Difference,
    "dataset why": RowFacts,
    "values shapes": ShapeListing,
    "values report": AgreementListing,
    "eval run": PlanFacts,
    "eval report": EvaluationFacts,
    "rl groups": GroupListing,
    "rl what-if": WhatIfFacts,
}
"""Type of the output by command of the core; `watch` and `show` print one a line."""


def facts_types() -> dict[str, Any]:
    """Types of the output of all commands, those of domains last."""
    return {name: kind for facts in (CORE_FACTS, *answers("facts")) for name, kind in facts.items()}


def facts_schema() -> str:
    """JSON Schema of every output; a command's is `$defs` by the name in `commands`."""
    types = facts_types()
    schemas, components = msgspec.json.schema_components(list(types.values()), ref_template="#/$defs/{name}")
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "commands": dict(zip(types, schemas, strict=True)),
        "$defs": components,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"
