"""Rows of web benchmarks and task pools as tasks of the domain `gui`: an intent, a start URL, a judge."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from orchard.pipelines.domains.gui.funnel.stages import Intent, site_of
from orchard.pipelines.tasks.errors import MalformedRow
from orchard.schemas.gui import WORLD, GuiWorld
from orchard.schemas.identity import digest
from orchard.schemas.judging import GuiJudging
from orchard.schemas.tasks import PluginGrading, Task, WorldUse

PROTOCOLS: Mapping[str, str] = MappingProxyType(
    {
        "webvoyager": "webvoyager-1",
        "online-mind2web": "webjudge-1",
        "deepshop": "deepshop-1",
        "webgym": "orchard-1",
        "pae-webvoyager": "orchard-1",
        "insta": "orchard-1",
    }
)
"""Benchmarks and pools, with the protocol by which each is judged."""

COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "id": ("task_id", "id"),
        "intent": ("ques", "confirmed_task", "task_name", "intent", "instruction", "task", "question"),
        "url": ("start_url", "web", "url", "website", "domain"),
        "parent": ("parent_task_id", "parent_id", "parent"),
        "split": ("split", "source", "benchmark"),
        "level": ("level", "difficulty"),
    }
)
"""What a row says, and the columns that say it: the first that is there."""
_CPU, _MEMORY = "2", "8Gi"
"""CPU and memory of the paper's sandboxes."""


def parts_of(row: Mapping[str, Any], number: int, columns: Mapping[str, str]) -> dict[str, str]:
    """The fields of COLUMNS in a row; empty where it has none. `columns` names the column of some. Raises
    MalformedRow for a row without intent or URL."""
    found = {}
    for part, known in COLUMNS.items():
        names = [columns[part]] if part in columns else [name for name in known if name in row]
        if names and names[0] not in row:
            raise MalformedRow(
                number, names[0], f"is missing: --column {part}=NAME must name one that is there"
            )
        value = row[names[0]] if names else None
        found[part] = "" if value is None else str(value).strip()
        if part in ("intent", "url") and not found[part]:
            column = names[0] if names else f"for the {part}"
            raise MalformedRow(number, column, f"is empty: --column {part}=NAME names another")
    if not site_of(found["url"]):
        raise MalformedRow(number, "for the url", f"{found['url']!r} names no site")
    found["id"] = found["id"] or digest([found["url"], found["intent"]], 12)
    return found


def intent_of(row: Mapping[str, Any], number: int, columns: Mapping[str, str]) -> Intent:
    """The funnel's record of a row. Raises MalformedRow."""
    parts = parts_of(row, number, columns)
    return Intent(
        id=parts["id"],
        text=parts["intent"],
        site=site_of(parts["url"]),
        split=parts["split"],
        parent=parts["parent"],
    )


def task_from_web_row(
    row: Mapping[str, Any],
    number: int,
    *,
    family: str,
    source: str = "",
    columns: Mapping[str, str] = MappingProxyType({}),
) -> Task:
    """The task of a row of a benchmark or pool of PROTOCOLS. Raises MalformedRow."""
    parts = parts_of(row, number, columns)
    url = parts["url"] if "://" in parts["url"] else f"https://{parts['url']}"
    if not url.startswith(("http://", "https://")):
        raise MalformedRow(number, "for the url", f"{url!r} is neither http nor https")
    judging = GuiJudging(protocol=PROTOCOLS[family])
    site = site_of(url)
    labels = {name: parts[name] for name in ("split", "parent", "level") if parts[name]}
    return Task(
        task_id=f"{family}-{parts['id']}",
        source=source or family,
        repo=site,
        image="host",
        statement=parts["intent"],
        grading=PluginGrading(grader="gui-judge", settings=msgspec.to_builtins(judging), in_place=True),
        workdir="/tmp",
        cpu=_CPU,
        memory=_MEMORY,
        labels={"site": site, **labels},
        world=WorldUse(
            kind=WORLD, settings=msgspec.to_builtins(GuiWorld(start_url=url, block_network=False))
        ),
    )
