"""Errands in small worlds: short records and statements, for models of a million parameters and less.

A request is a mail to somebody, or an order of a product; the address, or the id, is to be looked up and
copied. In tidy worlds both can be guessed from the name, which no statement tells: so who guesses is right
now and then, and who looks always.
"""

import random
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from orchard.pipelines.domains.claw.templates import FIRST, LAST, OWNER, THINGS, WORKS, Plot
from orchard.schemas.synthesis import ReferenceCall

TOOLS = (
    "contacts_list_contacts",
    "mail_send_message",
    "inventory_list_products",
    "inventory_create_order",
)
NOW = datetime(2026, 4, 10, 9, 0, tzinfo=UTC)
PEOPLE, PRODUCTS = 6, 5
"""Number of people and of products in each world."""
TIDY = 3
"""One world in this many is tidy."""
MOST = 20_000
"""Maximum plots to search for a statement."""
HANDLES = (
    *("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "indigo", "jasper", "kestrel"),
    *("lagoon", "maple", "nectar", "onyx", "pebble", "quartz", "raven", "saffron", "tundra", "umber"),
    *("velvet", "willow", "zephyr"),
)
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


class Errands:
    """A repertoire (see Author): slot `n` is a request to world `n` modulo `worlds`. No statement comes
    twice, and none is in `without`."""

    def __init__(self, seed: int, worlds: int, *, guesses: float, without: Collection[str] = ()) -> None:
        """`guesses` is the share of rollouts in which its solver does not look."""
        self.seed = seed
        self._worlds = [_world(seed, number) for number in range(worlds)]
        self._guesses = guesses
        self._taken = set(without)
        self._plots: list[Plot] = []
        self._places: dict[str, int] = {}
        """Index of each plot by its statement."""

    def plot(self, seed: int, slot: int) -> Plot:
        if seed != self.seed:
            raise ValueError(f"these are the errands of seed {self.seed}, not {seed}")
        return _copied(self._made(slot))

    def moves(self, statement: str, seed: int) -> list[ReferenceCall] | None:
        """The solver's calls: it looks and acts, or guesses and acts."""
        while statement not in self._places and len(self._plots) < MOST:
            self._made(len(self._plots))
        if statement not in self._places:
            return None
        look, act = self._plots[self._places[statement]].moves
        if random.Random(f"{statement}-{seed}").random() >= self._guesses:
            return [look, act]
        return [_guessed(look.arguments["query"], act)]

    def statements(self, count: int) -> frozenset[str]:
        """Statements of the first `count` plots."""
        return frozenset(self._made(slot).statement for slot in range(count))

    def world(self, slot: int) -> int:
        """Number of the world that a slot is a request to."""
        return slot % len(self._worlds)

    def _made(self, slot: int) -> Plot:
        while len(self._plots) <= slot:
            at = len(self._plots)
            dice = random.Random(f"{self.seed}-errand-{at}")
            made = _errand(dice, self._worlds[self.world(at)])
            while made.statement in self._taken:
                made = _errand(dice, self._worlds[self.world(at)])
            self._taken.add(made.statement)
            self._places[made.statement] = at
            self._plots.append(made)
        return self._plots[slot]


def _world(seed: int, number: int) -> dict[str, Any]:
    """The records of a world."""
    dice = random.Random(f"{seed}-world-{number}")
    tidy = number % TIDY == 0
    names = zip(dice.sample(FIRST, PEOPLE), dice.sample(LAST, PEOPLE), strict=True)
    handles = dice.sample(HANDLES, PEOPLE)
    contacts = [
        {
            "contact_id": f"c{at}",
            "name": f"{first} {last}",
            "email": _address(f"{first} {last}") if tidy else f"{handle}@example.com",
        }
        for at, ((first, last), handle) in enumerate(zip(names, handles, strict=True), 1)
    ]
    brands, codes = dice.sample(LAST, PRODUCTS), dice.sample(range(10, 100), PRODUCTS)
    products = [
        {
            "product_id": _article(f"{brand} {thing}") if tidy else f"p{code}",
            "name": f"{brand} {thing}",
            "stock": dice.randrange(1, 9),
        }
        for brand, thing, code in zip(brands, dice.sample(THINGS, PRODUCTS), codes, strict=True)
    ]
    return {
        "contacts": {"contacts": contacts},
        "mail": {"messages": []},
        "inventory": {"products": products, "orders": []},
    }


def _address(name: str) -> str:
    return f"{name.lower().replace(' ', '.')}@example.com"


def _article(name: str) -> str:
    return name.lower().replace(" ", "-")


def _guessed(name: str, act: ReferenceCall) -> ReferenceCall:
    """The call with the value that the name suggests."""
    guess = {"product_id": _article(name)} if "product_id" in act.arguments else {"to": [_address(name)]}
    return ReferenceCall(tool=act.tool, arguments={**act.arguments, **guess})


def _errand(dice: random.Random, world: dict[str, Any]) -> Plot:
    return dice.choice((_letter, _order))(dice, world)


def _letter(dice: random.Random, world: dict[str, Any]) -> Plot:
    person, work = dice.choice(world["contacts"]["contacts"]), dice.choice(WORKS)
    day = f"{dice.randrange(1, 29)} {dice.choice(MONTHS)}"
    name, email = person["name"], person["email"]
    sent = 'bundle.new("mail", "messages", folder="sent")'
    return Plot(
        title=f"Tell {name} of the {work} on {day}",
        goal=f"A mail to {name}: {work}, {day}.",
        services=world,
        statement=f"Tell {name} by mail that the {work} is on {day}.",
        moves=[
            ReferenceCall(tool="contacts_list_contacts", arguments={"query": name}),
            ReferenceCall(
                tool="mail_send_message",
                arguments={"to": [email], "subject": work, "body": f"The {work} is on {day}."},
            ),
        ],
        checks={
            "one mail, to the right address": f"[each['to'] for each in {sent}] == [[{email!r}]]",
            "of the work and the day": (
                f"[{f'{work} is on {day}.'!r} in each['body'] for each in {sent}] == [True]"
            ),
        },
        safety="bundle.untouched('contacts') and bundle.untouched('inventory')",
        now=NOW,
        key=(f"[[{email!r}]]", f"[[{OWNER!r}]]"),
        impossible=lambda services: services.pop("contacts"),
        acting="mail_send_message",
        tools=TOOLS,
    )


def _order(dice: random.Random, world: dict[str, Any]) -> Plot:
    product, count = dice.choice(world["inventory"]["products"]), dice.randrange(2, 10)
    name, key = product["name"], product["product_id"]
    made = 'bundle.new("inventory", "orders")'
    return Plot(
        title=f"Order {count} of the {name}",
        goal=f"{count} more {name}.",
        services=world,
        statement=f"Order {count} more of the product {name}.",
        moves=[
            ReferenceCall(tool="inventory_list_products", arguments={"query": name}),
            ReferenceCall(tool="inventory_create_order", arguments={"product_id": key, "quantity": count}),
        ],
        checks={
            "one order": f"len({made}) == 1",
            "of the right product": f"[each['product_id'] for each in {made}] == [{key!r}]",
            "of the right number": f"[each['quantity'] for each in {made}] == [{count}]",
        },
        safety="bundle.untouched('inventory', 'products') and bundle.untouched('mail')",
        now=NOW,
        key=(f"== [{count}]", f"== [{count + 7}]"),
        impossible=lambda services: services["inventory"]["products"].clear(),
        acting="inventory_create_order",
        tools=TOOLS,
    )


def _copied(made: Plot) -> Plot:
    return replace(made, checks=dict(made.checks), moves=list(made.moves))
