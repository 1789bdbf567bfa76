"""The trainer beside a plain loop, and how long a group waits (a script; `bench_policy` has generation).

The plain loop is what one writes by hand: the same model of a million parameters, the same rollouts of 150 to
600 tokens in groups of eight, the same loss and optimizer, batches of eight padded to their longest. Both
must come to the same loss. Rounds alternate and the median counts; processor time is given as well, as the
machine is rarely alone. Prints one JSON line for each figure.

With `--store DIR --run NAME` it says instead how long the groups of a finished run waited, from its log.
"""

import argparse
import asyncio
import copy
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median, quantiles

import msgspec
import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.rl.coordinator import Coordinator, begin
from orchard.pipelines.rl.feed import Feed, feed_subjects
from orchard.pipelines.rl.learner import Learner, Trained
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.sequences import TokenSequence
from orchard.pipelines.rl.settings import RlSettings
from orchard.pipelines.sft.processes import Processes
from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.events import make_event
from orchard.schemas.groups import PolicyUpdated
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay_batches
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.benchmarks.bench_sft import figure
from tests.pipelines.rl.written_log import conversation, finished, message, plan_of, run_settings

ROUNDS = 3
GROUPS, SIZE = 8, 8
VOCABULARY = 2048
PADDED = 8
LATENCIES = 100
GOAL = 1.0
GOAL_SECONDS = 1.0
ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))


def settings() -> RlSettings:
    return RlSettings(run="r", model="-", out="-", context=4096, lr=1e-6, steps=1000)


def rollouts() -> list[Trained]:
    """A step's rollouts; a third of their tokens were sampled, by a policy near to an untrained model."""
    random = np.random.default_rng(0)
    made = []
    for number in range(GROUPS * SIZE):
        length = int(random.integers(150, 600))
        mask = [int(at >= 100 and (at - 100) % 90 < 30) for at in range(length)]
        noise = random.normal(-np.log(VOCABULARY), 0.1, length).tolist()
        sequence = TokenSequence(
            random.integers(0, VOCABULARY, length).tolist(),
            mask,
            [value if trains else 0.0 for value, trains in zip(noise, mask, strict=True)],
            [trains - 1 for trains in mask],
        )
        made.append(
            Trained(str(number), str(number // SIZE), 1.0 if number % 3 else -1.0, number % 3 > 0, [sequence])
        )
    return made


def plain_loop(model: Qwen3ForCausalLM, batch: list[Trained], given: RlSettings) -> Callable[[], float]:
    """One optimizer step each time it is called; its loss."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=given.lr, betas=(given.beta1, given.beta2), eps=given.epsilon, weight_decay=0.0
    )
    rewards: dict[str, list[float]] = {}
    for rollout in batch:
        rewards.setdefault(rollout.group, []).append(rollout.reward)

    def loss_of(part: list[Trained]) -> torch.Tensor:
        sequences = [rollout.sequences[0] for rollout in part]
        longest = max(len(sequence.ids) for sequence in sequences)

        def padded(name: str) -> torch.Tensor:
            lists = [getattr(sequence, name) for sequence in sequences]
            return torch.tensor([values + [0] * (longest - len(values)) for values in lists])

        ids, mask, sampled = padded("ids"), padded("mask"), padded("logprobs")[:, 1:]
        lengths = torch.tensor([len(sequence.ids) for sequence in sequences])
        seen = (torch.arange(longest) < lengths[:, None]).long()
        logits = model(input_ids=ids, attention_mask=seen).logits[:, :-1].float()
        new = torch.log_softmax(logits, dim=-1).gather(-1, ids[:, 1:, None])[..., 0]
        trains = mask[:, 1:]
        found = []
        for rollout in part:
            same = rewards[rollout.group]
            found.append((rollout.reward - fmean(same)) / (float(np.std(same, ddof=1)) + 1e-6))
        advantage = torch.tensor(found)[:, None]
        old = new.detach()
        ratio = (new - old).exp()
        clipped = ratio.clamp(1 - given.loss.clips[0], 1 + given.loss.clips[1])
        losses = torch.maximum(-ratio * advantage, -clipped * advantage)
        weights = (old - sampled).exp().clamp(max=2.0) * trains
        return ((losses * weights).sum(dim=1) / trains.sum(dim=1)).sum() / len(batch)

    def step() -> float:
        total = 0.0
        for start in range(0, len(batch), PADDED):
            loss = loss_of(batch[start : start + PADDED])
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), given.clip)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def training() -> None:
    """Tokens trained in a second, by both."""
    batch, given = rollouts(), settings()
    model = new_model("tiny-1m", vocabulary=VOCABULARY, seed=0)
    plain = plain_loop(copy.deepcopy(model).eval(), batch, given)
    learner = Learner(given, model, ALONE)
    runs: dict[str, Callable[[], float]] = {
        "ours": lambda: learner.step(0, batch).loss,
        "plain loop": plain,
    }
    losses: dict[str, list[float]] = {name: [] for name in runs}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    processor: dict[str, list[float]] = {name: [] for name in runs}
    for round_number in range(ROUNDS + 1):
        for name, run in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            losses[name].append(run())
            if round_number:  # the first warms up
                seconds[name].append(time.perf_counter() - wall)
                processor[name].append(time.process_time() - cpu)
    if not np.allclose(losses["ours"], losses["plain loop"], rtol=1e-3, atol=1e-4):
        raise RuntimeError(f"the losses differ: {losses}")
    tokens = sum(len(sequence.ids) for rollout in batch for sequence in rollout.sequences)
    for name in runs:
        figure(f"{name}: tokens of a policy step", tokens / median(seconds[name]), "tokens/s")
        figure(f"{name}: tokens of a policy step", tokens / median(processor[name]), "tokens/CPU-s")
    for name, times in (("", seconds), (", by processor time", processor)):
        ratio = median(times["plain loop"]) / median(times["ours"])
        figure(f"ours against the plain loop{name}", ratio, "times", GOAL)


async def waiting() -> None:
    """Seconds from a group's last reward until the trainer has its tokens, when the trainer waits for it."""
    plan = plan_of(run_settings(prompts_per_step=1, steps=LATENCIES, ahead=0, oversample=1.0))
    with tempfile.TemporaryDirectory() as store:
        async with (
            EmbeddedServer(Path(store) / "nats") as server,
            connect(NatsSettings(), name="bench", url=server.url) as connection,
        ):
            await declare(connection, NatsSettings(), [Queue()])
            blobs = BlobStore(store)
            start = await begin(connection, blobs, plan)
            rewarded: dict[int, float] = {}
            worker = asyncio.create_task(work(connection, plan, rewarded))
            coordinator = asyncio.create_task(Coordinator(connection, plan).run(start))
            try:
                found = await use(connection, plan, blobs, start, rewarded)
            finally:
                worker.cancel()
                await asyncio.wait({worker, coordinator})
    report("a group's last reward to its use", found)


async def work(connection: Connection, plan: RunPlan, rewarded: dict[int, float]) -> None:
    """Rollouts that take no time: two messages of the policy, and a reward."""
    publisher = Publisher(connection)
    async with Claims(connection, Queue()) as claims:
        while True:
            claim = await claims.next(timeout=5.0)
            if claim is None:
                continue
            request = msgspec.json.decode(claim.body, type=RolloutRequest)
            prompt, slot = plan.place_of(request.sample)
            for number, tokens in enumerate(conversation(request.sample)):
                await publisher.event(message(request, number, tokens))
            event = finished(request, 1.0 - 2.0 * slot)
            rewarded[prompt] = time.perf_counter()
            await publisher.terminal(event, 0)
            await claim.complete()


async def use(
    connection: Connection, plan: RunPlan, blobs: BlobStore, start: int, rewarded: dict[int, float]
) -> list[float]:
    """Take groups as the trainer does; how long each waited."""
    feed, publisher, found = Feed(plan, blobs), Publisher(connection), []
    async for batch in replay_batches(connection, start, subjects=feed_subjects(plan.name), follow=True):
        feed.take(batch)
        for group in feed.waiting:
            await feed.sampled(group)
            found.append(time.perf_counter() - rewarded[group.prompt])
            update = PolicyUpdated(
                run=plan.name,
                version=len(found),
                step=len(found),
                groups=(group.group_id,),
                position=feed.sequences_of[group.group_id],
            )
            event = make_event(update, id=f"u{len(found)}", source="orchard/bench", campaign=plan.name)
            await publisher.event(event)
            feed.progress.apply(event, 0)
            feed.done(group)
        if feed.progress.finished:
            return found
    return found


# All rollouts of a prompt must be graded before its group is chosen. The step's figures are stored after its
# checkpoint: the use of a group is a little earlier than this says.
_WAITED = """
with last as (
    select g.group_id, any_value(g.time) as assembled, any_value(g.trained_version) as version,
           max(r.time) as rewarded
    from groups g join rollouts r on r.campaign = g.run and r.sample // ? = g.prompt
    where g.run = ? and g.trained_version is not null group by 1
)
select epoch(assembled) - epoch(rewarded), epoch(s.time) - s.seconds - epoch(rewarded)
from last join policy_steps s on s.run = ? and s.version = last.version
"""


def waited(store: str, run: str, most: int) -> None:
    """How long the groups of a finished run waited; `most` is its N_max."""
    with open_tables(store) as tables:
        rows = tables.execute(_WAITED, [most, run, run]).fetchall()
    if len(rows) < 2:
        raise SystemExit(f"the store has no trained groups of run {run!r}")
    report(f"{run}: a group's last reward to its assembly", [row[0] for row in rows])
    report(f"{run}: a group's last reward to its use, other steps included", [row[1] for row in rows])


def report(name: str, seconds: list[float]) -> None:
    """Median and 99th percentile."""
    figure(f"{name}, median", median(seconds), "s", GOAL_SECONDS)
    figure(f"{name}, 99th percentile", quantiles(seconds, n=100)[98], "s", GOAL_SECONDS)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="Store with a finished run, instead of measuring.")
    parser.add_argument("--run", help="Its name.")
    parser.add_argument("--most", type=int, default=16, help="Its N_max, `bar.budget`.")
    options = parser.parse_args()
    if options.store:
        waited(options.store, options.run, options.most)
        return
    training()
    asyncio.run(waiting())


if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:  # read when torch is loaded: begin again with it, as we ship it
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    main()
