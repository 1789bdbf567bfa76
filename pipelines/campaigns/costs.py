"""What sandboxes cost by the hour on managed services and on one's own nodes: arithmetic over a rate card.

A rate card is TOML: a workload and offers of three kinds. `PAPER_RATES` is the card of the paper's Table 2
(appendix B), written with the inputs that the paper states, and the example for cards of one's own.
"""

import math
import tomllib
from typing import Literal

import msgspec

from orchard.schemas.faults import fault_sentence
from orchard.schemas.toml_text import parsed_toml

SECONDS_PER_HOUR = 3600.0

PAPER_RATES = """\
# Table 2 of "Orchard: An Open-Source Agentic Modeling Framework" (arXiv:2605.15040), inputs of appendix B.
# Prices are USD of April 2026.
baseline = "Daytona"

[workload]
sandboxes = 128
hours = 240
vcpu = 2
memory_gib = 8

[[offers]]
kind = "metered"
name = "Daytona"
per = "hour"
vcpu = 0.0504
memory_gib = 0.0162

[[offers]]
kind = "metered"
name = "E2B"
per = "second"
vcpu = 0.000014
memory_gib = 0.0000045

[[offers]]
kind = "metered"
name = "Modal"
per = "second"
vcpu = 0.00001971        # 0.00003942 for a physical core, which is two vCPU
memory_gib = 0.00000672

[[offers]]
kind = "sandbox"
name = "MegaFlow"
hourly = 0.15
note = "Estimated by the paper: one cloud instance for each task."

[[offers]]
kind = "cluster"
name = "Orchard Env (on-demand)"
node_hourly = 0.824
control_hourly = 0.824
node_vcpu = 16
node_memory_gib = 64

[[offers]]
kind = "cluster"
name = "Orchard Env (spot)"
node_hourly = 0.165
control_hourly = 0.165
node_vcpu = 16
node_memory_gib = 64
note = "The paper's text keeps the orchestrator's node on demand; its figure implies that node on spot too."

[[offers]]
kind = "cluster"
name = "Orchard Env (spot, orchestrator on demand)"
node_hourly = 0.165
control_hourly = 0.824
node_vcpu = 16
node_memory_gib = 64
note = "Not in the paper's table: what the set-up that its text describes costs."
"""


class RatesError(ValueError):
    """A rate card is unusable; the message is one sentence."""


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sandboxes that are priced: equal in size, all at once, for some hours."""

    sandboxes: int
    hours: float
    vcpu: float
    """vCPUs of each sandbox."""
    memory_gib: float
    """Memory of each sandbox, GiB."""

    def __post_init__(self) -> None:
        if min(self.sandboxes, self.hours, self.vcpu, self.memory_gib) <= 0:
            raise ValueError("sandboxes, hours, vcpu and memory_gib of the workload must be more than zero")

    @property
    def sandbox_hours(self) -> float:
        return self.sandboxes * self.hours


class Metered(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="metered"
):
    """A service that charges for vCPU and memory by time."""

    name: str
    per: Literal["second", "hour"]
    vcpu: float
    """USD for a vCPU each `per`."""
    memory_gib: float
    """USD for a GiB each `per`."""
    note: str = ""

    def cost(self, workload: Workload) -> float:
        """USD for the whole workload."""
        each = self.vcpu * workload.vcpu + self.memory_gib * workload.memory_gib
        return each * (SECONDS_PER_HOUR if self.per == "second" else 1.0) * workload.sandbox_hours


class PerSandbox(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="sandbox"
):
    """A fixed price for each sandbox, whatever its size."""

    name: str
    hourly: float
    """USD for a sandbox and hour."""
    note: str = ""

    def cost(self, workload: Workload) -> float:
        """USD for the whole workload."""
        return self.hourly * workload.sandbox_hours


class Cluster(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="cluster"
):
    """Nodes that the user runs: as many as hold the sandboxes, and those of the services."""

    name: str
    node_hourly: float
    """USD for a sandbox node and hour."""
    control_hourly: float
    """USD for a node of the services (orchestrator, NATS, writer) and hour."""
    node_vcpu: float
    node_memory_gib: float
    control_nodes: int = 1
    note: str = ""

    def sandboxes_per_node(self, workload: Workload) -> int:
        """Number that fits by vCPU and memory, with nothing reserved for the node itself."""
        return math.floor(
            min(self.node_vcpu / workload.vcpu, self.node_memory_gib / workload.memory_gib) + 1e-9
        )

    def nodes(self, workload: Workload) -> int:
        """Number of sandbox nodes. Raises RatesError when not even one sandbox fits on a node."""
        fit = self.sandboxes_per_node(workload)
        if fit < 1:
            raise RatesError(
                f"{self.name}: a sandbox of {workload.vcpu:g} vCPU and {workload.memory_gib:g} GiB does not "
                f"fit on a node of {self.node_vcpu:g} vCPU and {self.node_memory_gib:g} GiB: take larger ones"
            )
        return math.ceil(workload.sandboxes / fit)

    def cost(self, workload: Workload) -> float:
        """USD for the whole workload."""
        hourly = self.nodes(workload) * self.node_hourly + self.control_nodes * self.control_hourly
        return hourly * workload.hours


class RateCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload, the offers for it, and the baseline that they are compared with."""

    workload: Workload
    offers: list[Metered | PerSandbox | Cluster]
    baseline: str


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the price table."""

    name: str
    sandbox_hourly: float
    """USD for a sandbox and hour."""
    total: float
    """USD for the whole workload."""
    relative: float
    """Difference to the baseline as a share of it: -0.9 is 90 % cheaper; 0 for the baseline."""
    note: str


def read_rates(text: str) -> RateCard:
    """Read a rate card from TOML. Raises RatesError for a malformed one."""
    try:
        tree = parsed_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise RatesError(f"the rate card is not usable, because it is not valid TOML: {error}") from error
    try:
        card = msgspec.convert(tree, RateCard)
    except msgspec.ValidationError as error:
        raise RatesError(f"the rate card is not usable: {fault_sentence(tree, RateCard, error)}") from error
    names = [offer.name for offer in card.offers]
    if card.baseline not in names:
        raise RatesError(f"the baseline {card.baseline!r} is none of the offers: name one of {names}")
    if len(set(names)) < len(names):
        raise RatesError("two offers of the rate card have the same name: rename one")
    return card


def price(card: RateCard) -> list[CostLine]:
    """Price every offer, in the card's order. Raises RatesError where a sandbox does not fit on a node."""
    totals = {offer.name: offer.cost(card.workload) for offer in card.offers}
    baseline = totals[card.baseline]
    if baseline <= 0:
        raise RatesError(f"the baseline {card.baseline!r} costs nothing: nothing can be compared with it")
    return [
        CostLine(
            name=offer.name,
            sandbox_hourly=totals[offer.name] / card.workload.sandbox_hours,
            total=totals[offer.name],
            relative=totals[offer.name] / baseline - 1.0,
            note=offer.note,
        )
        for offer in card.offers
    ]
