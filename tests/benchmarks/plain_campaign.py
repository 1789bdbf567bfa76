"""What a campaign does, as a plain script: no queue, no log, no page (part of `bench_tax`).

It reads Services on its input, and then lines with rollouts, which it plays and writes what came of them, all
as JSON: sandboxes from the same service by the same client, the same questions to the same model, the same
commands and the same grading. Run as `python -m tests.benchmarks.plain_campaign`.
"""

import asyncio
import gc
import sys
from typing import Any

import aiohttp
import msgspec
import uvloop

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.schemas.tasks import Task
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.swe.harnesses.orchard_bash_prompts import SYSTEM, TASK
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.graders import grade
from orchard.workers.harnesses.bash_loop import submitted
from orchard.workers.harnesses.bash_prompts import BASH_TOOL, observation

GRADING_SECONDS = 60.0
COMMAND_SECONDS = 20.0
TTL_SECONDS = 600


class Rollout(msgspec.Struct, frozen=True):
    task: Task
    seed: int


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """With what all rollouts are played."""

    sandbox_url: str
    sandbox_key: str
    model_url: str
    model: str
    store: str
    """Its blobs have the question sheets by which tasks are graded."""
    slots: int
    environment: dict[str, str]
    """Of every command."""


class Played(msgspec.Struct, frozen=True):
    """What came of a round; equal in a campaign that did the same."""

    resolved: int
    turns: int
    commands: int


class PlainCampaign:
    """Plays rollouts, as many at once as it has slots."""

    def __init__(self, services: Services, client: AsyncSandboxClient, http: aiohttp.ClientSession) -> None:
        self._services, self._client, self._http = services, client, http
        self._blobs = BlobStore(services.store)
        self._slots = asyncio.Semaphore(services.slots)

    async def play(self, rollouts: list[Rollout]) -> Played:
        each = await asyncio.gather(*map(self._rollout, rollouts))
        return Played(*map(sum, zip(*each, strict=True)))

    async def _rollout(self, rollout: Rollout) -> tuple[bool, int, int]:
        task = rollout.task
        async with self._slots:
            async with await self._sandbox(task) as sandbox:
                submission, turns, commands = await self._solve(rollout, sandbox)
            async with await self._sandbox(task) as sandbox:
                reward = await grade(
                    task,
                    submission,
                    SandboxMachine(sandbox),
                    timeout=GRADING_SECONDS,
                    blobs=self._blobs,
                    pristine=_no_control,
                )
        return reward.resolved, turns, commands

    async def _sandbox(self, task: Task) -> AsyncSandbox:
        return await self._client.create_sandbox(
            task.image, block_network=True, cpu=task.cpu, memory=task.memory, ttl_seconds=TTL_SECONDS
        )

    async def _solve(self, rollout: Rollout, sandbox: AsyncSandbox) -> tuple[str, int, int]:
        """The submission, and how many turns and commands it took."""
        task, commands = rollout.task, 0
        user = TASK.format(statement=task.statement, workdir=task.workdir)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
        for turn in range(1, 100):
            answer = await self._ask(rollout.seed, messages)
            messages.append(answer)
            for call in answer.get("tool_calls", ()):
                job = await sandbox.exec(
                    msgspec.json.decode(call["function"]["arguments"])["command"],
                    timeout_seconds=COMMAND_SECONDS,
                    cwd=task.workdir,
                    env={**self._services.environment, **task.environment},
                    merge_output=True,
                )
                commands += 1
                outcome = CommandOutcome(output=job.stdout, returncode=job.exit_code or 0, seconds=0.0)
                shown = observation(outcome, COMMAND_SECONDS)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": shown})
                if (submission := submitted(outcome)) is not None:
                    return submission, turn, commands
        raise RuntimeError(f"nothing was submitted for {task.task_id}")

    async def _ask(self, seed: int, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"model": self._services.model, "seed": seed, "tools": [BASH_TOOL], "messages": messages}
        async with self._http.post(
            f"{self._services.model_url}/chat/completions", data=msgspec.json.encode(body)
        ) as reply:
            message: dict[str, Any] = msgspec.json.decode(await reply.read())["choices"][0]["message"]
        return message


def _no_control() -> Any:
    raise RuntimeError("the grading asked for a control, which no resolved rollout needs")


async def main() -> None:
    services = msgspec.json.decode(sys.stdin.readline(), type=Services)
    gc.freeze()  # as a worker does
    headers = {"Content-Type": "application/json"}
    async with (
        AsyncSandboxClient(base_url=services.sandbox_url, api_key=services.sandbox_key) as client,
        aiohttp.ClientSession(headers=headers) as http,
    ):
        campaign = PlainCampaign(services, client, http)
        while line := await asyncio.to_thread(sys.stdin.readline):
            played = await campaign.play(msgspec.json.decode(line, type=list[Rollout]))
            sys.stdout.write(msgspec.json.encode(played).decode() + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main())
