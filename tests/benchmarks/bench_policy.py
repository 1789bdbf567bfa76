"""Tokens a second of the policy engine beside `transformers.generate` in batches (a script).

The goal is 6,500 tokens/s at batch 32 for a million parameters on two cores. The same prompts of 100 to 300
tokens, 128 new ones each, sampled at temperature 1. `transformers` gets its prompts padded to the left, 32 at
a time. Also over the wire: 32 clients with token ids in and out. Rounds alternate and the median counts.
Processor time is given as well because the machine is rarely alone. Prints one JSON line for each figure.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import aiohttp
import torch

from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.pipelines.models.directories import save_model
from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.policy.engine import EngineSettings, GenerationEngine
from orchard.pipelines.policy.sampling import Sampling
from orchard.pipelines.policy.server import PolicyServer
from orchard.pipelines.policy.weights import load_weights
from tests.benchmarks.bench_sft import figure

ROUNDS = 3
BATCH = 32
REQUESTS = 64
NEW = 128
VOCABULARY = 2048
GOAL = 6500.0
CPU = torch.device("cpu")


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(100, 300, (REQUESTS,), generator=generator).tolist()
    return [torch.randint(0, 300, (length,), generator=generator).tolist() for length in lengths]


def ours(directory: Path, asked: list[list[int]]) -> tuple[Callable[[], None], GenerationEngine]:
    weights = load_weights(directory, device=CPU, dtype=torch.float32)
    engine = GenerationEngine(weights, 0, EngineSettings(slots=BATCH, context=1024))
    engine.start()

    def run() -> None:
        futures = [engine.submit(prompt, Sampling(max_tokens=NEW, seed=n)) for n, prompt in enumerate(asked)]
        for future in futures:
            future.result()

    return run, engine


def theirs(model: torch.nn.Module, asked: list[list[int]]) -> Callable[[], None]:
    def run() -> None:
        for start in range(0, len(asked), BATCH):
            batch = asked[start : start + BATCH]
            longest = max(map(len, batch))
            ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in batch])
            seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch])
            model.generate(  # type: ignore[operator]
                ids,
                attention_mask=seen,
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                pad_token_id=0,
            )

    return run


async def over_the_wire(directory: Path, asked: list[list[int]]) -> None:
    settings = EngineSettings(slots=BATCH, context=1024)
    async with (
        PolicyServer(directory, settings=settings) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=BATCH)) as session,
    ):

        async def ask(prompt: list[int], seed: int) -> None:
            body = {"model": "policy", "prompt": prompt, "max_tokens": NEW, "seed": seed, "ignore_eos": True}
            async with session.post(f"{server.url}/completions", json=body | {"logprobs": 1}) as reply:
                assert reply.status == 200
                await reply.read()

        started = time.perf_counter()
        await asyncio.gather(*(ask(prompt, seed) for seed, prompt in enumerate(asked * 2)))
        speed = 2 * len(asked) * NEW / (time.perf_counter() - started)
    figure("ours over HTTP: tokens generated at batch 32", speed, "tokens/s", GOAL)


def main() -> None:
    """Measure and print."""
    asked = prompts()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "model"
        tokenizer = train_tokenizer(["some text to have a tokenizer"] * 4, 400, directory)
        model = new_model("tiny-1m", vocabulary=VOCABULARY, seed=0)
        save_model(model, directory, tokenizer=tokenizer)
        own, engine = ours(directory, asked)
        runs = {"ours": own, "transformers.generate": theirs(model, asked)}
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        processor: dict[str, list[float]] = {name: [] for name in runs}
        for round_number in range(ROUNDS + 1):
            for name, run in runs.items():
                wall, cpu = time.perf_counter(), time.process_time()
                run()
                if round_number:  # the first warms up
                    seconds[name].append(time.perf_counter() - wall)
                    processor[name].append(time.process_time() - cpu)
        engine.stop(0)
        tokens = REQUESTS * NEW
        for name in runs:
            goal = GOAL if name == "ours" else None
            figure(f"{name}: tokens generated at batch 32", tokens / median(seconds[name]), "tokens/s", goal)
            figure(f"{name}: tokens generated at batch 32", tokens / median(processor[name]), "tokens/CPU-s")
        ratio = median(seconds["transformers.generate"]) / median(seconds["ours"])
        figure("ours against transformers.generate", ratio, "times", 1.0)
        asyncio.run(over_the_wire(directory, asked))


if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:  # read when torch is loaded: begin again with it, as we ship it
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    main()
