"""Tasks on the site `shop`."""

import random

from orchard.schemas.gui import ExpectedAnswer
from orchard.workers.domains.gui.sites import vocabulary
from orchard.workers.domains.gui.sites.shop import DELIVERIES, FEATURES, MOST, RATINGS, Product, ShopSite
from orchard.workers.domains.gui.sites.solving import (
    Goal,
    Maker,
    NoGoal,
    Scene,
    View,
    click,
    done,
    fill,
    pick,
    scene,
)


def _search(product: Product) -> tuple[Scene, ...]:
    """Leads from any page to a product."""
    return (
        scene("home", fill("search", product.name, enter=True)),
        scene("results:*", click(f"product:{product.number}")),
    )


def _put(product: Product, colour: str, size: str, count: int) -> Scene:
    sized = (pick(f"size:{size}"),) if size else ()
    return scene(
        f"product:{product.number}", pick(f"colour:{colour}"), *sized, fill("count", str(count)), click("add")
    )


def _chosen(shop: ShopSite, dice: random.Random) -> tuple[Product, str, str, int, str]:
    """Draws a product with colour, size and count, and the words that a statement has for it."""
    product = dice.choice(shop.products)
    colour = dice.choice(product.colours)
    size = dice.choice(product.sizes) if product.sizes else ""
    count = dice.randrange(1, 5)
    sized = f", size {size}" if size else ""
    return product, colour, size, count, f"{count} x {product.name} in {colour}{sized}"


def _tidied(line: dict[str, object], leave: str) -> Scene:
    """Removes unwanted lines from the cart; the last step follows if `line` is in it once."""

    def wrong(index: int, view: View) -> bool:
        cart = view.records.get("cart", [])
        return index < len(cart) and (cart[index] != line or line in cart[:index])

    removals = [click(f"remove:{at}", unless=lambda view, at=at: not wrong(at, view)) for at in range(MOST)]  # type: ignore[misc]
    missing = click("home", unless=lambda view: line in view.records.get("cart", []))
    return scene("cart", *removals, missing, click(leave) if leave else done("It is in the cart."))


def buy(shop: ShopSite, dice: random.Random) -> Goal:
    product, colour, size, count, said = _chosen(shop, dice)
    name, town = vocabulary.person(dice), dice.choice(vocabulary.TOWNS)
    street = f"{dice.choice(vocabulary.STREETS)} {dice.randrange(1, 99)}"
    delivery, gift = dice.choice(sorted(DELIVERIES)), dice.random() < 0.4
    shop.put(product, colour, size, count)
    line = dict(shop.cart[0])
    shop.order(name=name, street=street, town=town, delivery=delivery, gift=gift)
    wrapped = " Mark it as a gift." if gift else ""
    return Goal(
        statement=(
            f"Order {said} for {name}, {street}, {town}, with {delivery} delivery.{wrapped} "
            "Order nothing else."
        ),
        records=shop.records(),
        scenes=(
            scene("order", done("The order is placed.")),
            _put(product, colour, size, count),
            _tidied(line, "checkout"),
            scene(
                "checkout", fill("name", name), fill("street", street), fill("town", town),
                pick(f"delivery:{delivery}"), *((pick("gift:yes"),) if gift else ()), click("order"),
            ),
            *_search(product),
        ),
    )  # fmt: skip


def collect(shop: ShopSite, dice: random.Random) -> Goal:
    product, colour, size, count, said = _chosen(shop, dice)
    shop.put(product, colour, size, count)
    return Goal(
        statement=f"Put {said} into the cart. Do not order yet.",
        records=shop.records(),
        scenes=(_tidied(shop.cart[0], ""), _put(product, colour, size, count), *_search(product)),
    )


def wish(shop: ShopSite, dice: random.Random) -> Goal:
    product = dice.choice(shop.products)
    shop.wishes.append(product.name)

    def wished(view: View) -> bool:
        return view.records.get("wishes") == [product.name]

    return Goal(
        statement=f"Put the {product.name} on the wish list.",
        records=shop.records(),
        scenes=(
            scene(f"product:{product.number}", click("wish", unless=wished), done("It is on the wish list.")),
            *_search(product),
        ),
    )


def cheapest(shop: ShopSite, dice: random.Random) -> Goal:
    for _ in range(200):
        category, feature = (
            dice.choice(sorted({each.category for each in shop.products})),
            dice.choice(FEATURES),
        )
        rating = dice.choice(RATINGS[:2])
        asked = {"category": category, "feature": feature, "rating": rating, "sort": "cheap"}
        found = shop.matching(asked)
        if len(found) >= 2 and found[0].cents < found[1].cents:
            break
    else:
        raise NoGoal
    right = found[0]
    others = tuple(sorted(each.name for each in shop.products if each != right))
    return Goal(
        statement=(
            f"Which is the cheapest {feature} product in the category {category} with a rating of at least "
            f"{rating}? Answer with its name alone."
        ),
        records=shop.records(),
        answer=ExpectedAnswer(value=right.name, others=others),
        scenes=(
            scene("home", click(f"nav:{category}")),
            scene(
                "results:*", pick(f"category:{category}"), pick(f"feature:{feature}"),
                pick(f"rating:{rating}"),
                pick("sort:cheap"),
                click("apply", unless=lambda view: _shown_first(view) == right.number and _all(view, asked)),
                done(right.name),
            ),
        ),
    )  # fmt: skip


def _shown_first(view: View) -> int:
    keys = [each.key for each in view.elements if each.key.startswith("product:")]
    return int(keys[0].partition(":")[2]) if keys else 0


def _all(view: View, asked: dict[str, str]) -> bool:
    return all(
        (found := view.find(f"{key}:{value}")) is not None and found.on for key, value in asked.items()
    )


def weight(shop: ShopSite, dice: random.Random) -> Goal:
    product, count = dice.choice(shop.products), dice.randrange(2, 7)
    return Goal(
        statement=(
            f"How many grams do {count} pieces of the {product.name} weigh? Answer with the number alone."
        ),
        records=shop.records(),
        answer=ExpectedAnswer(value=str(product.weight * count), others=(str(product.weight),)),
        scenes=(
            scene(f"product:{product.number}", done(str(product.weight * count))),
            *_search(product),
        ),
    )


MAKERS: dict[str, Maker] = {
    "buy": buy,
    "collect": collect,
    "wish": wish,
    "cheapest": cheapest,
    "weight": weight,
}
