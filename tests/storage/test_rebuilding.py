"""Rows that another version of Orchard derived are derived anew by the writer, and no others."""

from collections.abc import Iterable

import msgspec
import pyarrow as pa
import pytest

from orchard.schemas.events import EVENT_TYPES
from orchard.storage import delta, derive, derived
from orchard.storage.digest import store_digests
from orchard.storage.location import Location
from orchard.storage.log import Fact
from orchard.storage.upkeep.maintenance import check, rebuild_derived, rebuild_events
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher

CALLS, REWARDS, MESSAGES = "llm_calls_all", "rewards_all", "messages_all"


def _earlier_rows(found: Iterable[Fact]) -> dict[str, pa.Table]:
    """Rows of a version that did not know a column of `llm_calls_all`, nor any event of `rewards_all`."""
    tables = derive.derive_tables(found)
    tables.pop(REWARDS, None)
    if CALLS in tables:
        calls = tables[CALLS]
        at = calls.schema.names.index("finish_reason")
        tables[CALLS] = calls.set_column(at, "finish_reason", pa.nulls(calls.num_rows, pa.string()))
    return tables


def _earlier_derivation(table: str) -> str:
    return "earlier" if table in (CALLS, REWARDS) else derive.derivation(table)


@pytest.mark.long
@pytest.mark.parametrize("first", ["earlier", "this"])
async def test_an_earlier_versions_rows_are_derived_anew_and_no_others(
    connection: Connection, publisher: Publisher, store: str, write, log, tmp_path, monkeypatch, first: str
) -> None:
    location = Location.parse(store)
    before = set[delta.DataFile]()
    if first == "this":
        await publisher.events(log.whole_rollout(0))
        await write()
        before = set(delta.snapshot(location, CALLS))
    with monkeypatch.context() as earlier:
        earlier.setattr(derived, "derive_tables", _earlier_rows)
        earlier.setattr(delta, "derivation", _earlier_derivation)
        earlier.setattr(delta.StoreTable, "stale_from", lambda *_: None)
        await publisher.events(log.whole_rollout(1))
        await write()
    messages = set(delta.snapshot(location, MESSAGES))

    (finding,) = check(store)
    assert finding.startswith(f"another version of Orchard derived rows of {REWARDS}, {CALLS}, which")

    await publisher.events(log.whole_rollout(2))
    await write()
    assert check(store) == []
    assert before <= set(delta.snapshot(location, CALLS))
    assert messages <= set(delta.snapshot(location, MESSAGES))
    rebuilt = str(tmp_path / "rebuilt")
    await rebuild_events(rebuilt, connection)
    rebuild_derived(rebuilt)
    assert store_digests(store) == store_digests(rebuilt)


def test_a_derivation_is_another_one_when_events_mean_something_else(monkeypatch) -> None:
    def derivation(documentation: str, default: int | None) -> str:
        struct = msgspec.defstruct(
            "LLMCall", [("title", int | None, default)], namespace={"__doc__": documentation}
        )
        monkeypatch.setitem(EVENT_TYPES, "llm.called", struct)
        monkeypatch.setitem(derive.ROWS, struct, (CALLS, {}))
        return derive.derivation.__wrapped__(CALLS)

    assert derivation("A call.", 0) == derivation("A call that answered.", 0) != derivation("A call.", None)
