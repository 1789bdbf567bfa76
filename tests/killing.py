"""A worker of any kind is killed in its middle; the test then has another one finish what it had begun."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Mapping

SECONDS = 100.0


async def killed_in_the_middle(
    words: tuple[str, ...], environment: Mapping[str, str], begun: Awaitable[object]
) -> None:
    """SIGKILL a process of this `orchard` command when it has `begun`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orchard", *words),
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        await asyncio.wait_for(begun, SECONDS)
        assert process.returncode is None, "it ended by itself"
    finally:
        process.kill()
        await process.wait()
