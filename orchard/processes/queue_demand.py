"""Tells the sandbox service which images the next waiting rollouts need, so that its warm pools follow."""

import asyncio
import logging

import duckdb

from orchard.actions.session import Session
from orchard.injector.errors import SandboxError
from orchard.storage.errors import StorageError
from orchard.storage.reader import open_tables

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
NEXT = 500
"""Waiting rollouts that are looked at, the oldest first."""
_WAITING = """
with waiting as (
    select q.task_id, q.task_sha256 from requests q
    semi join (select campaign from campaigns where state = 'running') c on c.campaign = q.campaign
    anti join rollouts r on r.rollout_id = q.rollout_id
    anti join (
        select rollout_id from attempts where ending = 'open'
    ) a on a.rollout_id = q.rollout_id
    order by q.sequence limit ?
)
select t.image, count(*)::bigint from waiting w
join tasks t on t.task_id = w.task_id and t.blob_sha256 = w.task_sha256
group by t.image
"""


def waiting_images(store_url: str, limit: int = NEXT) -> dict[str, int]:
    """Count the rollouts of running campaigns that nobody works on, by image, of the `limit` oldest.

    Raises StorageError.
    """
    with open_tables(store_url, views=_WAITING) as tables:
        return dict(tables.execute(_WAITING, [limit]).fetchall())


async def follow_queue(session: Session, pause: float = LOOK_SECONDS) -> None:
    """Tell it again and again until cancelled; what cannot be read or told is tried at the next look."""
    said = ""
    async with session.sandboxes() as client:
        while True:
            try:
                await client.tell_demand(await asyncio.to_thread(waiting_images, session.config.store))
            except (StorageError, duckdb.Error, SandboxError) as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("warm pools do not follow the queue: %s", error)
            await asyncio.sleep(pause)
