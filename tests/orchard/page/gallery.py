"""Rollouts with all that pages show: services, judges, tokens, subagents, pictures, runs, an evaluation."""

import msgspec

from orchard.page.compare import ComparedArm
from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import EvaluationPlanned
from orchard.schemas.claw import ServiceCalled
from orchard.schemas.judging import JudgeRuled
from orchard.schemas.messages import TokenRecord, VersionRun
from orchard.schemas.notes import RolloutNoted
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import SWETests, Task
from orchard.schemas.training import PolicyStep
from orchard.storage.blobs import BlobStore
from tests.gui_log import GuiAuthor
from tests.orchard.test_abort_reasons import KEY, aborted
from tests.trajectory_log import Author

NOTHING = BlobRef(sha256="0" * 64, size=1)
STATEMENT = (
    """# The sum of *no* numbers

`sum_all([])` raises, see [the report](https://pages.example/issues/7):

```python
assert sum_all([]) == 0
```

| input | wanted |
|---|---:|
| `[]` | 0 |

<details>Not a fold of the page</details>

"""
    + "Repair it.\n" * 90
)
FIRST, SECOND = ComparedArm("first", "mini-swe-agent", "m"), ComparedArm("second", "mini-swe-agent", "m")


def assisted(author: Author) -> list[e.Event]:
    """A rollout with three calls of a service, one of which failed on purpose, and two judgements."""
    made = author.rollout(0, ["ls"], resolved=True, task="errand")
    name = made[0].rollout_id or ""
    for number, (status, injected) in enumerate([(200, None), (429, "rate_limited"), (200, None)], 1):
        called = ServiceCalled(
            number=number,
            task_time="2026-04-10T09:00:00",
            service="mail",
            operation="send",
            tool="mail_send",
            arguments=f'{{"n": {number}}}',
            status=status,
            response="x" * 5_000 if number == 3 else "sent",
            injected=injected,
        )
        made.insert(-1, author.event(called, name))
    for score, fault in ((0.75, ""), (None, "the judge gave no number")):
        ruled = JudgeRuled(
            name="rubric",
            protocol="points/1",
            prompt_hash="0",
            model="judge",
            endpoint="default",
            calls=1,
            cost_usd=None,
            score=score,
            passed=None if score is None else score > 0.5,
            reason="polite",
            fault=fault,
        )
        made.insert(-1, author.event(ruled, name))
    return made


def sampled(author: Author) -> list[e.Event]:
    """A rollout of a policy whose tokens are known, of two versions."""
    ids = tuple(range(1000, 1120))
    tokens = TokenRecord(
        ids=ids,
        logprobs=tuple(-0.01 * (n * n % 700) for n in range(len(ids))),
        prompt_ids=tuple(range(60)),
        versions=(VersionRun(start=0, version=4), VersionRun(start=70, version=5)),
    )
    return author.rollout(0, ["ls", "pwd"], resolved=True, task="sampled", tokens=lambda *_: tokens)


def compared() -> list[e.Event]:
    """Two campaigns of which one solves every third and one every second task, as evaluations."""
    found: list[e.Event] = []
    for arm, every in ((FIRST, 3), (SECOND, 2)):
        author = Author(arm.campaign)
        plan = e.CampaignSubmitted(
            spec=NOTHING, spec_hash="x", size=24, tasks=12, harnesses=("h",), models=("m",), samples=2
        )
        planned = EvaluationPlanned(suite=NOTHING, task_sets={"swe-bench": "Verified"}, k=(1, 2))
        found += [author.event(plan, "", None), author.event(planned, "", None)]
        for number in range(24):
            tests = {"a": "PASSED", "b": "FAILED" if number % every else "PASSED"}
            found += author.rollout(
                number // 12,
                ["ls"] * (1 + number % 5),
                resolved=not number % every,
                task=f"task-{number % 12}",
                repo=f"o/r{number % 4}",
                tests=tests,
            )
    return found


def imported(task: str) -> e.TaskImported:
    """A task that nobody has proven."""
    counts = {"fail_to_pass": 1, "pass_to_pass": 1}
    return e.TaskImported(
        task_id=task, task_hash="h", source="s", repo="o/r", image="i", blob=NOTHING, **counts
    )  # type: ignore[arg-type]


def submitted(author: Author, size: int) -> e.Event:
    plan = e.CampaignSubmitted(
        spec=NOTHING, spec_hash="x", size=size, tasks=1, harnesses=("h",), models=("m",), samples=size
    )
    return author.event(plan, "", None)


def mixed() -> list[e.Event]:
    """A campaign with 5 rollouts refused, 4 whose sandbox died, 2 cancelled, 3 unresolved, 9 resolved and 1
    open; two tasks that are not proven, one of them without a rollout; and a campaign of another task."""
    author, other = Author("mixed"), Author("other")
    found = [submitted(author, 24)]
    causes = [(KEY, AbortCause.LLM_REFUSED)] * 5 + [("gone", AbortCause.SANDBOX_DIED)] * 4
    for number, (detail, cause) in enumerate([*causes, *[("", AbortCause.CANCELLED)] * 2]):
        found += aborted(author, number, detail, cause)
    for number in range(12):
        found += author.rollout(0, ["ls"], resolved=number > 2, task=f"task-{number}")
    found += author.rollout(0, ["ls"], resolved=True, task="waits")[:1]
    found += [author.event(imported(task), "", None) for task in ("task-0", "untried")]
    return [*found, submitted(other, 1), *other.rollout(0, ["ls"], resolved=True, task="elsewhere")]


def noted(author: Author, blobs: BlobStore) -> list[e.Event]:
    """A rollout of a task whose words and tests are known, with notes."""
    grading = SWETests(test_patch="", test_command="", fail_to_pass=("new",), pass_to_pass=("old", "kept"))
    task = Task(task_id="noted", source="s", repo="a/b", image="i", statement=STATEMENT, grading=grading)
    tests = {"new": "FAILED", "old": "FAILED", "kept": "PASSED", "other": "ERROR"}
    blob = blobs.put(msgspec.json.encode(task))
    made = author.rollout(0, ["ls", "make"] * 3, resolved=False, task="noted", tests=tests, blob=blob)
    said = RolloutNoted(author="Ada", text="never ran the test", labels=("lazy",), score=0.25, turn=2)
    return [*made, author.event(said, made[0].rollout_id or "", None)]


def trained() -> list[e.Event]:
    """Two runs of reinforcement learning."""
    found = []
    for run, gain in (("rl-1", 0.004), ("rl-2", 0.002)):
        author = Author(run)
        known = dict.fromkeys(PolicyStep.__struct_fields__, 0)
        for step in range(1, 100):
            facts = {"run": run, "step": step, "version": step, "loss": 1 / step, "pass_rate": gain * step}
            found.append(author.event(PolicyStep(**{**known, **facts}), "", None))  # type: ignore[arg-type]
    return found


def gallery(blobs: BlobStore) -> list[e.Event]:
    """All of it."""
    return [
        *compared(),
        *trained(),
        *sampled(Author("policy")),
        *assisted(Author("desk")),
        *noted(Author("noted"), blobs),
        *mixed(),
        *GuiAuthor(blobs).played("g1", 4),
    ]
