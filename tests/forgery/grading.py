"""Tricks and honest submissions through the real grader, in real sandboxes."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.sandboxes import as_ready, open_sandbox
from orchard.schemas.outcomes import Reward
from orchard.storage.blobs import BlobStore
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import grade
from tests.forgery.layouts import Layout
from tests.forgery.trick import Repository, Trick

GRADING_SECONDS = 300.0
LAYERS = {"refused": "policy", "forged": "canaries", "unproven": "control"}
"""What gives which cause of a -1."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What became of one submission on one layout."""

    trick: Trick
    layout: str
    rewarded: bool
    layer: str
    """What refused it, `rewarded`, or `abort: cause`."""
    detail: str
    seconds: float
    reward: Reward | None

    @property
    def wrong(self) -> bool:
        """A forgery with a reward, an honest submission without one, or no outcome at all."""
        return self.reward is None or self.rewarded != self.trick.honest


def layer(reward: Reward) -> str:
    """Which part of the grader gave this outcome."""
    if reward.resolved:
        return "rewarded"
    if reward.cause is not None:
        return LAYERS.get(reward.cause, reward.cause)
    if reward.detail.startswith(("the patch does not apply", "the submission is not a diff")):
        return "patch"
    if reward.detail.startswith("with this patch the tests"):
        return "no result"
    return "tests fail"


class Bench:
    """Grades submissions, `concurrency` at a time, in sandboxes of one service."""

    def __init__(
        self, client: AsyncSandboxClient, layouts: Iterable[Layout], directory: Path, *, concurrency: int = 2
    ) -> None:
        self._client = client
        self._blobs = BlobStore(str(directory / "store"))
        self._layouts = {layout.name: layout for layout in layouts}
        self._repositories = {
            name: Repository(layout, directory / "repositories" / name)
            for name, layout in self._layouts.items()
        }
        self._concurrency = concurrency

    def many(self, pairs: Iterable[tuple[Trick, str]]) -> AsyncIterator[Tried]:
        """Each trick on the layout named beside it, as it is ready."""
        return as_ready(list(pairs), self.one, concurrency=self._concurrency)

    async def one(self, pair: tuple[Trick, str]) -> Tried:
        """One trick on one layout."""
        trick, name = pair
        task = self._layouts[name].task
        submission = self._repositories[name].submission(trick)
        started = time.monotonic()
        fresh = partial(
            open_sandbox,
            self._client,
            task.image,
            purpose="forgery",
            cpu=task.cpu,
            memory=task.memory,
            timeout=120.0,
        )
        reward: Reward | None = None
        try:
            async with fresh() as machine:
                reward = await grade(
                    task, submission, machine, timeout=GRADING_SECONDS, blobs=self._blobs, pristine=fresh
                )
            became, detail = layer(reward), reward.detail
        except InfrastructureError as error:
            became, detail = f"abort: {error.cause.value}", error.detail
        return Tried(
            trick=trick,
            layout=name,
            rewarded=reward is not None and reward.value > 0,
            layer=became,
            detail=detail,
            seconds=time.monotonic() - started,
            reward=reward,
        )

    async def log(self, tried: Tried) -> str:
        """What the grader kept of the run."""
        if tried.reward is None or tried.reward.log is None:
            return ""
        return (await asyncio.to_thread(self._blobs.get, tried.reward.log)).decode(errors="replace")
