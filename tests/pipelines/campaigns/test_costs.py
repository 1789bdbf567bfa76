"""Costs: the paper's Table 2 from its own inputs, and rate cards of one's own."""

from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from orchard.cli import sandbox
from orchard.configuration.config import ConfigError
from orchard.pipelines.campaigns.costs import PAPER_RATES, CostLine, RatesError, price, read_rates

PRINTED = {
    "Daytona": ("0.230", "7,078", "+0%"),
    "E2B": ("0.230", "7,078", "+0%"),
    "Modal": ("0.335", "10,305", "+46%"),
    "MegaFlow": ("0.150", "4,608", "-35%"),
    "Orchard Env (on-demand)": ("0.109", "3,362", "-53%"),
    "Orchard Env (spot)": ("0.022", "673", "-90%"),
}
"""Table 2 as the paper prints it."""


@pytest.fixture
def paper() -> dict[str, CostLine]:
    return {line.name: line for line in price(read_rates(PAPER_RATES))}


@pytest.mark.parametrize("system", PRINTED)
def test_the_papers_table_follows_from_its_inputs(paper: dict[str, CostLine], system: str) -> None:
    line = paper[system]

    assert (f"{line.sandbox_hourly:.3f}", f"{line.total:,.0f}", f"{line.relative:+.0%}") == PRINTED[system]


def test_the_papers_spot_figure_has_the_orchestrators_node_on_spot_too(paper: dict[str, CostLine]) -> None:
    as_described = paper["Orchard Env (spot, orchestrator on demand)"]

    assert as_described.total == pytest.approx((16 * 0.165 + 0.824) * 240)
    assert f"{as_described.total:,.0f}" == "831"
    assert f"{as_described.relative:+.0%}" == "-88%"
    assert "spot too" in paper["Orchard Env (spot)"].note


def test_a_cluster_has_as_many_nodes_as_its_scarcer_resource_needs() -> None:
    card = read_rates(
        """
        baseline = "own"
        workload = {sandboxes = 10, hours = 2, vcpu = 1, memory_gib = 8}
        [[offers]]
        kind = "cluster"
        name = "own"
        node_hourly = 1.0
        control_hourly = 0.5
        control_nodes = 3
        node_vcpu = 64
        node_memory_gib = 32
        """
    )

    (line,) = price(card)

    assert line.total == pytest.approx((3 * 1.0 + 3 * 0.5) * 2), "four sandboxes fit by memory: three nodes"
    assert line.sandbox_hourly == pytest.approx(line.total / 20)


def test_a_sandbox_larger_than_a_node_is_told() -> None:
    card = read_rates(PAPER_RATES)
    huge = msgspec.structs.replace(card, workload=msgspec.structs.replace(card.workload, vcpu=32))

    with pytest.raises(RatesError, match="take larger ones"):
        price(huge)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('baseline = "Daytona"', 'baseline = "nobody"'), "none of the offers"),
        (("sandboxes = 128", "sandboxes = 0"), "more than zero"),
        (("sandboxes = 128", 'sandboxes = "many"'), "int"),
        (('kind = "sandbox"', 'kind = "guess"'), "guess"),
        (("hourly = 0.15", "hourly = 0.15\nminutely = 1.0"), "minutely"),
        (('name = "E2B"', 'name = "Daytona"'), "same name"),
        (("[workload]", "[workload"), "not usable"),
    ],
)
def test_a_rate_card_that_cannot_be_used_says_why(change: tuple[str, str], says: str) -> None:
    with pytest.raises(RatesError, match=says):
        read_rates(PAPER_RATES.replace(*change, 1))


class TestCommand:
    @pytest.fixture
    def app(self) -> typer.Typer:
        return sandbox.app

    def test_it_prints_the_papers_table_and_what_is_odd_about_it(self, app: typer.Typer) -> None:
        output = CliRunner().invoke(app, ["cost"]).output

        for system, (hourly, total, _) in PRINTED.items():
            (row,) = [row for row in output.splitlines() if row.startswith(f"│ {system} ")]
            assert hourly in row
            assert total in row
        assert "its figure implies that node on spot too" in " ".join(output.split())

    def test_flags_change_the_workload(self, app: typer.Typer) -> None:
        output = CliRunner().invoke(app, ["cost", "--sandboxes", "256", "--hours", "24"]).output

        assert "256 sandboxes of 2 vCPU and 8 GiB for 24 h (6,144 sandbox-hours)" in output

    def test_its_card_is_a_card_to_start_from(self, app: typer.Typer, tmp_path: Path) -> None:
        card = tmp_path / "rates.toml"
        card.write_text(CliRunner().invoke(app, ["cost", "--card"]).output)

        again = CliRunner().invoke(app, ["cost", "--rates", str(card)])

        assert again.output == CliRunner().invoke(app, ["cost"]).output

    @pytest.mark.parametrize("arguments", [["--rates", "/no/such.toml"], ["--vcpu", "0"], ["--vcpu", "99"]])
    def test_mistakes_are_one_sentence(self, app: typer.Typer, arguments: list[str]) -> None:
        result = CliRunner().invoke(app, ["cost", *arguments])

        assert isinstance(result.exception, ConfigError)
        assert "\n" not in str(result.exception)
