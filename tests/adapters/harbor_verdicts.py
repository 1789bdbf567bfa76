"""Scripted agents get from Harbor's own trials, and from Orchard's grading of the same directories, the same
numbers, or both times no verdict. Both work in sandboxes of the same service, and nothing is downloaded."""

import asyncio
import itertools
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

from tests.adapters.harbor_trial import PLACE

NUMBER = int(os.environ.get("ORCHARD_HARBOR_VERDICTS", "100"))
AT_ONCE = 3
LOGS = "/logs/verifier"
TXT, JSON = f"{LOGS}/reward.txt", f"{LOGS}/reward.json"
SOLVED = "[ -e solved ]"


class Kind(NamedTuple):
    """A task whose tests judge whether there is a file `solved` in the working directory."""

    test: str
    """tests/test.sh"""
    toml: str = ""
    environment: str = ""
    """Lines of [environment]."""
    solution: str = "touch solved\n"
    files: tuple[tuple[str, str], ...] = ()


def _says(value: str, place: str = TXT) -> str:
    """A script that writes a reward when the task is solved, and else 0."""
    return f"if {SOLVED}; then printf '%s' '{value}' > {place}; else echo 0 > {TXT}; fi\n"


KINDS = {
    "bash without a shebang": Kind(f"[[ -e solved ]] && echo 1 > {TXT} || echo 0 > {TXT}\n"),
    "sh": Kind(f"#!/bin/sh\n{_says('1')}"),
    "python": Kind(
        "#!/usr/bin/env python3\nimport os\n"
        f"open('{JSON}', 'w').write('{{\"reward\": %d, \"files\": %d}}' % (os.path.exists('solved'), 3))\n"
    ),
    "a shebang with a carriage return": Kind(f"#!/bin/sh\r\n{_says('1')}"),
    "no such interpreter": Kind(f"#!/nowhere/sh\n{_says('1')}"),
    "half": Kind(_says("0.5")),
    "blanks": Kind(_says(" 1.0 \n")),
    "exponent": Kind(_says("1e-1")),
    "underscore": Kind(_says("1_0")),
    "negative": Kind(_says("-2")),
    "infinity": Kind(_says("inf")),
    "not a number": Kind(_says("nan")),
    "a word": Kind(_says("passed")),
    "empty": Kind(_says("")),
    "no reward": Kind("true\n"),
    "metrics": Kind(_says('{"reward": 0.75, "style": 0.25, "n": 7}', JSON)),
    "one metric": Kind(_says('{"accuracy": 0.75}', JSON)),
    "truth": Kind(_says('{"reward": true}', JSON)),
    "null": Kind(_says('{"reward": null}', JSON)),
    "text in JSON": Kind(_says('{"reward": "1"}', JSON)),
    "a list": Kind(_says("[1]", JSON)),
    "a number as JSON": Kind(_says("1", JSON)),
    "broken JSON": Kind(_says('{"reward": 1', JSON)),
    "NaN in JSON": Kind(_says('{"reward": NaN}', JSON)),
    "several metrics": Kind(_says('{"accuracy": 1, "speed": 0.5}', JSON)),
    "no metric": Kind(_says("{}", JSON)),
    "a command at the end": Kind(
        f"cat /logs/artifacts/n > {TXT}\n",
        toml='[verifier]\nenvironment_mode = "separate"\ncollect = [{command = "exit 3"}, '
        '{command = "wc -c < solved > /logs/artifacts/n || echo 7 > /logs/artifacts/n", user = "daemon"}]\n',
    ),
    "a command at the end, in one sandbox": Kind(
        f"cat /tmp/n > {TXT}\n",
        toml='[[verifier.collect]]\ncommand = "ls /tmp | grep -c solved > /tmp/n"\n',
    ),
    "material that can be executed": Kind(
        f"{SOLVED} && ./run > {TXT} || echo 0 > {TXT}\n",
        files=(("environment/run", "#!/bin/sh\necho 0.5\n"),),
    ),
    "JSON before text": Kind(_says('{"reward": 0.5}', JSON) + f"echo 1 > {TXT}\n"),
    "exit status 7": Kind(f"{_says('1')}exit 7\n"),
    "a default": Kind(
        f'[ "$WORD" = there ] && {SOLVED} && echo 1 > {TXT} || echo 0 > {TXT}\n',
        toml='[verifier.env]\nWORD = "${WORD_OF_NOBODY:-there}"\n',
    ),
    "variables": Kind(
        f'[ "$(cat solved)" = "$WORD" ] && echo 1 > {TXT} || echo 0 > {TXT}\n',
        environment='env = { WORD = "it\'s said" }\n',
        solution='printf %s "$WORD" > solved\n',
    ),
    "variables of the solution": Kind(
        f'[ "$(cat solved)" = x ] && echo 1 > {TXT} || echo 0 > {TXT}\n',
        toml='[solution.env]\nTHIS = "x"\n',
        solution="printf %s $THIS > solved\n",
    ),
    "files of the tests": Kind(
        f"cmp /tests/data/wanted solved && echo 1 > {TXT} || echo 0 > {TXT}\n",
        solution="cp /solution/answer solved\n",
        files=(("tests/data/wanted", "yes\n"), ("solution/answer", "yes\n")),
    ),
    "a verifier's user": Kind(
        f"{SOLVED} && id -u > {TXT} || echo 0 > {TXT}\n", toml='[verifier]\nuser = "daemon"\n'
    ),
    "an agent's user": Kind(
        f"{SOLVED} && stat -c %u solved > {TXT} || echo 0 > {TXT}\n", toml='[agent]\nuser = "daemon"\n'
    ),
    "numbers for users": Kind(
        f"{SOLVED} && expr $(stat -c %u solved) + $(id -u) > {TXT} || echo 0 > {TXT}\n",
        toml="[agent]\nuser = 1\n[verifier]\nuser = 2\n",
    ),
    "a healthcheck": Kind(
        f"{SOLVED} && wc -l < tries > {TXT} || echo 0 > {TXT}\n",
        environment="healthcheck.interval_sec = 0.1\n"
        "healthcheck.command = 'echo x >> tries; [ $(wc -l < tries) -ge 2 ]'\n",
    ),
    "material": Kind(
        f"{SOLVED} && cat given > {TXT} || echo 0 > {TXT}\n", files=(("environment/given", "0.25"),)
    ),
    "a reward of the agent": Kind("true\n", solution=f"touch solved; mkdir -p {LOGS}; echo 1 > {TXT}\n"),
    "tests of the agent": Kind(_says("1"), solution="mkdir -p /tests; echo 'exit 0' > /tests/test.sh\n"),
    "a separate verifier": Kind(
        f"[ ! -e solved ] && cat /tmp/out/deep/n > {TXT} || echo 0 > {TXT}\n",
        toml='[verifier]\nenvironment_mode = "separate"\n',
        solution="touch solved; mkdir -p /tmp/out/deep; echo 0.5 > /tmp/out/deep/n\n",
    ),
    "a published file": Kind(
        f"cat /logs/artifacts/n > {TXT}\n",
        toml='[verifier]\nenvironment_mode = "separate"\n',
        solution="echo 0.5 > /logs/artifacts/n\n",
    ),
    "too long": Kind(f"{SOLVED} && sleep 60; echo 0 > {TXT}\n", toml="[verifier]\ntimeout_sec = 3\n"),
}
AGENTS = {"right": None, "idle": "true\n"}
"""The script of the agent in place of the solution."""

GRADER = """
import asyncio, json, sys
from pathlib import Path
from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.directories import directory_task, read_directory
from orchard.pipelines.tasks.proving import ProofContext, ValidationSettings
from orchard.storage.blobs import BlobStore
from orchard.workers.failures import InfrastructureError
async def grade(path, context, at_once):
    task = directory_task(read_directory(path), "host")
    async with at_once:
        try:
            reward = await context.grade(task, task.gold_patch)
        except InfrastructureError as error:
            return {"rewards": None, "said": f"{error.cause}: {error.detail}"}
    whole = {name: value for name, value in reward.parts.items() if "/" not in name}
    return {"rewards": None if reward.cause else whole, "said": reward.detail}
async def main(paths, store, many):
    async with AsyncSandboxClient() as client:
        context = ProofContext(client, BlobStore(store), ValidationSettings(runs=1))
        at_once = asyncio.Semaphore(many)
        print(json.dumps(await asyncio.gather(*(grade(Path(path), context, at_once) for path in paths))))
asyncio.run(main(sys.argv[3:], sys.argv[1], int(sys.argv[2])))
"""


async def test_scripted_agents_get_the_same_numbers(tmp_path: Path) -> None:
    cases = list(itertools.islice(itertools.product(AGENTS, KINDS), NUMBER))
    paths = {
        f"{kind}, {agent}": _made(tmp_path / str(n), KINDS[kind], AGENTS[agent])
        for n, (agent, kind) in enumerate(cases)
    }
    assert await differences(paths, tmp_path) == []


async def differences(paths: Mapping[str, Path], place: Path) -> list[str]:
    """What Harbor's own trials and Orchard's grading say differently of tasks, by name."""
    at_once = asyncio.Semaphore(AT_ONCE)
    theirs = await asyncio.gather(*(_theirs(path, place / "trials", at_once) for path in paths.values()))
    command = [os.environ["ORCHARD_PYTHON"], "-c", GRADER, str(place / "store"), str(AT_ONCE)]
    done = await asyncio.create_subprocess_exec(*command, *map(str, paths.values()), stdout=subprocess.PIPE)
    answer, _ = await done.communicate()
    assert done.returncode == 0
    assert sum(rewards is not None for rewards, _ in theirs) > len(paths) / 2
    return [
        f"{name}: {ours['rewards']} here ({ours['said']}), {rewards} there ({said})"
        for name, ours, (rewards, said) in zip(paths, json.loads(answer), theirs, strict=True)
        if ours["rewards"] != rewards
    ]


async def _theirs(
    path: Path, trials: Path, at_once: asyncio.Semaphore
) -> tuple[dict[str, float] | None, str]:
    """The rewards, or why there are none."""
    config = TrialConfig(
        task=TaskConfig(path=path),
        trials_dir=trials,
        trial_name=path.name,
        agent=AgentConfig(name="oracle"),
        environment=EnvironmentConfig(import_path=PLACE),
    )
    async with at_once:
        result = await (await Trial.create(config)).run()
    why: Any = result.exception_info
    if result.verifier_result is None:
        return None, "" if why is None else f"{why.exception_type}: {why.exception_message}"
    return {name: float(value) for name, value in (result.verifier_result.rewards or {}).items()}, ""


def _made(path: Path, kind: Kind, script: str | None) -> Path:
    place = '[environment]\ndocker_image = "host"\nworkdir = "/tmp"\nnetwork_mode = "no-network"\n'
    artifacts = 'artifacts = ["/tmp/out"]\n' if "separate" in kind.toml else ""
    files = {
        "task.toml": artifacts + place + kind.environment + kind.toml,
        "instruction.md": "Solve it.\n",
        "tests/test.sh": kind.test,
        "solution/solve.sh": script or kind.solution,
        **dict(kind.files),
    }
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text, newline="")
        if name == "environment/run":
            (path / name).chmod(0o755)
    return path
