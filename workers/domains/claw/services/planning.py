"""Services about time: calendar, to-do, scheduler."""

from datetime import timedelta
from typing import Any

from orchard.workers.domains.claw.declarations import (
    BAD_ARGUMENTS,
    Collection,
    Record,
    Service,
    ServiceError,
    ServiceOperation,
    ServiceState,
    creating,
    deleting,
    getting,
    in_future,
    listing,
    only_owner,
    ordered,
    text,
    texts,
    unless,
    updating,
    when,
    whole,
)
from orchard.workers.domains.claw.times import read_time

EVENTS = Collection(
    "events",
    "event",
    {
        "title": text(),
        "start": when(),
        "end": when(),
        "location": text(),
        "description": text(),
        "organizer": text("Address"),
        "attendees": texts("Addresses"),
        "status": text("State", "confirmed", "tentative", "cancelled"),
        "response": text("The owner's answer to an invitation", "none", "accepted", "declined", "tentative"),
    },
    required=("title", "start", "end"),
    defaults={"attendees": [], "status": "confirmed", "response": "none"},
)
_MINE = only_owner("organizer", "event")
_SPAN = ordered("start", "end")


def _between(state: ServiceState, given: Record) -> list[Record]:
    begin, end = read_time(given["start"]), read_time(given["end"])
    if begin >= end:
        raise ServiceError(BAD_ARGUMENTS, "end must be later than start")
    found = [
        event
        for event in state.all(EVENTS)
        if event["status"] != "cancelled"
        and read_time(event["start"]) < end
        and read_time(event["end"]) > begin
    ]
    return sorted(found, key=lambda event: read_time(event["start"]))


def _free(state: ServiceState, given: Record) -> Any:
    """Finds gaps of at least `minutes`; declined events do not block time."""
    at, end = read_time(given["start"]), read_time(given["end"])
    least = timedelta(minutes=given["minutes"])
    slots = []
    for event in _between(state, given):
        if event["response"] == "declined":
            continue
        if read_time(event["start"]) - at >= least:
            slots.append({"start": at.isoformat(), "end": read_time(event["start"]).isoformat()})
        at = max(at, read_time(event["end"]))
    if end - at >= least:
        slots.append({"start": at.isoformat(), "end": end.isoformat()})
    return {"slots": slots}


_RANGE = {"start": when("Begin of the range"), "end": when("End of the range")}

CALENDAR = Service(
    "calendar",
    "Calendar of the owner",
    (EVENTS,),
    (
        ServiceOperation(
            "list_events",
            "List events that touch a range of time, earliest first.",
            _RANGE,
            lambda state, given: {"events": _between(state, given)},
            ("start", "end"),
        ),
        getting(EVENTS, "Show one event."),
        ServiceOperation(
            "find_free",
            "Find gaps of at least `minutes` in a range of time.",
            {**_RANGE, "minutes": whole("Length of the gap", 1)},
            _free,
            ("start", "end", "minutes"),
        ),
        creating(
            EVENTS,
            "Make an event; attendees are invited.",
            takes=("title", "start", "end", "location", "description", "attendees"),
            required=("title", "start", "end"),
            stamps=lambda state, _: {"organizer": state.owner, "response": "accepted"},
            rules=(_SPAN,),
        ),
        updating(
            EVENTS,
            "Change an event that the owner organizes.",
            takes=("title", "start", "end", "location", "description", "attendees"),
            rules=(_MINE, unless("status", "cancelled"), _SPAN),
        ),
        updating(
            EVENTS,
            "Answer an invitation.",
            name="respond_event",
            takes=("response",),
            required=("response",),
            rules=(unless("status", "cancelled"),),
        ),
        updating(
            EVENTS,
            "Cancel an event that the owner organizes; attendees are told.",
            name="cancel_event",
            sets=lambda *_: {"status": "cancelled"},
            rules=(_MINE, unless("status", "cancelled")),
            irreversible=True,
        ),
    ),
)

TASKS = Collection(
    "tasks",
    "task",
    {
        "title": text(),
        "notes": text(),
        "due": when(),
        "priority": text("Priority", "low", "normal", "high"),
        "status": text("State", "open", "done"),
        "list": text("Name of the list"),
        "tags": texts(),
    },
    required=("title",),
    defaults={"status": "open", "priority": "normal", "list": "inbox", "tags": []},
)
_TASK_FIELDS = ("title", "notes", "due", "priority", "list", "tags")

TODO = Service(
    "todo",
    "To-do lists of the owner",
    (TASKS,),
    (
        listing(
            TASKS,
            "List tasks.",
            filters=("status", "list", "priority", "tags"),
            search=("title", "notes"),
        ),
        creating(TASKS, "Add a task.", takes=_TASK_FIELDS, required=("title",)),
        updating(TASKS, "Change a task, or mark it as done or open.", takes=(*_TASK_FIELDS, "status")),
        deleting(TASKS, "Delete a task for good."),
    ),
)

JOBS = Collection(
    "jobs",
    "job",
    {
        "name": text(),
        "action": text("What is to be done, in words"),
        "schedule": text("How often", "once", "hourly", "daily", "weekly", "monthly"),
        "next_run": when("First or next time"),
        "status": text("State", "active", "paused", "finished"),
        "created_by": text("Address"),
    },
    required=("name", "action", "schedule", "next_run"),
    defaults={"status": "active"},
)

SCHEDULER = Service(
    "scheduler",
    "Jobs that run at set times",
    (JOBS,),
    (
        listing(JOBS, "List jobs.", filters=("status", "schedule"), search=("name", "action")),
        getting(JOBS, "Show one job."),
        creating(
            JOBS,
            "Schedule a job.",
            takes=("name", "action", "schedule", "next_run"),
            required=("name", "action", "schedule", "next_run"),
            stamps=lambda state, _: {"created_by": state.owner},
            rules=(in_future("next_run"),),
        ),
        updating(
            JOBS,
            "Change, pause or continue a job.",
            takes=("name", "action", "schedule", "next_run", "status"),
            rules=(unless("status", "finished"), in_future("next_run")),
        ),
        deleting(JOBS, "Delete a job for good.", rules=(only_owner("created_by", "job"),)),
    ),
)
