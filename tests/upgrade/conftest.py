"""The previous version, for tests of upgrades in the middle of a campaign."""

from collections.abc import Iterator

import pytest

from tests.upgrade.previous import checkout


@pytest.fixture(scope="session")
def previous() -> Iterator[dict[str, str]]:
    """Variables of a process of the previous version."""
    with checkout() as variables:
        yield variables
