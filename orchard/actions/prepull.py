"""Brings the images of a campaign to where its sandboxes will be, before they are asked for."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxError, SandboxNotFound, SandboxUnsupported
from orchard.injector.registry_credentials import CredentialsError, stored_credentials
from orchard.schemas.sandboxes import PreparedImage, PreparedImages
from orchard.storage.reader import open_tables

BATCH = 10
"""Images that a node pulls before the next ones begin."""
AT_ONCE = 2
"""Images that one machine pulls at the same time."""
LOOK_SECONDS = 2.0
HOST = "host"
"""The image that every machine has."""
_IMAGES = """
select t.image from requests q
join tasks t on t.task_id = q.task_id and t.blob_sha256 = q.task_sha256
anti join rollouts r on r.rollout_id = q.rollout_id
where q.campaign = ? and t.image <> ?
group by t.image order by min(q.sequence)
"""


def campaign_images(session: Session, campaign: str) -> list[str]:
    """List the images of the campaign's open rollouts, in the order of its queue. Raises ConfigError."""
    with open_tables(session.config.store, views=f"{_IMAGES} campaigns") as tables:
        known = tables.execute("select 1 from campaigns where campaign = ?", [campaign]).fetchone()
        found = [image for (image,) in tables.execute(_IMAGES, [campaign, HOST]).fetchall()]
    if known is None:
        raise ConfigError(f"there is no campaign {campaign!r}: `orchard status` lists them")
    return found


async def prepulled(session: Session, images: Sequence[str]) -> AsyncIterator[PreparedImages]:
    """Pull the images, yielding how far each batch is, the last of a batch when it is done.

    On a cluster every node for sandboxes gets them; on one machine that machine. Raises ConfigError.
    """
    async with session.sandboxes() as client:
        try:
            for start in range(0, len(images), BATCH):
                async for told in _batch(client, images[start : start + BATCH]):
                    yield told
        except SandboxError as error:
            raise ConfigError(error.detail) from error


async def _batch(client: AsyncSandboxClient, images: Sequence[str]) -> AsyncIterator[PreparedImages]:
    try:
        while not (told := await client.prepare_images(images)).done:
            yield told
            await asyncio.sleep(LOOK_SECONDS)
        yield told
    except SandboxUnsupported:
        there = {image.name for image in await client.list_images()}
        turn = asyncio.Semaphore(AT_ONCE)
        found = await asyncio.gather(*(_pulled(client, image, there, turn) for image in images))
        yield PreparedImages(nodes=1, skipped=0, done=True, images=found)


async def _pulled(
    client: AsyncSandboxClient, image: str, there: set[str], turn: asyncio.Semaphore
) -> PreparedImage:
    async with turn:
        try:
            if image not in there:
                known = stored_credentials(image) or {}
                await client.pull_image(image, username=known.get("username"), password=known.get("password"))
        except CredentialsError as error:
            return PreparedImage(image=image, pulled=0, failed=1, reason="image_denied", message=str(error))
        except SandboxError as error:
            reason = "image_missing" if isinstance(error, SandboxNotFound) else error.reason
            return PreparedImage(image=image, pulled=0, failed=1, reason=reason, message=error.detail)
        return PreparedImage(image=image, pulled=1)
