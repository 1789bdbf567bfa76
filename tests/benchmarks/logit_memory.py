"""Peak memory of log-probabilities over a large vocabulary: `python -m tests.benchmarks.logit_memory`.

A policy-gradient step over 20,000 trained tokens at Qwen3's vocabulary of 151,936, forward and backward. The
model has one narrow layer, so that what counts is logits. Peak resident memory of a process of its own, less
what it had before the step, less what the same tokens cost of which one trains; in copies of one chunk's
logits, [chunk, vocabulary] in float32. The plain way is measured on fewer tokens and said for all.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

TOKENS = 20_000
VOCABULARY = 151_936
PLAIN_TOKENS = 1_000
GOAL = 1.0
"""Copies of one chunk's logits."""


def step(tokens: int, trained: int, rows: int) -> dict[str, float]:
    """In this process: a step over `trained` of `tokens` tokens, logits of `rows` at once; its peak."""
    import numpy as np
    import torch

    from orchard.pipelines.datasets.rows import TokenRow
    from orchard.pipelines.models.tiny import ModelShape, new_model
    from orchard.pipelines.rl import logprobs
    from orchard.pipelines.sft.attention import use_packed_attention
    from orchard.pipelines.sft.loss import make_pack

    torch.set_num_threads(1)
    logprobs.ROWS = rows or logprobs.ROWS
    shape = ModelShape(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    model = new_model(shape, vocabulary=VOCABULARY, seed=0)
    use_packed_attention(model)
    random = np.random.default_rng(0)
    length = 500  # short examples: attention is not what is measured
    examples = []
    for number in range(tokens // length):
        mask = np.zeros(length, np.int8)
        mask[1 : 1 + min(max(trained - number * (length - 1), 0), length - 1)] = 1
        ids = random.integers(0, VOCABULARY, length).astype(np.int32)
        examples.append(
            TokenRow(
                example_id=str(number), rollout_id=str(number), resolved=True, input_ids=ids, loss_mask=mask
            )
        )
    pack = make_pack(examples, torch.device("cpu"))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before = memory("VmRSS")
    found, _ = logprobs.trained_logprobs(model, pack, 0.9)
    found.sum().backward()
    return {"trained": len(pack.targets), "peak": memory("VmHWM") - before, "rows": logprobs.ROWS}


def memory(name: str) -> float:
    """Bytes, of this process."""
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(name)]
    return float(line.split()[1]) * 1024


def measured(*arguments: int) -> dict[str, float]:
    """`step` in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.logit_memory", *map(str, arguments)]
    given_back = {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # freed memory counts as free at once
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **given_back}
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """One JSON line for each way."""
    few, ours = measured(TOKENS, 1, 0), measured(TOKENS, TOKENS, 0)
    chunk = ours["rows"] * VOCABULARY * 4
    added = ours["peak"] - few["peak"]
    plain = measured(PLAIN_TOKENS, PLAIN_TOKENS, 1_000_000)
    for line in (
        {
            "what": "chunked",
            "trained": ours["trained"],
            "peak_gb": ours["peak"] / 1e9,
            "added_gb": added / 1e9,
        },
        {
            "what": "one chunk",
            "rows": ours["rows"],
            "copy_gb": chunk / 1e9,
            "copies": added / chunk,
            "goal": GOAL,
        },
        {
            "what": "plain, extrapolated",
            "measured_on": plain["trained"],
            "peak_gb": plain["peak"] / plain["trained"] * ours["trained"] / 1e9,
        },
    ):
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(step(*map(int, sys.argv[1:]))) + "\n")
    else:
        main()
