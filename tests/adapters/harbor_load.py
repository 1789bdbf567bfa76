"""Harbor's own `Task` and Orchard read the same generated directories: the same are refused, and the same
facts follow of the others, but for the differences in the lists."""

import json
import os
import random
import re
import subprocess
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from harbor.lint.models import LintFinding, LintRule
from harbor.lint.task import lint_task
from harbor.models.task.artifacts import effective_artifact_service, with_convention_entry
from harbor.models.task.config import MultiStepRewardStrategy, StepConfig, TaskConfig
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import (
    resolve_effective_verifier_env_config,
    resolve_step_verifier_mode,
    resolve_task_verifier_mode,
    resolve_verifier_environment_definition,
)
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, VerifierConfig
from harbor.trial.network_policy import resolve_trial_network_plan
from harbor.utils.env import resolve_env_vars

from tests.adapters.harbor_generated import task as generated
from tests.adapters.harbor_oddities import odd

NUMBER = int(os.environ.get("ORCHARD_HARBOR_DIRECTORIES", "3000"))
WHOLE = (3000, 39)
"""Number and seed with which each reason in a list shows."""
SEED = int(os.environ.get("ORCHARD_HARBOR_SEED", WHOLE[1]))
REFUSED_HERE = {
    r"the task needs .*, which Orchard does not have": "named in docs/own-tasks.md",
    r"Expected `float` [<>]": "a time limit of nothing, of less, or without end is a mistake",
    r"Expected `(float|int|bool|int \| str)( \| null)?`": "a number is a number, no text and no truth value",
    r"cpu must be positive|memory must be positive|no resource quantity|is not a resource quantity": (
        "a sandbox without a processor or memory cannot be made; Harbor says so when it makes one"
    ),
    r"allowed_hosts has \d+ entries, and a sandbox takes": "a sandbox has a limit of rules",
    r"allowed_hosts: ": "hosts by pattern, ranges and IPv6 addresses are no rules of a sandbox",
    r"is to reach .*, and the tests": "one sandbox has one network",
    r"taken from the machine that runs the tests": "a task holds no secrets; Harbor says so when it runs",
    r"environment.os is 'windows'": "sandboxes are linux",
    r"are to reach different networks": "as above: the steps share their sandbox",
    r"docker-compose.yaml(, service|: a service| asks for)": (
        "what a container engine would do is not dropped in silence"
    ),
    r"has neither an entrypoint nor a command": "what an image starts is known once it is imported",
    r"have a .*\.harborignore": "files that rules leave out are to be deleted",
    r"is no absolute path below": "an artifact is looked for where it was said, in both sandboxes",
    r"cannot be set by a shell": "scripts set the variables",
    r"has WORKDIR .*, and what that is": "the image says it where it is known here",
    r"there is no tests/test.sh": "a directory of that name judges nothing",
    r"- at `\$\.services|Is a directory|compose file in .*: Expected `object`": "docker says so when it runs",
    r"Harbor keeps the artifacts": "of two at one place Harbor drops one, with a line in its log",
    r"has none of this name beside the agent's": "Harbor says so when it runs, or finds nothing",
    r"Expected `str \| null`, got .* `\$.environment.(memory|storage)`": (
        "Harbor ignores a size that is no text; nothing is ignored in silence"
    ),
}
"""What our sentence says of a directory that Harbor loads, and why."""
READ_OTHERWISE = {
    "memory": "none said: 2Gi here, what the machine has there",
    "cpu": "none said: 1 here, what the machine has there",
}
"""Facts that are compared only where the definition says them."""
LINTED = {LintRule.INVALID_TASK_CONFIG, LintRule.UNKNOWN_CONFIG_FIELD}
"""Rules of `harbor lint` about what is read, not about how a task should be."""
SHUT_HERE = "allow_internet = false\nallowed_hosts = []"
"""A definition that says this has no network here, and all of it there: what it says is clear."""

READER = """
import json, sys
from pathlib import Path
from orchard.pipelines.tasks.directories import directory_task, read_directory
from orchard.pipelines.tasks.errors import TaskError
from orchard.workers.episode.networks import asked, check_task
from orchard.workers.episode.stages import stage_task
def facts(read, task):
    own = read.verifier
    return {
        "name": read.name,
        "statement": read.statement,
        "agent seconds": read.asks.agent_seconds,
        "tests seconds": read.timeout_seconds,
        "environment": read.environment,
        "tests variables": read.variables,
        "solution variables": read.solution_variables,
        "image": read.image,
        "workdir": read.workdir,
        "cpu": read.cpu,
        "memory": read.memory,
        "user": read.user,
        "tests user": read.tests_user,
        "network": asked(task),
        "tests network": asked(check_task(task, task.grading.sandbox) if own else task),
        "separate": own is not None,
        "bundled": own is not None and own.bundled,
        "judge image": own.image if own else "",
        "tests": sorted(name for name in read.tests if not name.startswith("link/")),
        "solution": sorted(name for name in read.solution if not name.startswith("link/")),
        "collect": [
            [hook.command, hook.user, hook.timeout_seconds, hook.service or "main"] for hook in read.collect
        ],
        "artifacts": [
            ["main", each] if isinstance(each, str) else [each.service, each.path]
            for each in (own.artifacts if own else ())
        ],
        "least": read.least,
    }
for line in sys.stdin:
    path = Path(line.strip())
    try:
        read = read_directory(path)
        task = directory_task(read, "image", verifier_image="other")
    except TaskError as error:
        print(json.dumps({"refused": str(error)}), flush=True)
        continue
    if read.stages:
        told = {"name": read.name, "combined": read.combined}
        told["steps"] = [
            facts(stage, stage_task(task, number)) | {
                "material": sorted(stage.material),
                "healthcheck": any("healthcheck" in text for text in stage.setup),
            }
            for number, stage in enumerate(read.stages)
        ]
    else:
        told = facts(read, task)
    told["healthcheck"] = len(read.setup) > 1
    told["services"] = sorted(name for service in read.services for name in service.service.names)
    print(json.dumps(told | {"notes": read.notes}), flush=True)
"""


def test_what_harbor_loads_is_read_and_what_it_refuses_is_refused(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    paths = [generated(tmp_path / f"task-{number}", chance) for number in range(NUMBER)]
    for path in paths[::2]:
        odd(path, chance)
    ours = _ours(paths)
    silent, told, both = [], Counter[str](), 0
    for path, read in zip(paths, ours, strict=True):
        theirs = _theirs(path)
        if "refused" in theirs and "refused" in read:
            continue
        if "refused" in theirs:
            silent.append(f"{path}: read here, refused there: {theirs['refused']}")
        elif "refused" in read:
            known = next(
                (why for said, why in REFUSED_HERE.items() if re.search(said, read["refused"])), None
            )
            told[known or ""] += 1
            if known is None:
                silent.append(f"{path}: loaded there, refused here: {read['refused']}")
        else:
            both += 1
            silent += _differences(path, read, theirs)
    assert not silent, "\n".join(silent[:20]) + f"\n{len(silent)} differences"
    assert both > NUMBER / 10
    unused = set(REFUSED_HERE.values()) - set(told)
    assert not unused or (NUMBER, SEED) != WHOLE, f"no directory shows these differences any more: {unused}"


def _ours(paths: list[Path]) -> list[dict[str, Any]]:
    names = "".join(f"{path}\n" for path in paths)
    command = [os.environ["ORCHARD_PYTHON"], "-c", READER]
    done = subprocess.run(command, input=names, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _theirs(path: Path) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            task = Task(path)
    except Exception as error:  # whatever it raises is a refusal
        return {"refused": f"{type(error).__name__}: {error}"}
    config, own = task.config, {"config": task.config}
    own["healthcheck"] = config.environment.healthcheck is not None
    own["services"] = _services(path)
    if not config.steps:
        return own | {"statement": task.instruction} | _facts(task, None)
    return own | {
        "name": task.name,
        "combined": (config.multi_step_reward_strategy or MultiStepRewardStrategy.MEAN).value,
        "steps": [_facts(task, step) for step in config.steps],
    }


def _facts(task: Task, step: StepConfig | None) -> dict[str, Any]:
    config, paths = task.config, task.paths
    agent, judge = (config.agent, config.verifier) if step is None else (step.agent, step.verifier)
    mode = resolve_task_verifier_mode(config) if step is None else resolve_step_verifier_mode(config, step)
    definition = resolve_verifier_environment_definition(config, paths, step)
    plan = resolve_trial_network_plan(
        config,
        AgentConfig(name="nop"),
        EnvironmentConfig(),
        VerifierConfig(),
        step,
        verifier_mode=mode,
        env_config=resolve_effective_verifier_env_config(config, step),
    )
    bundled = bool(definition and definition.bundled_tests)
    tests = [paths.tests_dir] if step is None else [paths.tests_dir, paths.step_tests_dir(step.name)]
    solution = paths.solution_dir if step is None else paths.step_solution_dir(step.name)
    hooks = [*config.verifier.collect, *(step.verifier.collect if step else ())]
    found = {
        "name": task.name if step is None else step.name,
        "agent seconds": config.agent.timeout_sec if agent.timeout_sec is None else agent.timeout_sec,
        "tests seconds": judge.timeout_sec,
        "environment": _resolved(config.environment.env),
        "tests variables": _resolved({**config.verifier.env, **judge.env}),
        "solution variables": {"DEBIAN_FRONTEND": "noninteractive", **(_resolved(config.solution.env) or {})},
        "image": config.environment.docker_image or "",
        "workdir": config.environment.workdir or "",
        "cpu": config.environment.cpus and f"{config.environment.cpus:g}",
        "memory": config.environment.memory_mb and f"{config.environment.memory_mb}Mi",
        "user": _user(config.agent.user if agent.user is None else agent.user),
        "tests user": _user(config.verifier.user if judge.user is None else judge.user),
        "network": _network(plan.agent_phase),
        "tests network": _network(plan.verifier_phase),
        "separate": definition is not None,
        "bundled": bundled,
        "judge image": (definition and definition.config.docker_image) or "",
        "tests": [] if bundled else _below(*tests),
        "solution": _below(solution if solution.is_dir() else paths.solution_dir),
        "collect": [[hook.command, _user(hook.user), hook.timeout_sec, hook.service] for hook in hooks],
        "artifacts": [] if definition is None else _artifacts(config, step),
    }
    if step is None:
        return found
    least = step.min_reward if step.min_reward is not None else {}
    return found | {
        "statement": task.step_instruction(step.name),
        "least": least if isinstance(least, dict) else {"reward": least},
        "material": _below(paths.step_workdir_dir(step.name)),
        "healthcheck": step.healthcheck is not None,
    }


def _artifacts(config: TaskConfig, step: StepConfig | None) -> list[list[str]]:
    """Those that a verifier of its own gets, once each."""
    entries = [*config.artifacts, *(step.artifacts if step else ())]
    found = [
        (effective_artifact_service(each), each.source.rstrip("/"))
        for each in with_convention_entry(entries, convention_source="/logs/artifacts")
    ]
    return [list(each) for each in dict.fromkeys(found)]


def _below(*folders: Path) -> list[str]:
    return sorted(
        {
            each.relative_to(folder).as_posix()
            for folder in folders
            for each in folder.rglob("*")
            if each.is_file()
        }
    )


def _services(path: Path) -> list[str]:
    """Of its compose file, beside the agent's."""
    file = path / "environment" / "docker-compose.yaml"
    found = yaml.safe_load(file.read_text()) if file.is_file() else None
    return sorted(name for name in (found or {}).get("services", ()) if name != "main")


def _resolved(variables: Mapping[str, str]) -> dict[str, str] | None:
    try:
        return resolve_env_vars(dict(variables))
    except ValueError:
        return None


def _user(user: str | int | None) -> str:
    return "" if user is None else str(user)


def _network(policy: Any) -> list[Any]:
    """As ours are written: blocked, and the hosts at the ports of the web."""
    hosts = [f"{host}:{port}" for host in policy.allowed_hosts for port in (443, 80)]
    return [policy.network_mode.value != "public", hosts]


def _differences(path: Path, ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    config: TaskConfig = theirs.pop("config")
    found = _unlike(path, "", ours, theirs)
    ignored = next((note for note in ours["notes"] if note.startswith("Harbor ignores ")), "")
    composed = any(path.rglob("docker-compose.yaml"))  # harbor lint reads those with docker
    for finding in [] if composed else _linted(path):
        field = re.sub(r"\[\d+\]", "", finding.message.partition("'")[2].partition("'")[0])
        if finding.rule is not LintRule.UNKNOWN_CONFIG_FIELD or f" {field}" not in ignored:
            found.append(f"{path}: harbor lint says {finding.rule}: {finding.message}; here: {ignored!r}")
    if config.environment.storage_mb is not None and "MiB of disk" not in " ".join(ours["notes"]):
        found.append(f"{path}: its storage is dropped in silence")
    return found


def _linted(path: Path) -> list[LintFinding]:
    try:
        return lint_task(path, selected_rules=LINTED)
    except UnicodeDecodeError:  # a script that is no text; the rules are about task.toml
        return []


def _unlike(path: Path, where: str, ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    found = []
    for fact, value in theirs.items():
        if fact in READ_OTHERWISE and value is None:
            continue
        if "network" in fact and (path / "environment" / "docker-compose.yaml").exists():
            continue  # what its compose file says, Harbor leaves to docker
        if "network" in fact and SHUT_HERE in (path / "task.toml").read_text():
            continue
        if fact == "steps":
            for mine, other in zip(ours[fact], value, strict=True):
                found += _unlike(path, f"step {other['name']}: ", mine, other)
        elif ours[fact] != value:
            found.append(f"{path}: {where}{fact}: {ours[fact]!r} here, {value!r} there")
    return found
