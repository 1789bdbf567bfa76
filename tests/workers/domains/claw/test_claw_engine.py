"""The services of a world: declarations, rules, the log, injected errors, replays."""

from datetime import datetime, timedelta
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchard.schemas.claw import BUNDLES, ClawBundle, ClawWorld
from orchard.schemas.decoding import decode_whole
from orchard.workers.domains.claw.engine import BadWorld, Injection, Services, ServiceTool
from orchard.workers.domains.claw.services import SERVICES
from tests.claw_world import DESK, LETTER, NOW, desk

EVERYTHING = desk(services={name: DESK.get(name, {}) for name in SERVICES})


def _pay(amount: float) -> dict[str, Any]:
    return {"account_id": "a1", "payee_id": "p1", "amount": amount, "reference": "r"}


def test_there_are_at_least_ten_services_and_every_tool_has_a_schema_that_is_one() -> None:
    assert len(SERVICES) >= 10
    for offer in Services(EVERYTHING, 0).offers.values():
        jsonschema.Draft202012Validator.check_schema(offer.operation.schema)
        assert offer.about.endswith(".")
        assert offer.operation.irreversible <= offer.operation.changes


def _values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit, and ids and times that are there."""
    match schema:
        case {"enum": choices}:
            return st.sampled_from(choices)
        case {"format": "date-time"}:
            return st.sampled_from(["2026-04-10T09:30:00+00:00", "2026-04-12", "1900-01-01T00:00:00-12:00"])
        case {"type": "string"}:
            return st.sampled_from(
                ["msg_401", "c1", "a1", "p1", "me@example.com", "message_001", "\U0001f600"]
            )
        case {"type": "integer"}:
            return st.integers(-5, 2**31)
        case {"type": "number"}:
            return st.floats(0.01, 1000)
        case {"type": "boolean"}:
            return st.booleans()
        case _:
            return st.lists(st.just("tom@example.com"), max_size=2)


def _fitting(offer: ServiceTool) -> st.SearchStrategy[tuple[str, Any]]:
    arguments, required = offer.operation.arguments, offer.operation.required
    return st.fixed_dictionaries(
        {name: _values(arguments[name]) for name in required},
        optional={name: _values(schema) for name, schema in arguments.items() if name not in required},
    ).map(lambda given: (offer.tool, given))


OFFERS = list(Services(EVERYTHING, 0).offers.values())
TOOLS = st.sampled_from(["no_such", *(offer.tool for offer in OFFERS)])
ANYTHING = (
    st.sampled_from(["", "{", "[]", "null", "NaN", '{"message_id": [[]]}', '{"amount": 1e999}']) | st.text()
)
CALLS = st.lists(st.one_of([*map(_fitting, OFFERS), st.tuples(TOOLS, ANYTHING)]), min_size=1, max_size=12)
"""Calls of any tool: arguments that fit, arguments that do not, and no JSON at all."""


@settings(max_examples=60)
@given(CALLS, st.integers(0, 50), st.sampled_from([0.0, 0.5]))
def test_whatever_is_asked_is_answered_logged_and_the_same_again(
    asked: list[tuple[str, Any]], seed: int, rate: float
) -> None:
    world = msgspec.structs.replace(EVERYTHING, error_rate=rate)
    first, again = Services(world, seed), Services(world, seed)
    untouched = msgspec.json.encode(first.initial)
    for number, (tool, arguments) in enumerate(asked, 1):
        before = first.state()
        entry = first.call(tool, arguments).entry
        assert again.call(tool, arguments).entry == entry
        assert (entry.sequence, entry.tool) == (number, tool)
        if entry.failed:
            assert first.state() == before
    assert first.state() == again.state()
    assert len(first.audit) == len(asked)
    assert msgspec.json.encode(first.initial) == untouched
    msgspec.json.encode(first.state())


def test_a_schema_that_is_offered_is_what_is_checked() -> None:
    """What a validator of JSON Schema refuses is a 400, and nothing else is, but for times."""
    services = Services(EVERYTHING, 0)
    for offer in services.offers.values():
        schema = offer.operation.schema
        for arguments in ({}, {"unknown": 1}, dict.fromkeys(schema["properties"], 1.5)):
            refused = not jsonschema.Draft202012Validator(schema).is_valid(arguments)
            status = services.call(offer.tool, dict(arguments)).entry.status
            assert (status == 400) >= refused, (offer.tool, arguments)


@pytest.mark.parametrize("depth", [40, 400, 900])
def test_arguments_nested_so_deep_that_no_bundle_could_be_read_are_refused(depth: int) -> None:
    services = Services(EVERYTHING, 0)
    text = '{"a":' * depth + "1" + "}" * depth
    for arguments in (text, "[" * depth + "]" * depth, msgspec.json.decode(text)):
        entry = services.call("mail_list_messages", arguments).entry
        assert entry.status == 400 and isinstance(entry.arguments, str)
        assert "nested deeper" in entry.response["error"]
    fits = '{"a":' * 31 + "1" + "}" * 31
    assert services.call("mail_shred", fits).entry.arguments == msgspec.json.decode(fits)
    handed_in = ClawBundle(
        messages=(),
        audit=tuple(services.audit),
        state=services.state(),
        initial=services.initial,
        snapshot={},
        answer="",
        now=NOW.isoformat(),
        exit_status="finished",
    )
    assert decode_whole(BUNDLES, msgspec.json.encode(handed_in)) == handed_in


def test_times_of_fixtures_hang_on_the_tasks_now() -> None:
    later = Services(desk(now=NOW + timedelta(days=30)), 0)
    answer = later.call("mail_get_message", {"message_id": "msg_401"}).entry.response
    assert answer["date"] == "2026-05-09T08:15:00+00:00"
    assert answer["body"] == "Please write to Tom by 2026-05-13."


def test_the_clock_of_the_task_goes_on_by_a_second_with_each_call() -> None:
    services = Services(desk(), 0)
    times = [services.call("mail_list_messages", {}).entry.time for _ in range(2)]
    assert times == ["2026-04-10T09:00:01+00:00", "2026-04-10T09:00:02+00:00"]


@pytest.mark.parametrize(
    ("tool", "arguments", "status", "words"),
    [
        ("mail_send_message", {"to": ["tom"], "subject": "s", "body": "b"}, 400, "'tom' is no address"),
        ("mail_get_message", {"message_id": "msg_9"}, 404, "there is no message 'msg_9'"),
        ("mail_get_message", '{"message_id"', 400, "not JSON"),
        ("mail_get_message", {}, 400, "the argument message_id is missing"),
        ("mail_move", {}, 404, "there is no tool 'mail_move'"),
        ("transfers_send_transfer", _pay(301), 403, "the account allows 300.00 a day"),
        ("transfers_send_transfer", _pay(0), 400, "amount must be at least 0.01"),
        (
            "calendar_create_event",
            {"title": "t", "start": "2026-04-10T10:00", "end": "2026-04-10T09:00"},
            400,
            "end must be later than start",
        ),
    ],
)
def test_a_rule_that_is_broken_is_an_error_in_the_log(
    tool: str, arguments: Any, status: int, words: str
) -> None:
    services = Services(desk(), 0)
    entry = services.call(tool, arguments).entry
    assert entry.status == status
    assert words in entry.response["error"]
    assert services.state() == services.initial


def test_limits_count_what_was_paid_within_a_day() -> None:
    services = Services(desk(), 0)
    statuses = [services.call("transfers_send_transfer", _pay(200.0)).entry.status for _ in range(2)]
    assert statuses == [200, 403]
    (account,) = services.state()["transfers"]["accounts"]
    assert account["balance"] == 300.0


@given(st.lists(st.integers(1, 120), min_size=1, max_size=8), st.integers(100, 400))
def test_limits_are_those_of_whole_cents(payments: list[int], limit: int) -> None:
    """Sums of fractions are a little more, or less, than what was paid. What came in was not paid."""
    account = {"account_id": "a1", "name": "Giro", "owner": "me@example.com", "balance": 3.5}
    came = {"transfer_id": "t1", "account_id": "a1", "payee_id": "p1", "amount": 3.0, "date": "now-1h"}
    held = {
        "accounts": [{**account, "daily_limit": limit / 100}],
        "payees": [{"payee_id": "p1", "name": "Power", "iban": "DE1"}],
        "transfers": [{**came, "status": "received"}],
    }
    services = Services(desk(services={"transfers": held}), 0)
    paid = 0
    for cents in payments:
        status = services.call("transfers_send_transfer", _pay(cents / 100)).entry.status
        expected = 403 if paid + cents > limit else 409 if paid + cents > 350 else 200
        assert status == expected
        paid += cents if status == 200 else 0
    assert services.state()["transfers"]["accounts"][0]["balance"] == (350 - paid) / 100


def test_what_is_sent_was_written_and_stays() -> None:
    """Else a letter is sent by moving it, in another's name, or a wrong one is undone before anybody looks:
    a test script that counts what is in `sent` would be satisfied."""
    letter = {"to": ["eve@example.com"], "subject": "s", "body": "b"}
    services = Services(desk(), 0)
    sent = services.call("mail_send_message", letter).entry.response["message_id"]
    draft = services.call("mail_save_draft", {"subject": "s", "body": "b"}).entry.response["message_id"]
    before = services.state()
    tries = [
        ("mail_delete_message", {"message_id": sent}, 409),
        ("mail_update_message", {"message_id": sent, "folder": "trash"}, 409),
        ("mail_update_message", {"message_id": draft, "folder": "sent"}, 403),
        ("mail_update_message", {"message_id": "msg_401", "folder": "sent"}, 403),
        ("mail_update_message", {"message_id": "msg_401", "folder": "drafts"}, 403),
    ]
    for tool, arguments, status in tries:
        assert services.call(tool, arguments).entry.status == status
    assert services.state() == before
    for message, folder in (("msg_401", "archive"), (draft, "trash")):
        moved = services.call("mail_update_message", {"message_id": message, "folder": folder}).entry
        assert moved.response["folder"] == folder
    assert services.call("mail_delete_message", {"message_id": draft}).entry.status == 200


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"services": {"fax": {}}}, "there is no service 'fax'"),
        ({"services": {"mail": {"letters": []}}}, "mail holds no 'letters'"),
        ({"services": {"mail": {"messages": [{"subject": "s"}]}}}, r"mail.messages\[0\]: the argument from"),
        ({"services": {"todo": {"tasks": [{"title": "t", "due": "tomorrow"}]}}}, r"todo.tasks\[0\]"),
        ({"services": {"todo": {"tasks": [{"title": "t", "due": "now" + 5 * "+99999w"}]}}}, "in no calendar"),
        ({"services": {"todo": {"tasks": [{"title": "by {{now-99999w-99999w}}"}]}}}, "in no calendar"),
        ({"tools": ("mail_shred",)}, "'mail_shred'"),
        ({"now": datetime(2026, 4, 10)}, "time zone"),  # noqa: DTZ001
    ],
)
def test_a_world_that_names_what_there_is_not_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadWorld, match=words):
        Services(desk(**changes), 0)


def test_tools_of_a_task_are_those_it_names() -> None:
    services = Services(desk(tools=("mail_send_message", "mail_list_messages")), 0)
    assert list(services.offers) == ["mail_send_message", "mail_list_messages"]
    assert services.call("mail_delete_message", {"message_id": "msg_401"}).entry.status == 404


def test_errors_come_at_their_rate_and_each_kind_does() -> None:
    drawn = [Injection(7, 0.3).draw(number) for number in range(1, 4001)]
    kinds = [each.kind for each in drawn if each]
    assert 0.27 < len(kinds) / len(drawn) < 0.33
    for kind in ("rate_limited", "server_error", "slow", "malformed"):
        assert 0.2 < kinds.count(kind) / len(kinds) < 0.3
    assert all(2.0 <= each.wait <= 4.0 for each in drawn if each and each.kind == "slow")
    assert drawn != [Injection(8, 0.3).draw(number) for number in range(1, 4001)]


def test_an_injected_error_changes_nothing_and_the_log_names_it() -> None:
    services = Services(desk(error_rate=1.0), 3)
    entries = [services.call(*LETTER).entry for _ in range(40)]
    assert {entry.injected for entry in entries} == {"rate_limited", "server_error", "slow", "malformed"}
    sent = [each for each in services.state()["mail"]["messages"] if each["folder"] == "sent"]
    assert len(sent) == sum(entry.injected == "slow" for entry in entries)
    for entry in entries:
        if entry.injected == "malformed":
            with pytest.raises(msgspec.DecodeError):
                msgspec.json.decode(entry.response)


def test_a_seed_of_the_world_wins_over_that_of_the_rollout() -> None:
    def injected(world: ClawWorld, seed: int) -> list[Any]:
        services = Services(world, seed)
        return [services.call("mail_list_messages", {}).entry.injected for _ in range(30)]

    own = desk(error_rate=0.5)
    assert injected(own, 1) != injected(own, 2)
    fixed = desk(error_rate=0.5, error_seed=9)
    assert injected(fixed, 1) == injected(fixed, 2)
