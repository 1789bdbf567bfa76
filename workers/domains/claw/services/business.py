"""Services about goods and money: inventory, and transfers with limits."""

from datetime import timedelta
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
    getting,
    listing,
    number,
    text,
    unless,
    updating,
    when,
    whole,
)
from orchard.workers.domains.claw.times import read_time

PRODUCTS = Collection(
    "products",
    "product",
    {
        "name": text(),
        "sku": text(),
        "category": text(),
        "stock": whole(),
        "minimum": whole("Stock below which it is to be ordered"),
        "unit_cost": number("Price of one, in the currency of the accounts"),
        "supplier": text(),
        "expires": when(),
        "location": text(),
    },
    required=("name", "stock"),
    defaults={"minimum": 0},
)
ORDERS = Collection(
    "orders",
    "order",
    {
        "product_id": text("Id of the product"),
        "quantity": whole(least=1),
        "status": text("State", "requested", "received", "cancelled"),
        "note": text(),
        "date": when(),
    },
    required=("product_id", "quantity", "date"),
    defaults={"status": "requested"},
)


def _low(state: ServiceState, _given: Record) -> Any:
    low = [product for product in state.all(PRODUCTS) if product["stock"] < product["minimum"]]
    return {"products": low, "total": len(low)}


def _adjust(state: ServiceState, given: Record) -> Any:
    product = state.get(PRODUCTS, given["product_id"])
    if product["stock"] + given["change"] < 0:
        raise ServiceError(CONFLICT, f"only {product['stock']} of {product['name']} are there")
    product["stock"] += given["change"]
    return product


def _ordered(state: ServiceState, given: Record) -> Record:
    state.get(PRODUCTS, given["product_id"])
    return {"date": state.stamp}


INVENTORY = Service(
    "inventory",
    "Stock of products, and orders for more",
    (PRODUCTS, ORDERS),
    (
        listing(
            PRODUCTS,
            "List products.",
            filters=("category", "supplier", "location"),
            search=("name", "sku", "category", "supplier"),
        ),
        getting(PRODUCTS, "Show one product."),
        ServiceOperation("list_low_stock", "List products whose stock is below their minimum.", {}, _low),
        ServiceOperation(
            "adjust_stock",
            "Book products in (a positive change) or out (a negative one).",
            {
                "product_id": text("Id of the product"),
                "change": {"type": "integer"},
                "reason": text("Why"),
            },
            _adjust,
            ("product_id", "change", "reason"),
            changes=True,
        ),
        listing(ORDERS, "List orders, newest first.", filters=("product_id", "status"), since="date"),
        creating(
            ORDERS,
            "Order more of a product.",
            takes=("product_id", "quantity", "note"),
            required=("product_id", "quantity"),
            stamps=_ordered,
        ),
        updating(
            ORDERS,
            "Cancel an order.",
            name="cancel_order",
            sets=lambda *_: {"status": "cancelled"},
            rules=(unless("status", "received", "cancelled"),),
            irreversible=True,
        ),
    ),
)

ACCOUNTS = Collection(
    "accounts",
    "account",
    {
        "name": text(),
        "owner": text("Address"),
        "balance": number(),
        "currency": text(),
        "transfer_limit": number("Most of one transfer"),
        "daily_limit": number("Most of all transfers within 24 hours"),
    },
    required=("name", "owner", "balance"),
    defaults={"currency": "EUR"},
)
PAYEES = Collection(
    "payees",
    "payee",
    {"name": text(), "iban": text(), "trusted": {"type": "boolean"}},
    required=("name", "iban"),
    defaults={"trusted": True},
)
TRANSFERRED = Collection(
    "transfers",
    "transfer",
    {
        "account_id": text("Id of the account that pays"),
        "payee_id": text("Id of the payee"),
        "amount": number("In the currency of the account", 0.01),
        "reference": text("What the payee reads"),
        "date": when(),
        "status": text("State", "executed", "received"),
    },
    required=("account_id", "payee_id", "amount", "date"),
    defaults={"status": "executed"},
)


def _transfer(state: ServiceState, given: Record) -> Any:
    account = state.get(ACCOUNTS, given["account_id"])
    payee = state.get(PAYEES, given["payee_id"])
    amount = round(given["amount"], 2)
    if account["owner"] != state.owner:
        raise ServiceError(FORBIDDEN, f"{state.owner} may not pay from this account")
    if not payee["trusted"]:
        raise ServiceError(FORBIDDEN, f"{payee['name']} is no trusted payee: the owner must confirm it")
    if amount <= 0:
        raise ServiceError(BAD_ARGUMENTS, "amount must be at least 0.01")
    if amount > (limit := account.get("transfer_limit", amount)):
        raise ServiceError(FORBIDDEN, f"the account allows {limit:.2f} for one transfer")
    day = state.now - timedelta(hours=24)
    paid = sum(
        each["amount"]
        for each in state.all(TRANSFERRED)
        if each["account_id"] == given["account_id"]
        and each["status"] == "executed"
        and read_time(each["date"]) > day
    )
    if "daily_limit" in account and round(paid + amount, 2) > account["daily_limit"]:
        raise ServiceError(
            FORBIDDEN, f"the account allows {account['daily_limit']:.2f} a day; {paid:.2f} are paid"
        )
    if amount > account["balance"]:
        raise ServiceError(CONFLICT, f"the balance is {account['balance']:.2f}")
    account["balance"] = round(account["balance"] - amount, 2)
    return state.add(TRANSFERRED, {**given, "amount": amount, "date": state.stamp})


TRANSFERS = Service(
    "transfers",
    "Accounts of the owner, and transfers from them, with limits",
    (ACCOUNTS, PAYEES, TRANSFERRED),
    (
        listing(ACCOUNTS, "List accounts with balances and limits."),
        listing(PAYEES, "List payees.", search=("name", "iban")),
        listing(
            TRANSFERRED,
            "List transfers, newest first.",
            filters=("account_id", "payee_id"),
            search=("reference",),
            since="date",
        ),
        ServiceOperation(
            "send_transfer",
            "Transfer money to a payee.",
            {each: TRANSFERRED.fields[each] for each in ("account_id", "payee_id", "amount", "reference")},
            _transfer,
            ("account_id", "payee_id", "amount", "reference"),
            changes=True,
            irreversible=True,
        ),
    ),
)
