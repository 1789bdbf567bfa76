"""Reads rows of SWE datasets as tasks; which dataset a row is of is known by its columns."""

from orchard.pipelines.domains.swe.rows.columns import (
    NOTHING_GIVEN,
    Columns,
    Family,
    Given,
    Row,
    RowFamily,
)
from orchard.pipelines.domains.swe.rows.multi_swe_bench import MULTI_SWE_BENCH
from orchard.pipelines.domains.swe.rows.nemo_gym import NEMO_GYM, unwrapped
from orchard.pipelines.domains.swe.rows.r2e_gym import R2E_GYM
from orchard.pipelines.domains.swe.rows.scale_swe import SCALE_SWE
from orchard.pipelines.domains.swe.rows.swe_bench import SWE_BENCH
from orchard.pipelines.domains.swe.rows.swe_bench_live import SWE_BENCH_LIVE
from orchard.pipelines.domains.swe.rows.swe_bench_pro import SWE_BENCH_PRO
from orchard.pipelines.domains.swe.rows.swe_gym import SWE_GYM
from orchard.pipelines.domains.swe.rows.swe_rebench import SWE_REBENCH
from orchard.pipelines.domains.swe.rows.swe_rebench_v2 import SWE_REBENCH_V2
from orchard.pipelines.domains.swe.rows.swe_smith import SWE_SMITH
from orchard.schemas.tasks import Task

__all__ = ["Family", "Given", "family_of", "task_from_row"]

_FAMILIES: tuple[RowFamily, ...] = (
    MULTI_SWE_BENCH,
    NEMO_GYM,
    R2E_GYM,
    SCALE_SWE,
    SWE_REBENCH,
    SWE_REBENCH_V2,
    SWE_BENCH_PRO,
    SWE_BENCH_LIVE,
    SWE_SMITH,
    SWE_GYM,
    SWE_BENCH,
)
"""The first that knows a row reads it."""


def family_of(row: Row) -> Family:
    """The dataset that a row is from, by the columns it has."""
    return next(each.family for each in _FAMILIES if each.known(row))


def task_from_row(row: Row, number: int, family: Family | None = None, given: Given = NOTHING_GIVEN) -> Task:
    """The task of a row; `number` counts from 1 and is for errors. Raises MalformedRow."""
    row = unwrapped(row, number)
    family = family or family_of(row)
    read = next(each.read for each in _FAMILIES if each.family is family)
    return read(Columns(row, number, given))
