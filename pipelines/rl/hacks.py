"""Counts how often a run's policies pass impossible tasks."""

import duckdb
import msgspec


class HackRate(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts of impossible tasks by one policy version, how many of them passed, and the share with its
    interval of 95 %."""

    version: int
    rollouts: int
    hacked: int
    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"version {self.version} passes {self.hacked} of {self.rollouts} impossible tasks "
            f"({self.share:.1%}; 95 %: {self.low:.1%} to {self.high:.1%})"
        )


_RATES = """
select policy_version as version, rollouts, hacked, hack_rate as share, low, high from hack_rates
where campaign = ? and policy_version is not null order by 1
"""


def hack_rates(tables: duckdb.DuckDBPyConnection, run: str) -> list[HackRate]:
    """Rates by policy version; none without rollouts of impossible tasks."""
    return msgspec.convert(tables.sql(_RATES, params=[run]).to_arrow_table().to_pylist(), list[HackRate])
