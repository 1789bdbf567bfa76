"""Trajectories in ATIF, generated from a seed: with every field of the format, and with changes in them.

Standard library alone: the Python that has Harbor reads this, too.
"""

import copy
from random import Random
from typing import Any

WORDS = ("", "Look.", "ünï\u2028", "a\nb", '{"x": 1}', "[image: not shown]", "\x00", "😀", "<think>x</think>")
VERSIONS = tuple(f"ATIF-v1.{minor}" for minor in range(9))
STRANGE: tuple[Any, ...] = (
    *(None, True, "", "1", "0.5", "yes", "soon", "user", "ATIF-v2.0", "ATIF-v1.9", 0, 1, -1, 1.0, 2.5),
    *(10**30, [], {}, [1], ["a"], {"a": 1}, [None]),
)


def trajectory(random: Random, depth: int = 0) -> dict[str, Any]:
    """A trajectory that follows the rules of harbor 0.26."""
    inside = [trajectory(random, depth + 1) for _ in range(random.choice((0, 0, 1, 2)))] if depth < 2 else []
    for number, each in enumerate(inside):
        each["trajectory_id"] = f"{depth}-{number}"
    names = [each["trajectory_id"] for each in inside]
    steps = [_step(random, number, names) for number in range(1, random.randint(2, 6))]
    if not any(step["source"] == "agent" for step in steps):
        steps.append({"step_id": len(steps) + 1, "source": "agent", "message": "Done."})
    found = {
        "schema_version": random.choice(VERSIONS),
        "agent": {"name": random.choice(("codex", "x")), "version": "1"}
        | _some(random, model_name="m", tool_definitions=[{"type": "function"}], extra={"k": [1, None]}),
        "steps": steps,
    }
    found |= _some(
        random,
        session_id="s",
        trajectory_id="t",
        notes="n",
        continued_trajectory_ref="next.json",
        extra={"a": {"b": None}, "c": 1.0},
        final_metrics=_some(
            random, total_prompt_tokens=9, total_cost_usd=0.25, total_steps=3, extra={"z": True}
        ),
    )
    return found | ({"subagent_trajectories": inside} if inside else {})


def _some(random: Random, **fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if random.random() < 0.4}


def _content(random: Random) -> Any:
    if random.random() < 0.8:
        return random.choice(WORDS)
    parts: list[dict[str, Any]] = [{"type": "text", "text": random.choice(WORDS)}]
    if random.random() < 0.5:
        source: dict[str, Any] = {"media_type": "image/png", "path": "https://example.org/a.png"}
        parts.append({"type": "image", "source": source})
    if random.random() < 0.3:
        source = {"media_type": "audio/wav", "path": "https://example.org/a.wav"} | _some(
            random, duration_sec=1.5
        )
        parts.append({"type": "audio", "source": source})
    return parts


def _step(random: Random, number: int, names: list[str]) -> dict[str, Any]:
    source = random.choice(("system", "user", "agent", "agent", "agent"))
    step: dict[str, Any] = {"step_id": number, "source": source, "message": _content(random)}
    time = random.choice(("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123456+02:00", "2026-01-02"))
    step |= _some(random, timestamp=time, is_copied_context=False, extra={"why": ["x"]})
    calls = []
    if source == "agent":
        if random.random() < 0.1:
            step["llm_call_count"] = 0
        else:
            step |= _some(random, llm_call_count=2, reasoning_content="Hm.", metrics=_metrics(random))
        step |= _some(random, model_name="other", reasoning_effort=random.choice(("high", 0.5, "0.5")))
        calls = [
            {
                "tool_call_id": f"c{number}-{call}",
                "function_name": "bash",
                "arguments": {"command": "ls", "n": call},
            }
            | _some(random, extra={"timeout": 1})
            for call in range(random.choice((0, 1, 2)))
        ]
        if calls:
            step["tool_calls"] = calls
    if random.random() < 0.6:
        results = [{"source_call_id": call["tool_call_id"]} for call in calls]
        for result in [*results, *([{}] if random.random() < 0.3 else [])]:
            result |= _some(random, content=_content(random), extra={"score": 1})
            if names and random.random() < 0.5:
                result["subagent_trajectory_ref"] = [
                    {"trajectory_id": random.choice(names), "session_id": "s"}
                ]
            if not result.keys() & {"source_call_id"}:
                results.append(result)
        step["observation"] = {"results": results}
    return step


def _metrics(random: Random) -> dict[str, Any]:
    tokens = random.choice(((), (1, 2, 3)))
    found = _some(
        random, prompt_tokens=10, completion_tokens=3, cached_tokens=4, cost_usd=0.5, extra={"x": 1}
    )
    if tokens:
        found |= {"completion_token_ids": list(tokens), "logprobs": [-0.1 * token for token in tokens]}
    return found | _some(random, prompt_token_ids=[5, 6])


def changed(random: Random) -> dict[str, Any]:
    """A trajectory with one to three fields replaced, removed or added, at any depth."""
    found = copy.deepcopy(trajectory(random))
    for _ in range(random.randint(1, 3)):
        at: Any = found
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = random.choice(keys)
            if isinstance(at[key], dict | list) and at[key] and random.random() < 0.75:
                at = at[key]
                continue
            if isinstance(at, dict) and random.random() < 0.25:
                del at[key]
            elif isinstance(at, dict) and random.random() < 0.1:
                at["unknown"] = random.choice(STRANGE)
            else:
                at[key] = random.choice(STRANGE)
            break
    return found
