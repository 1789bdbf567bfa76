"""What commands print with `--json`: a struct each, whose JSON Schema is in docs/reference/facts.json."""

import sys
from typing import Annotated

import msgspec
import typer

from orchard.configuration.findings import Finding

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")]


class DoctorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard doctor --json`."""

    findings: list[Finding]
    """What was checked."""


def print_facts(facts: object) -> None:
    """Prints a struct or data class as one line of JSON."""
    sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")
    sys.stdout.flush()
