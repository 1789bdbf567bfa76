"""Names and places that sites are made of. Lists only grow at their end: a seed's site must not change."""

import random
from collections.abc import Sequence

FIRST_NAMES = (
    "Amara", "Bela", "Carlos", "Dana", "Emil", "Farah", "Goran", "Hana", "Ines", "Jonas", "Kaya", "Lena",
    "Milan", "Nadia", "Oskar", "Priya", "Quinn", "Rosa", "Samir", "Tara", "Umar", "Vera", "Wanda", "Yusuf",
)  # fmt: skip
LAST_NAMES = (
    "Abbott", "Berger", "Castillo", "Dahl", "Eriksen", "Fontaine", "Greco", "Hoffman", "Ivanov", "Jansen",
    "Kowalski",
    "Lindgren", "Moreau", "Novak", "Okafor", "Petrov", "Quist", "Rossi", "Sato", "Tanaka", "Ueda", "Varga",
    "Weber",
)  # fmt: skip
STREETS = (
    "Alder Street", "Birch Lane", "Canal Road", "Dock Street", "Elm Avenue", "Ferry Lane", "Garden Road",
    "Harbour Street", "Iron Lane", "Juniper Road", "Kiln Street", "Lake Avenue",
)  # fmt: skip
TOWNS = (
    "Ashford", "Brindle", "Corvale", "Dunmere", "Eastwick", "Fairholm", "Glenrock", "Highmoor", "Inverley",
    "Kestrel Bay",
    "Larkhill", "Millbrook", "Northgate", "Oakhurst", "Pinewood", "Ravensea", "Stonebridge", "Thornbury",
    "Westmarch",
)  # fmt: skip
HOUSES = (
    "Alder", "Beacon", "Cedar", "Dover", "Ember", "Fable", "Grove", "Harbor", "Indigo", "Juniper", "Keystone",
    "Lantern", "Meridian", "Nimbus", "Orchid", "Pioneer", "Quartz", "Rowan", "Summit", "Tidal",
)  # fmt: skip


def person(dice: random.Random) -> str:
    return f"{dice.choice(FIRST_NAMES)} {dice.choice(LAST_NAMES)}"


def people(dice: random.Random, count: int) -> list[str]:
    """Draws persons, no two with the same first or last name."""
    pairs = zip(dice.sample(FIRST_NAMES, count), dice.sample(LAST_NAMES, count), strict=True)
    return [f"{first} {last}" for first, last in pairs]


def house(dice: random.Random, kind: str) -> tuple[str, str]:
    name = dice.choice(HOUSES)
    return f"{name} {kind.capitalize()}", f"{name.lower()}-{kind.lower().replace(' ', '-')}.test"


def listed(parts: Sequence[str]) -> str:
    """Joins texts as in `a, b and c`."""
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)
