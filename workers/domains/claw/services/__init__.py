"""The services that worlds are made of. To add one, declare it and list it in SERVICES."""

from orchard.workers.domains.claw.declarations import Service
from orchard.workers.domains.claw.services.business import INVENTORY, TRANSFERS
from orchard.workers.domains.claw.services.messages import CONTACTS, HELPDESK, MAIL
from orchard.workers.domains.claw.services.planning import CALENDAR, SCHEDULER, TODO
from orchard.workers.domains.claw.services.reading import DOCUMENTS, FEEDS, KNOWLEDGE, NOTES, WEB

SERVICES: dict[str, Service] = {
    service.name: service
    for service in (
        MAIL,
        CALENDAR,
        CONTACTS,
        TODO,
        NOTES,
        KNOWLEDGE,
        INVENTORY,
        SCHEDULER,
        HELPDESK,
        FEEDS,
        DOCUMENTS,
        WEB,
        TRANSFERS,
    )
}
