"""The site `shop`: search, filters, variants, cart, wish list and checkout."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchard.schemas.gui import Records
from orchard.workers.domains.gui.sites import vocabulary
from orchard.workers.domains.gui.sites.pages import (
    Link,
    Missing,
    Redirect,
    SitePage,
    SiteResponse,
    clean,
    missing_number,
    paged,
)

PAGE = 8
MOST = 9
"""Maximum quantity of one product in the cart."""
_NOUNS = {
    "Kitchen": ("Mug", "Kettle", "Skillet", "Teapot", "Cutting Board", "Bread Bin", "Carafe", "Whisk"),
    "Garden": ("Planter", "Trowel", "Watering Can", "Lantern", "Bench", "Hose Reel", "Rake", "Bird Feeder"),
    "Office": ("Desk Lamp", "Notebook", "Pen Case", "Footrest", "File Box", "Desk Mat", "Wall Clock",
    "Stapler"),
    "Travel": ("Backpack", "Duffel", "Wallet", "Umbrella", "Neck Pillow", "Flask", "Packing Cube",
    "Rain Jacket"),
}  # fmt: skip
_LINES = (
    "Alto", "Brisk", "Cove", "Drift", "Echo", "Fjord", "Glade", "Halo", "Isle", "Juno", "Kite", "Loom",
    "Mesa",
    "Nova", "Opal", "Pico", "Reef", "Sage", "Tern", "Vale",
)  # fmt: skip
COLOURS = {
    "red": "#c0392b", "blue": "#2c6fbb", "green": "#2e8b57", "black": "#222222", "white": "#f5f5f5",
    "yellow": "#e0b020", "grey": "#888888",
}  # fmt: skip
SIZES = ("Small", "Medium", "Large")
FEATURES = ("washable", "recycled", "foldable", "waterproof", "handmade")
DELIVERIES = {"standard": ("Standard, 4 to 6 days", 395), "express": ("Express, next day", 995)}
SORTS: dict[str, tuple[str, Callable[["Product"], Any]]] = {
    "name": ("Name", lambda each: each.name),
    "cheap": ("Price, lowest first", lambda each: (each.cents, each.name)),
    "dear": ("Price, highest first", lambda each: (-each.cents, each.name)),
    "rated": ("Best rated", lambda each: (-each.rating, each.name)),
}
RATINGS = ("3.0", "4.0", "4.5")
PRICES = ("20", "40", "60")


@dataclass(frozen=True, kw_only=True)
class Product:
    number: int
    name: str
    category: str
    maker: str
    cents: int
    rating: float
    reviews: int
    colours: tuple[str, ...]
    sizes: tuple[str, ...]
    """Empty if there is only one size."""
    features: tuple[str, ...]
    weight: int
    """Weight of one piece in grams."""

    @property
    def price(self) -> str:
        return money(self.cents)


def money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


class ShopSite:
    screen: tuple[int, int] | None = None

    def __init__(self, seed: int) -> None:
        dice = random.Random(f"shop-{seed}")
        self.title, self.host = vocabulary.house(dice, "Store")
        self.links: tuple[Link, ...] = (
            Link("home", "Home", "/"),
            *(Link(f"nav:{each}", each, f"/search?category={each}") for each in _NOUNS),
            Link("wishes", "Wish list", "/wishes"),
            Link("cart", "Cart", "/cart"),
        )
        self.products = _products(dice)
        self.cart: list[dict[str, Any]] = []
        self.orders: list[dict[str, Any]] = []
        self.wishes: list[str] = []

    def records(self) -> Records:
        return {
            "cart": [dict(line) for line in self.cart],
            "orders": list(self.orders),
            "wishes": list(self.wishes),
        }

    def product(self, number: int) -> Product:
        if not 1 <= number <= len(self.products):
            raise Missing(f"product {number}")
        return self.products[number - 1]

    def get(self, path: str, query: Mapping[str, str]) -> SiteResponse:
        match path.strip("/").split("/"):
            case [""]:
                return self._page("home", "Welcome", "home", products=self.products[:6])
            case ["search"]:
                return self._results(query)
            case ["product", number]:
                product = self.product(missing_number(number))
                return self._product(product, "")
            case ["cart"]:
                return self._page("cart", "Cart", "cart", lines=self._lines(), total=money(self._total()))
            case ["wishes"]:
                wished = [each for each in self.products if each.name in self.wishes]
                return self._page("wishes", "Wish list", "wishes", products=wished)
            case ["checkout"] if self.cart:
                return self._checkout({}, ())
            case ["checkout"]:
                return Redirect("/cart")
            case ["order", number] if 1 <= missing_number(number) <= len(self.orders):
                order = self.orders[int(number) - 1]
                return self._page("order", "Thank you", "order", order=order, number=number)
        raise Missing(path)

    def post(self, path: str, form: Mapping[str, str]) -> SiteResponse:
        match path.strip("/").split("/"):
            case ["product", number]:
                return self._add(self.product(missing_number(number)), form)
            case ["wish", number]:
                name = self.product(missing_number(number)).name
                self.wishes = (
                    [each for each in self.wishes if each != name]
                    if name in self.wishes
                    else sorted([*self.wishes, name])
                )
                return Redirect(f"/product/{number}")
            case ["cart", "remove", place] if missing_number(place) < len(self.cart):
                del self.cart[int(place)]
                return Redirect("/cart")
            case ["checkout"]:
                return self._order(form)
        raise Missing(path)

    def matching(self, query: Mapping[str, str]) -> list[Product]:
        """Returns the products that a search finds, in its order. Unknown choices are ignored."""
        wanted = clean(query.get("q", "")).lower().split()
        found = [
            each
            for each in self.products
            if all(word in f"{each.name} {each.category} {each.maker}".lower() for word in wanted)
            and query.get("category", "") in ("", each.category)
            and query.get("feature", "") in ("", *each.features)
            and (query.get("rating") not in RATINGS or each.rating >= float(query["rating"]))
            and (query.get("price") not in PRICES or each.cents <= int(query["price"]) * 100)
        ]
        _, order = SORTS.get(query.get("sort", ""), SORTS["name"])
        return sorted(found, key=order)

    def _results(self, query: Mapping[str, str]) -> SitePage:
        found = self.matching(query)
        shown, page, pages = paged(found, query.get("page", ""), PAGE)
        chosen = {
            key: clean(query.get(key, "")) for key in ("q", "category", "feature", "rating", "price", "sort")
        }
        return self._page(
            f"results:{page}/{pages}", "Search", "results", products=shown,
            count=len(found), page=page, pages=pages, query=chosen,
        )  # fmt: skip

    def _product(self, product: Product, problem: str) -> SitePage:
        others = [each for each in self.products if each.category == product.category and each != product]
        return self._page(
            f"product:{product.number}", product.name, "product", product=product, problem=problem,
            others=others[:3], wished=product.name in self.wishes,
        )  # fmt: skip

    def _add(self, product: Product, form: Mapping[str, str]) -> SiteResponse:
        colour, size, count = form.get("colour", ""), form.get("size", ""), form.get("count", "")
        if colour not in product.colours:
            return self._product(product, "Please choose a colour.")
        if product.sizes and size not in product.sizes:
            return self._product(product, "Please choose a size.")
        if not (count.isascii() and count.isdecimal() and 1 <= int(count[:3]) <= MOST):
            return self._product(product, f"Please enter a quantity from 1 to {MOST}.")
        self.put(product, colour, size if product.sizes else "", int(count))
        return Redirect("/cart")

    def put(self, product: Product, colour: str, size: str, count: int) -> None:
        self.cart.append({"product": product.name, "colour": colour, "size": size, "count": count})

    def _lines(self) -> list[tuple[dict[str, Any], str]]:
        return [(line, money(self._cents(line))) for line in self.cart]

    def _cents(self, line: Mapping[str, Any]) -> int:
        each = next(each for each in self.products if each.name == line["product"])
        return each.cents * int(line["count"])

    def _total(self) -> int:
        return sum(map(self._cents, self.cart))

    def _checkout(self, form: Mapping[str, str], problems: tuple[str, ...]) -> SitePage:
        return self._page(
            "checkout", "Checkout", "checkout", form=form, problems_=problems,
            total=money(self._total()), deliveries=DELIVERIES,
        )  # fmt: skip

    def _order(self, form: Mapping[str, str]) -> SiteResponse:
        fields = {key: clean(form.get(key, "")) for key in ("name", "street", "town")}
        problems = [f"Please fill in: {key}." for key, value in fields.items() if not value]
        if form.get("delivery") not in DELIVERIES:
            problems.append("Please choose a delivery.")
        if not self.cart:
            return Redirect("/cart")
        if problems:
            return self._checkout(form, tuple(problems))
        self.order(**fields, delivery=form["delivery"], gift=form.get("gift") == "yes")
        return Redirect(f"/order/{len(self.orders)}")

    def order(self, *, name: str, street: str, town: str, delivery: str, gift: bool) -> None:
        total = self._total() + DELIVERIES[delivery][1]
        self.orders.append(
            {
                "lines": self.cart,
                "name": name,
                "street": street,
                "town": town,
                "delivery": delivery,
                "gift": gift,
                "total": money(total),
            }
        )
        self.cart = []

    def _page(self, name: str, title: str, template: str, **data: Any) -> SitePage:
        choices = {
            "categories": tuple(_NOUNS), "features": FEATURES, "ratings": RATINGS, "prices": PRICES,
            "sorts": {key: label for key, (label, _) in SORTS.items()}, "colours": COLOURS,
        }  # fmt: skip
        return SitePage(name=name, title=title, template=f"shop/{template}.html", data={**choices, **data})


def _products(dice: random.Random) -> list[Product]:
    pairs = [(category, noun) for category, nouns in _NOUNS.items() for noun in dice.sample(nouns, 4)]
    named = [(category, noun, line) for category, noun in pairs for line in dice.sample(_LINES, 3)]
    dice.shuffle(named)
    makers = dice.sample(vocabulary.HOUSES, 6)
    cents = dice.sample(range(7, 90), len(named))
    return [
        Product(
            number=number, name=f"{line} {noun}", category=category, maker=dice.choice(makers),
            cents=cents[number - 1] * 100 + dice.choice((49, 90, 95, 99)), rating=dice.randrange(25, 50) / 10,
            reviews=dice.randrange(3, 900), colours=tuple(dice.sample(sorted(COLOURS), 3)),
            sizes=SIZES if category == "Travel" or dice.random() < 0.3 else (),
            features=tuple(sorted(dice.sample(FEATURES, dice.randrange(1, 4)))), weight=dice.randrange(90,
            4000, 10),
        )
        for number, (category, noun, line) in enumerate(named, 1)
    ]  # fmt: skip
