"""Spare browsers that are given up: whatever their connection says, their sandbox goes."""

from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from orchard.injector.errors import SandboxError
from orchard.workers.domains.gui.browser.pool import Browsers, _Started


class Sandbox:
    """Counts what is asked of it; `broken` cannot be deleted."""

    def __init__(self, *, broken: bool = False) -> None:
        self.deleted = 0
        self._broken = broken

    async def delete(self) -> None:
        self.deleted += 1
        if self._broken:
            raise SandboxError("gone already")


def started(sandbox: Sandbox, *, torn: bool) -> _Started:
    async def close() -> None:
        if torn:
            raise RuntimeError("the tunnel is torn")

    stack = AsyncExitStack()
    stack.push_async_callback(close)
    return _Started(cast("Any", sandbox), cast("Any", None), stack)


@pytest.mark.parametrize("broken", [False, True])
async def test_a_sandbox_goes_though_its_tunnel_cannot_be_closed(broken: bool) -> None:
    torn = Sandbox(broken=broken)
    with pytest.raises(RuntimeError, match="torn"):
        await Browsers()._give_up(started(torn, torn=True))
    assert torn.deleted == 1


async def test_a_sandbox_that_cannot_be_deleted_is_left_to_its_time() -> None:
    lost = Sandbox(broken=True)
    await Browsers()._give_up(started(lost, torn=False))
    assert lost.deleted == 1


async def test_a_pool_that_closes_gives_up_all_of_its_browsers() -> None:
    sandboxes = [Sandbox(), Sandbox(broken=True), Sandbox()]
    pool = Browsers()
    pool._given = {str(at): started(each, torn=at < 2) for at, each in enumerate(sandboxes)}
    with pytest.raises(RuntimeError, match="torn"):
        await pool.close()
    assert [each.deleted for each in sandboxes] == [1, 1, 1]
