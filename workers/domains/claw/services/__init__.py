"""The services that worlds are made of, each a declaration. A new one is another entry of SERVICES."""

from orchard.workers.domains.claw.declaring import Service
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
