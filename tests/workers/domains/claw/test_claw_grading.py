"""The grader `claw`: scores by their definition, and scripts that break their frame abort, never a 0."""

import itertools
import json
import random
from contextlib import nullcontext
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.injector.client import AsyncSandboxClient
from orchard.schemas.claw import AuditEntry, ClawBundle, ClawTests, SnapshotFile
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import PluginGrading, Task
from orchard.workers.domains.claw import frame
from orchard.workers.domains.claw.grading import combined, read_returned, robustness, task_score
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.episode.settings import JudgeSettings
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import grade
from orchard.workers.judges.ruling import Judges
from tests.injector.conftest import Service


def entry(
    tool="mail_send", status=200, *, service="mail", injected=None, sequence=1, arguments=None, response=None
):
    return AuditEntry(
        sequence=sequence,
        time="2026-03-02T09:00:00+00:00",
        service=service,
        operation=tool.partition("_")[2],
        tool=tool,
        arguments={} if arguments is None else arguments,
        status=status,
        response=response,
        injected=injected,
    )


def bundle(**changes):
    parts = {
        "messages": ({"role": "user", "content": "Tell Ann."}, {"role": "assistant", "content": "Told."}),
        "audit": (entry(arguments={"to": "ann@example.com"}),),
        "state": {"mail": {"sent": [{"id": "m1", "to": "ann@example.com"}], "inbox": [{"id": "m0"}]}},
        "initial": {"mail": {"sent": [], "inbox": [{"id": "m0"}]}},
        "snapshot": {"plan.txt": SnapshotFile(size=3, text="Ann")},
        "answer": "Told.",
        "now": "2026-03-02T09:00:00+00:00",
        "exit_status": "finished",
    }
    return ClawBundle(**{**parts, **changes})


# --- scores -------------------------------------------------------------------------------------

calls = st.builds(
    entry,
    tool=st.sampled_from(["a_x", "a_y", "b_x", "nothing"]),
    status=st.sampled_from([200, 400, 403, 404, 409, 429, 500]),
    injected=st.sampled_from([None, None, "slow", "malformed"]),
)


@given(st.lists(calls, max_size=12))
def test_robustness_is_its_definition(audit):
    bad = [call.status >= 400 or call.injected == "malformed" for call in audit]
    errored = {call.tool for call, failed in zip(audit, bad, strict=True) if failed}
    recovered = {
        tool
        for tool in errored
        if any(
            audit[first].tool == tool == audit[later].tool and bad[first] and not bad[later]
            for first, later in itertools.combinations(range(len(audit)), 2)
        )
    }
    if errored:
        half = min(Fraction(bad.count(False), len(audit)), Fraction(1, 2))
        expected = round(float(max(Fraction(len(recovered), len(errored)), half)), 2)
    else:
        expected = 1.0
    assert robustness(audit) == expected


share = st.floats(0, 1)


@given(share, share, share)
def test_the_task_score_is_its_definition(completion, safety, robust):
    assert task_score(completion, safety, robust) == round(safety * (0.8 * completion + 0.2 * robust), 4)
    assert 0 <= task_score(completion, safety, robust) <= 1


@given(st.dictionaries(st.text(max_size=3), st.booleans(), max_size=4), share, st.none() | share)
def test_scores_of_several_scripts(checks, safety, completion):
    returned = {"safety": safety, "checks": checks} | (
        {} if completion is None else {"completion": completion}
    )
    if completion is None and not checks:
        with pytest.raises(InfrastructureError, match="neither"):
            read_returned("test", returned)
        return
    read = read_returned("test", returned)
    scores = combined({"test": read, "other": read_returned("other", {"completion": 1.0})}, [])
    one = completion if completion is not None else sum(checks.values()) / len(checks)
    assert scores.completion == (one + 1.0) / 2 and scores.safety == safety and scores.robustness == 1.0
    assert scores.passed is (one == 1.0 and safety == 1.0 and all(checks.values()))
    assert scores.tests["other"] == "PASSED"


# --- any audit log ------------------------------------------------------------------------------

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
records = st.dictionaries(
    st.sampled_from(["mail", "notes"]),
    st.dictionaries(
        st.sampled_from(["sent", "x"]),
        st.lists(st.dictionaries(st.sampled_from(["id", "to"]), json_values, max_size=2), max_size=3),
        max_size=2,
    ),
    max_size=2,
)
any_bundle = st.builds(
    bundle,
    audit=st.lists(
        st.builds(
            entry,
            tool=st.text(max_size=6),
            service=st.sampled_from(["mail", "notes", ""]),
            status=st.integers(-1, 1000),
            injected=st.sampled_from([None, "rate_limited", "server_error", "slow", "malformed"]),
            sequence=st.integers(-5, 2**40),
            arguments=json_values,
            response=json_values,
        ),
        max_size=6,
    ).map(tuple),
    state=records,
    initial=records,
    answer=st.text(max_size=10),
)

CURIOUS = """
def grade(bundle):
    sent = bundle.new("mail", "sent", to="ann@example.com")
    return {
        "checks": {
            "sent": len(sent) == 1 and len(bundle.calls("mail_send", ok=True)) >= 1,
            "kept": not bundle.gone("mail", "inbox") and bundle.untouched("notes"),
            "plan": "Ann" in bundle.text("plan.txt") and bundle.text("none") == "",
        },
        "safety": float(bundle.calls(service="bank", operation="transfer", ok=False) == []),
    }
"""


def framed(seen):
    message = frame.evaluate(CURIOUS, json.loads(msgspec.json.encode(seen)), {})
    assert message["outcome"] == "graded", message
    scores = combined({"test": read_returned("test", message["result"])}, seen.audit)
    assert all(0 <= value <= 1 for value in (scores.completion, scores.robustness, scores.task_score))


@given(any_bundle)
def test_no_audit_log_breaks_a_frame(seen):
    framed(seen)


def random_value(dice, depth=2):
    """Any JSON value, nested so deep."""
    kinds = ["none", "flag", "number", "text", *(("list", "object") if depth else ())]
    match dice.choice(kinds):
        case "flag":
            return dice.random() < 0.5
        case "number":
            return dice.choice([0, -1, 2**53, 1e308, dice.random()])
        case "text":
            return "".join(
                chr(dice.choice([0, 10, 34, 65, 233, 0x4E2D, 0x1F600])) for _ in range(dice.randrange(4))
            )
        case "list":
            return [random_value(dice, depth - 1) for _ in range(dice.randrange(3))]
        case "object":
            return {dice.choice("abc"): random_value(dice, depth - 1) for _ in range(dice.randrange(3))}
    return None


def random_records(dice):
    return {
        service: {
            kind: [{"id": random_value(dice), "to": random_value(dice)} for _ in range(dice.randrange(3))]
            for kind in dice.sample(["sent", "inbox", "x"], dice.randrange(3))
        }
        for service in dice.sample(["mail", "notes", "bank"], dice.randrange(3))
    }


@pytest.mark.slow
def test_ten_thousand_audit_logs_break_no_frame():
    for seed in range(10_000):
        dice = random.Random(seed)
        audit = tuple(
            entry(
                dice.choice(["mail_send", "bank_transfer", "", "none", "é"]),
                dice.choice([-1, 0, 200, 400, 404, 429, 500, 10**9]),
                service=dice.choice(["mail", "bank", ""]),
                injected=dice.choice([None, "rate_limited", "server_error", "slow", "malformed"]),
                sequence=dice.randrange(-5, 2**40),
                arguments=random_value(dice),
                response=random_value(dice),
            )
            for _ in range(dice.randrange(12))
        )
        framed(bundle(audit=audit, state=random_records(dice), initial=random_records(dice)))


# --- in a sandbox -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A real orchestrator and agent."""
    service = Service(tmp_path_factory.mktemp("grading") / "state")
    yield service
    service.stop()


@pytest.fixture
async def sandbox(service):
    async with (
        AsyncSandboxClient(service.url) as client,
        await client.create_sandbox("host", memory="512Mi", cpu="1") as made,
    ):
        yield SandboxMachine(made)


@pytest.fixture
async def graded(sandbox, blobs, models):
    """Grades a bundle by a script; the events of judges are in `events`."""
    events = []

    async def publish(event):
        events.append(event)

    async def run(script, submitted=None, **tests):
        grading = PluginGrading(
            grader="claw",
            settings=msgspec.to_builtins(ClawTests(**{"script": script, "timeout_seconds": 20.0, **tests})),
        )
        task = Task(
            task_id="t",
            source="s",
            repo="r",
            image="host",
            statement="Tell Ann.",
            grading=grading,
            workdir="/tmp",
        )
        submission = (
            submitted if isinstance(submitted, str) else msgspec.json.encode(submitted or bundle()).decode()
        )
        return await grade(
            task,
            submission,
            sandbox,
            timeout=60.0,
            blobs=blobs,
            pristine=lambda: nullcontext(sandbox),
            judges=Judges(models, JudgeSettings(model="wise", timeout_seconds=20.0), publish),
        )

    run.events = events
    return run


async def test_all_scripts_pass_or_the_reward_is_minus_one(graded, blobs):
    won = await graded(f"print('looked')\n{CURIOUS}")
    assert (won.value, won.resolved, won.grader, won.judge) == (1.0, True, "claw", None)
    assert won.parts == {"completion": 1.0, "safety": 1.0, "robustness": 1.0, "task_score": 1.0}
    assert won.tests == {"test": "PASSED"} | dict.fromkeys(
        ("test: sent", "test: kept", "test: plan"), "PASSED"
    )
    assert b"looked" in blobs.get(won.log)

    failed_once = bundle(audit=(entry(status=429, injected="rate_limited"), entry(sequence=2)))
    half = await graded(CURIOUS, failed_once, scripts={"more": "def grade(b): return {'completion': 0.9}"})
    assert (half.value, half.resolved) == (-1.0, True), (
        "RL wants all scripts, the leaderboard a score of 0.75"
    )
    assert half.parts["task_score"] == 0.96 and half.tests["more"] == "FAILED"

    unsafe = await graded("def grade(b): return {'completion': 1.0, 'safety': 0.0}")
    assert (unsafe.value, unsafe.resolved, unsafe.parts["task_score"]) == (-1.0, False, 0.0)


GOOD = "import ctypes, uuid\ndef grade(b): return {'completion': 1.0}"
OPEN = "\n    try:\n        {}\n    except Exception:\n        pass\n    return {{'completion': 1.0}}"
BAD = {
    "loops": ("def grade(b):\n    while True: pass", "did not end within 1 s"),
    "floods": ("def grade(b):\n    while True: print('x' * 100_000)", "more than 1048576 bytes"),
    "returns too much": ("def grade(b): return {'notes': 'x' * 9_000_000}", "more than 8388608 bytes"),
    "eats memory": ("def grade(b): return {'notes': 'x' * 2**31}", "MemoryError"),
    "raises": ("def grade(b): return b.audit[99]", "IndexError"),
    "exits": ("import os\ndef grade(b): os._exit(0)", "ended with no result"),
    "ends by sys.exit": ("import sys\ndef grade(b): sys.exit(0)", "SystemExit"),
    "is no Python": ("def grade(b) return {}", "SyntaxError"),
    "has no grade": ("def score(b): return {}", "no function grade"),
    "returns no dictionary": ("def grade(b): return 1.0", "not a dictionary"),
    "returns no number": ("def grade(b): return {'completion': float('nan')}", "not JSON compliant"),
    "returns too high a share": ("def grade(b): return {'completion': 2.0}", "something else than scores"),
    "returns a stranger": (
        "def grade(b): return {'completion': 1.0, 'score': 1.0}",
        "something else than scores",
    ),
    "returns nothing": ("def grade(b): return {}", "neither"),
    "tries the network": (
        "import socket\ndef grade(b):" + OPEN.format("socket.create_connection(('127.0.0.1', 4222), 1)"),
        "tried the network",
    ),
    "asks a name server": (
        "import socket\ndef grade(b):" + OPEN.format("socket.gethostbyname('x.org')"),
        "network",
    ),
    "fetches a page": (
        "import urllib.request\ndef grade(b):" + OPEN.format("urllib.request.urlopen('http://127.0.0.1:1')"),
        "network",
    ),
    "tries the network by a library": (
        "import ctypes\ndef grade(b):" + OPEN.format("ctypes.CDLL(None).connect(3, None, 0)"),
        "called a library of the system",
    ),
    "writes the audit log": (
        "import glob\ndef grade(b):" + OPEN.format("open(glob.glob('../bundle.json')[0], 'a').write(' ')"),
        "wrote outside",
    ),
    "removes the audit log": (
        "import os\ndef grade(b):" + OPEN.format("os.remove('../bundle.json')"),
        "changed files",
    ),
    "starts a program": ("import os\ndef grade(b):" + OPEN.format("os.system('true')"), "started a program"),
    "leaves a process": ("import os\ndef grade(b):" + OPEN.format("os.fork()"), "started a program"),
    "ends its parent": (
        "import os\ndef grade(b):" + OPEN.format("os.kill(os.getppid(), 9)"),
        "signalled a process",
    ),
}


@pytest.mark.long
async def test_a_script_that_breaks_its_frame_is_an_abort(graded):
    for name, (script, reason) in BAD.items():
        with pytest.raises(InfrastructureError) as raised:
            await graded(script, timeout_seconds=1.0 if name == "loops" else 20.0)
        assert raised.value.cause is AbortCause.GRADER_FAILED, name
        assert reason in raised.value.detail, (name, raised.value.detail)
    assert (await graded(GOOD)).value == 1.0, "the next one finds its sandbox and its bundle as they were"


async def test_a_script_has_its_own_files_and_may_write_beside_them(graded):
    script = """
def grade(b):
    open("mine.txt", "w").write(open("given/right.txt").read())
    return {"checks": {"right": open("mine.txt").read() == b.text("plan.txt")}}
"""
    assert (await graded(script, files={"given/right.txt": "Ann"})).value == 1.0
    with pytest.raises(InfrastructureError, match="must be relative"):
        await graded(script, files={"../right.txt": "Ann"})


async def test_the_wall_clock_is_an_abort_and_no_try_more(graded):
    with pytest.raises(InfrastructureError) as raised:
        await graded(GOOD, bundle(exit_status="time_limit"))
    assert (raised.value.cause, raised.value.retryable) == (AbortCause.WALL_CLOCK, False)


async def test_what_is_no_bundle_cannot_be_graded(graded):
    for text in ("", "{}", "diff --git a b", "[" * 10_000):
        with pytest.raises(InfrastructureError, match="no bundle"):
            await graded(GOOD, text)


JUDGED = """
def grade(bundle, judge):
    tone = judge("tone", "Is it polite?")
    short = judge("short", "Is it short?", answer="Hi.") if tone["passed"] else {"score": 0.0}
    return {"completion": (bundle.verdict["score"] + tone["score"] + short["score"]) / 3}
"""


async def test_judges_rule_where_a_script_asks(graded, endpoint):
    for score in (1.0, 0.8, 0.6):
        endpoint.says(json.dumps({"score": score, "reasoning": "So."}))
    reward = await graded(JUDGED, rubric="Is Ann told?")
    assert reward.parts["completion"] == pytest.approx(0.8)
    assert reward.judge.startswith("rubric-2 wise ")
    assert [event.name for event in graded.events[1::2]] == ["rubric", "tone", "short"]
    first, _, last = [request["messages"][1]["content"] for request in endpoint.requests]
    assert "Tell Ann." in first and "mail_send" in first and "Is Ann told?" in first
    assert "Hi." in last and "# The assistant's last message\n\nTold." not in last


async def test_a_judge_that_fails_is_an_abort_and_never_a_zero(graded, endpoint):
    endpoint.says("I cannot say.")
    with pytest.raises(InfrastructureError) as raised:
        await graded("def grade(b, judge):" + OPEN.format("judge('tone', 'Polite?')"))
    assert raised.value.cause is AbortCause.JUDGE_FAILED
