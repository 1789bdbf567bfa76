"""As harbor_verdicts, for tasks of several steps."""

from pathlib import Path
from typing import NamedTuple

from tests.adapters.harbor_verdicts import JSON, TXT, differences

PLACE = '[environment]\ndocker_image = "host"\nworkdir = "/tmp"\nnetwork_mode = "no-network"\n'
LEAVES = "echo x >> turns\n"
TURNS = f"wc -l < turns > {TXT} || echo 0 > {TXT}\n"


class Part(NamedTuple):
    """A step, whose tests by default give the number of steps that the agent has done."""

    toml: str = ""
    test: str | None = TURNS
    solution: str | None = LEAVES
    files: tuple[tuple[str, str], ...] = ()
    """Below the step's folder."""


def _numbers(text: str) -> str:
    return f"[ -e turns ] && echo '{text}' > {JSON} || echo '{{\"reward\": 0}}' > {JSON}\n"


class Case(NamedTuple):
    parts: tuple[Part, ...]
    first: str = ""
    """Keys of the task."""
    toml: str = ""
    """Sections of the task."""
    files: tuple[tuple[str, str], ...] = ()


FINAL = 'multi_step_reward_strategy = "final"\n'
SEPARATE = 'verifier.environment_mode = "separate"\n'
CASES = {
    "mean": Case((Part(), Part(), Part())),
    "final": Case((Part(), Part()), FINAL),
    "one step": Case((Part(),)),
    "keys that some have": Case((Part(test=_numbers('{"a": 1, "b": 2}')), Part(test=_numbers('{"b": 4}')))),
    "the last one's keys": Case(
        (Part(test=_numbers('{"a": 1, "b": 2}')), Part(test=_numbers('{"b": 4}'))), FINAL
    ),
    "below its least": Case((Part("min_reward = 2"), Part(), Part())),
    "at its least": Case((Part("min_reward = 1"), Part())),
    "a key below": Case((Part("min_reward = {a = 1, b = 3}", _numbers('{"a": 1, "b": 2}')), Part())),
    "a key that is missing": Case(
        (Part("min_reward = {c = 0}", _numbers('{"a": 1, "b": 2}')), Part()), FINAL
    ),
    "an older check of the whole": Case(
        (Part(test=None), Part()), files=(("tests/test.sh", f"echo 5 > {TXT}\n"),)
    ),
    "files of both tests": Case(
        (
            Part(
                test=f"echo $(($(cat /tests/shared) + $(cat /tests/own))) > {TXT}\n",
                files=(("tests/own", "2\n"),),
            ),
            Part(),
        ),
        files=(("tests/shared", "1\n"), ("tests/own", "7\n")),
    ),
    "a solution of the whole": Case(
        (Part(solution=None), Part()), files=(("solution/solve.sh", LEAVES * 3),)
    ),
    "a file before the step": Case(
        (Part(), Part(test=f"cat given > {TXT}\n", files=(("workdir/given", "0.25"), ("workdir/sub/x", "y"))))
    ),
    "a set-up": Case(
        (Part(), Part(files=(("workdir/setup.sh", "id -u >> turns\n"),)), Part()),
        toml='[agent]\nuser = "root"\n',
    ),
    "a set-up that fails at once": Case(
        (Part(), Part(files=(("workdir/setup.sh", "wc -l < turns; exit 0\n"),)))
    ),
    "a healthcheck": Case(
        (
            Part(),
            Part(
                'healthcheck = {command = "echo x >> turns; [ $(wc -l < turns) -ge 3 ]", interval_sec = 0.1}'
            ),
        )
    ),
    "users": Case(
        (
            Part(
                'agent.user = "daemon"',
                f"expr $(stat -c %U made | wc -c) + $(id -u) > {TXT}\n",
                "rm -f made; touch made\n",
            ),
            Part("verifier.user = 2", f"id -u > {TXT}\n"),
        ),
        toml="[verifier]\nuser = 1\n",
    ),
    "variables": Case(
        (Part('verifier.env = {A = "2"}', f"echo $A$B > {TXT}\n"), Part("", f"echo $A$B > {TXT}\n")),
        toml='[verifier.env]\nA = "1"\nB = "1"\n',
    ),
    "what the tests leave": Case(
        (
            Part(test=f"mkdir -p /tests/left; echo 9 > /logs/verifier/note; {TURNS}"),
            Part(
                solution="ls /tests | wc -l > seen; ls /logs/verifier | wc -l >> seen; echo 5 >> seen\n",
                test=f"[ -e seen ] && echo $(($(paste -sd + seen))) > {TXT} || echo 0 > {TXT}\n",
            ),
        ),
    ),
    "a process": Case(
        (
            Part(
                solution="sleep 600 > /dev/null 2>&1 & echo $! > pid\n",
                test=f"kill -0 $(cat pid) && echo 1 > {TXT} || echo 0 > {TXT}\n",
            ),
            Part(test=f"kill -0 $(cat pid) && echo 1 > {TXT} || echo 0 > {TXT}\n"),
        )
    ),
    "verifiers of their own": Case(
        (
            Part(SEPARATE + 'artifacts = ["/tmp/turns"]', f"wc -l < /tmp/turns > {TXT} || echo 0 > {TXT}\n"),
            Part(),
        )
    ),
    "a verifier of the whole": Case(
        (
            Part('artifacts = ["/tmp/turns"]', f"wc -l < /tmp/turns > {TXT} || echo 0 > {TXT}\n"),
            Part('verifier.environment_mode = "shared"'),
        ),
        toml='[verifier]\nenvironment_mode = "separate"\n',
    ),
    "commands at the end": Case(
        (Part("verifier.collect = [{command = 'echo x >> turns'}]"), Part()),
        toml="[verifier]\ncollect = [{command = 'echo x >> turns'}]\n",
    ),
    "a step that breaks the first": Case(
        (Part(), Part(solution="rm turns\n"), Part(test=f"ls | grep -c turns > {TXT}\n"))
    ),
    "a canary": Case((Part(files=(("instruction.md", "# canary x\n\nDo.\n"),)), Part())),
}
AGENTS = {"right": None, "idle": "true\n"}


async def test_scripted_agents_get_the_same_numbers_from_steps(tmp_path: Path) -> None:
    paths = {
        f"{name}, {agent}": _made(tmp_path / f"{number}-{agent}", case, script)
        for agent, script in AGENTS.items()
        for number, (name, case) in enumerate(CASES.items())
    }
    assert await differences(paths, tmp_path) == []


def _made(path: Path, case: Case, script: str | None) -> Path:
    toml, files = case.first + PLACE + case.toml, dict(case.files)
    if script is not None and "solution/solve.sh" in files:
        files["solution/solve.sh"] = script
    for number, part in enumerate(case.parts):
        toml += f'[[steps]]\nname = "step {number}"\n{part.toml}\n'
        own = {"instruction.md": "Do it.\n", **dict(part.files)}
        if part.test is not None:
            own["tests/test.sh"] = part.test
        if part.solution is not None:
            own["solution/solve.sh"] = script or part.solution
        files |= {f"steps/step {number}/{name}": text for name, text in own.items()}
    for name, text in {**files, "task.toml": toml}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path
