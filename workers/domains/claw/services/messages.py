"""Services about people: mail, contacts, help desk."""

import re
from typing import Any

from orchard.workers.domains.claw.declarations import (
    BAD_ARGUMENTS,
    CONFLICT,
    FORBIDDEN,
    Collection,
    Record,
    Service,
    ServiceError,
    ServiceOperation,
    ServiceState,
    creating,
    deleting,
    flag,
    getting,
    listing,
    text,
    texts,
    updating,
    when,
)

_ADDRESS = re.compile(r"[^@\s,;<>]+@[^@\s,;<>]+\.[^@\s,;<>]+")

MESSAGES = Collection(
    "messages",
    "message",
    {
        "from": text("Address of the sender"),
        "to": texts("Addresses"),
        "cc": texts("Addresses"),
        "subject": text(),
        "body": text(),
        "date": when(),
        "is_read": flag(),
        "folder": text("Folder", "inbox", "sent", "drafts", "archive", "spam", "trash"),
        "labels": texts(),
        "in_reply_to": text("Id of the message that it answers"),
    },
    required=("from", "subject", "body", "date"),
    defaults={"folder": "inbox", "is_read": False, "labels": []},
)


def _addressed(_state: ServiceState, record: Record, given: Record) -> None:
    to = given.get("to", record.get("to"))
    if not to:
        raise ServiceError(BAD_ARGUMENTS, "to must name at least one address")
    for address in [*to, *given.get("cc", ())]:
        if not _ADDRESS.fullmatch(address):
            raise ServiceError(BAD_ARGUMENTS, f"{address[:80]!r} is no address")


def _written(folder: str) -> Any:
    def stamps(state: ServiceState, given: Record) -> Record:
        if "in_reply_to" in given:
            state.get(MESSAGES, given["in_reply_to"])
        return {"from": state.owner, "date": state.stamp, "folder": folder, "is_read": True}

    return stamps


def _send_draft(state: ServiceState, draft: Record, given: Record) -> Record:
    if draft["folder"] != "drafts":
        raise ServiceError(CONFLICT, f"message {draft['message_id']!r} is no draft")
    _addressed(state, draft, given)
    return {"folder": "sent", "date": state.stamp}


def _moved(_state: ServiceState, message: Record, given: Record) -> None:
    """Forbids moves into or out of `sent` and `drafts`. Otherwise a message could be sent to nobody or in
    another's name, or sending be undone."""
    if message["folder"] == "sent":
        raise ServiceError(CONFLICT, f"message {message['message_id']!r} is sent: it stays as it is")
    if (folder := given.get("folder")) in ("sent", "drafts") and folder != message["folder"]:
        raise ServiceError(FORBIDDEN, f"no message is moved to {folder}: write it")


_WRITING = ("to", "cc", "subject", "body", "in_reply_to", "labels")

MAIL = Service(
    "mail",
    "E-mail of the owner",
    (MESSAGES,),
    (
        listing(
            MESSAGES,
            "List messages, newest first, without their text.",
            filters=("folder", "from", "is_read", "labels"),
            search=("from", "subject", "body"),
            since="date",
            hide=("body",),
        ),
        getting(MESSAGES, "Read one message whole; it counts as read then.", marks={"is_read": True}),
        creating(
            MESSAGES,
            "Send a message.",
            name="send_message",
            takes=_WRITING,
            required=("to", "subject", "body"),
            stamps=_written("sent"),
            rules=(_addressed,),
            irreversible=True,
        ),
        creating(
            MESSAGES,
            "Keep a message as a draft, without sending it.",
            name="save_draft",
            takes=_WRITING,
            required=("subject", "body"),
            stamps=_written("drafts"),
        ),
        updating(MESSAGES, "Send a draft.", name="send_draft", sets=_send_draft, irreversible=True),
        updating(
            MESSAGES,
            "Move a message to another folder, label it, or mark it as read or not.",
            takes=("folder", "labels", "is_read"),
            rules=(_moved,),
        ),
        deleting(MESSAGES, "Delete a message for good; one that was sent stays.", rules=(_moved,)),
    ),
)

PEOPLE = Collection(
    "contacts",
    "contact",
    {
        "name": text(),
        "email": text("Address"),
        "phone": text(),
        "company": text(),
        "role": text(),
        "tags": texts(),
        "notes": text(),
    },
    required=("name",),
    defaults={"tags": []},
)

CONTACTS = Service(
    "contacts",
    "Address book of the owner",
    (PEOPLE,),
    (
        listing(
            PEOPLE,
            "List contacts, or search them.",
            filters=("company", "role", "tags"),
            search=("name", "email", "company", "role", "notes"),
        ),
        getting(PEOPLE, "Show one contact."),
        creating(
            PEOPLE,
            "Add a contact.",
            takes=tuple(PEOPLE.fields),
            required=("name",),
        ),
        updating(PEOPLE, "Change a contact.", takes=tuple(PEOPLE.fields)),
        deleting(PEOPLE, "Delete a contact for good."),
    ),
)

TICKETS = Collection(
    "tickets",
    "ticket",
    {
        "subject": text(),
        "description": text(),
        "customer": text("Address of the customer"),
        "status": text("State", "open", "pending", "resolved", "closed"),
        "priority": text("Priority", "low", "normal", "high", "urgent"),
        "assignee": text("Address of who works on it"),
        "tags": texts(),
        "created": when(),
    },
    required=("subject", "customer", "created"),
    defaults={"status": "open", "priority": "normal", "tags": []},
)
REPLIES = Collection(
    "replies",
    "reply",
    {
        "ticket_id": text("Id of the ticket"),
        "author": text("Address"),
        "body": text(),
        "visibility": text("Who sees it", "public", "internal"),
        "date": when(),
    },
    required=("ticket_id", "author", "body", "date"),
)


def _reply_stamps(state: ServiceState, given: Record) -> Record:
    ticket = state.get(TICKETS, given["ticket_id"])
    if ticket["status"] == "closed":
        raise ServiceError(CONFLICT, f"ticket {given['ticket_id']!r} is closed: open it first")
    return {"author": state.owner, "date": state.stamp}


def _thread(state: ServiceState, given: Record) -> Any:
    ticket = state.get(TICKETS, given["ticket_id"])
    return {
        **ticket,
        "replies": [each for each in state.all(REPLIES) if each["ticket_id"] == given["ticket_id"]],
    }


HELPDESK = Service(
    "helpdesk",
    "Help desk: tickets of customers and what was answered",
    (TICKETS, REPLIES),
    (
        listing(
            TICKETS,
            "List tickets, newest first.",
            filters=("status", "priority", "assignee", "customer", "tags"),
            search=("subject", "description", "customer"),
            since="created",
            hide=("description",),
        ),
        ServiceOperation(
            "get_ticket",
            "Show a ticket with its replies.",
            {"ticket_id": text("Id of the ticket")},
            _thread,
            ("ticket_id",),
        ),
        creating(
            TICKETS,
            "Open a ticket for a customer.",
            takes=("subject", "description", "customer", "priority", "assignee", "tags"),
            required=("subject", "description", "customer"),
            stamps=lambda state, _: {"created": state.stamp},
        ),
        updating(
            TICKETS,
            "Change state, priority, assignee or tags of a ticket.",
            takes=("status", "priority", "assignee", "tags"),
        ),
        creating(
            REPLIES,
            "Answer a ticket. A public reply goes to the customer.",
            name="reply_ticket",
            takes=("ticket_id", "body", "visibility"),
            required=("ticket_id", "body", "visibility"),
            stamps=_reply_stamps,
            irreversible=True,
        ),
    ),
)
