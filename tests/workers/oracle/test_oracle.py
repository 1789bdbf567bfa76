"""The oracle over real HTTP, and whole rollouts with it: harness, real commands, real grading."""

from collections import defaultdict
from contextlib import nullcontext
from statistics import fmean

import openai
import pytest

from orchard.pipelines.domains.swe.repairs import Split, repair_tasks
from orchard.schemas.campaigns import Budget, ModelSpec, Timeouts
from orchard.schemas.llm_calls import LLMCall, ModelKind
from orchard.schemas.outcomes import ExitStatus
from orchard.workers.domains.swe.oracle.edits import COMMAND_LIMIT, edit_commands, heredoc, twist, wrong_edit
from orchard.workers.domains.swe.oracle.script import play
from orchard.workers.episode.diffs import parse_diff
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.graders import grade
from orchard.workers.harnesses import get_harness
from orchard.workers.harnesses.bash_prompts import BASH_TOOL
from orchard.workers.harnesses.interface import Episode
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings
from orchard.workers.oracle.behaviours import DEFAULT_MIX, Behaviour, chance, checked_mix, draw
from orchard.workers.oracle.server import OracleServer


@pytest.fixture
def task(quick_task):
    return quick_task


@pytest.fixture
async def oracle(task):
    async with OracleServer(lambda: [task]) as server:
        yield server


@pytest.fixture
async def client(oracle):
    async with openai.AsyncOpenAI(base_url=oracle.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def play_out(oracle, task, machine, blobs):
    """Run one rollout against the oracle; the result, its reward and the published payloads."""

    async def run(model="oracle", seed=0, budget=None, harness="orchard-bash"):
        published = []

        async def publish(data):
            published.append(data)

        async with ModelClient({"oracle": EndpointSettings(base_url=oracle.url)}) as models:
            result = await get_harness(harness).run(
                Episode(
                    task=task,
                    machine=machine,
                    model=models,
                    student=ModelSpec(name=model, endpoint="oracle"),
                    trace=MessageTree(publish, blobs),
                    budget=budget or Budget(steps=30),
                    timeouts=Timeouts(),
                    seed=seed,
                )
            )
        machine.commands.clear()
        reset = "git reset -q --hard && git clean -fdxq"
        await machine.run(reset, timeout=30, cwd=task.workdir)
        reward = await grade(
            task,
            result.submission,
            machine,
            timeout=120.0,
            blobs=blobs,
            pristine=lambda: nullcontext(machine),
        )
        return result, reward, published

    return run


@pytest.mark.parametrize("seed", [0, 1])
async def test_resolves(play_out, seed):
    result, reward, _ = await play_out("oracle/resolves", seed)
    assert result.exit_status is ExitStatus.SUBMITTED
    assert reward.resolved


@pytest.mark.parametrize("seed", [0, 1])
async def test_a_wrong_edit_is_a_real_diff_that_does_not_resolve(play_out, seed):
    result, reward, _ = await play_out("oracle/wrong_edit", seed)
    assert result.exit_status is ExitStatus.SUBMITTED
    assert parse_diff(result.submission)[0].path == "shop/sums.py"
    assert reward.detail.startswith("applied by")
    assert not reward.resolved


@pytest.mark.long
async def test_it_speaks_in_blocks_of_text_where_the_harness_has_no_tools(play_out):
    """With every end that there is through tools; a bad answer, which is not shown again, is not repeated."""
    text = "mini-swe-agent-text"
    result, reward, published = await play_out("oracle/resolves", harness=text)
    assert (result.exit_status, reward.resolved) == (ExitStatus.SUBMITTED, True)
    said = [data.content for data in published if getattr(data, "role", None) == "assistant"]
    assert said and all(one.count("```mswea_bash_command\n") == 1 for one in said)
    wrong, reward, _ = await play_out("oracle/wrong_edit", harness=text)
    assert (wrong.exit_status, reward.resolved) == (ExitStatus.SUBMITTED, False)
    ends = {(await play_out("oracle/malformed", seed, harness=text))[0].exit_status for seed in range(4)}
    assert ends == {ExitStatus.SUBMITTED, ExitStatus.FORMAT_FAILURE}


async def test_gives_up_with_an_empty_submission(play_out):
    result, reward, _ = await play_out("oracle/gives_up")
    assert (result.exit_status, result.submission) == (ExitStatus.SUBMITTED, "")
    assert not reward.resolved


async def test_malformed_calls_end_in_both_ways(play_out):
    ends = {(await play_out("oracle/malformed", seed))[0].exit_status for seed in range(4)}
    assert ends == {ExitStatus.SUBMITTED, ExitStatus.FORMAT_FAILURE}


@pytest.mark.long
async def test_out_of_steps_is_graded_on_the_state_left_behind(play_out):
    ends = {}
    for seed in range(6):
        result, reward, _ = await play_out("oracle/out_of_steps", seed, Budget(steps=12))
        assert result.exit_status is ExitStatus.STEP_LIMIT
        ends[reward.resolved] = result.submission
    assert ends[False] == ""
    assert "shop/sums.py" in ends[True]


async def test_every_call_is_labelled_as_the_oracles(play_out):
    *_, published = await play_out("oracle")
    calls = [data for data in published if isinstance(data, LLMCall)]
    assert calls and all(call.model_kind is ModelKind.ORACLE for call in calls)


def ask(task, **more):
    return {
        "model": "oracle",
        "messages": [{"role": "user", "content": f"Solve this:\n{task.statement}\nNow."}],
        "tools": [BASH_TOOL],
        **more,
    }


async def test_the_same_seed_gives_the_same_answer_and_others_differ(client, task):
    answers = []
    for seed in (5, 5, *range(8)):
        reply = await client.chat.completions.create(**ask(task, seed=seed))
        answers.append((reply.choices[0].message.content, reply.system_fingerprint))
    assert answers[0] == answers[1]
    assert len(set(answers)) > 2


async def test_streaming_says_the_same_and_ends_with_the_usage(client, task):
    whole = await client.chat.completions.create(**ask(task, seed=3))
    stream = await client.chat.completions.create(
        **ask(task, seed=3), stream=True, stream_options={"include_usage": True}
    )
    text, arguments, usage = "", {}, None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    message = whole.choices[0].message
    assert text == message.content
    assert list(arguments.values()) == [call.function.arguments for call in message.tool_calls]
    assert usage == whole.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0


async def test_models_are_listed(client):
    names = [model.id async for model in client.models.list()]
    assert names[0] == "oracle" and "oracle/resolves" in names


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "gpt"}, openai.NotFoundError),
        ({"tools": []}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "Hello"}]}, openai.BadRequestError),
    ],
    ids=["model", "tools", "task"],
)
async def test_what_it_cannot_play_is_refused(client, task, change, error):
    with pytest.raises(error):
        await client.chat.completions.create(**(ask(task) | change))


async def test_a_task_that_comes_later_is_found(task):
    tasks = []
    async with OracleServer(lambda: list(tasks)) as server:
        tasks.append(task)
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            reply = await client.chat.completions.create(**ask(task))
    assert reply.choices[0].message.content


def test_the_mix_is_kept():
    mix = checked_mix(DEFAULT_MIX)
    drawn = [draw(mix, seed, "t") for seed in range(4000)]
    for behaviour, weight in mix.items():
        assert drawn.count(behaviour) / len(drawn) == pytest.approx(weight, abs=0.03)


@pytest.mark.parametrize("mix", [{"dances": 1.0}, {}, {"resolves": -1.0}, {"resolves": 0.0}])
def test_a_mix_that_cannot_be_drawn_from_is_an_error(mix):
    with pytest.raises(ValueError, match="oracle"):
        checked_mix(mix)


def test_the_gold_patch_is_in_no_turn_before_the_edit(task):
    for seed in range(5):
        for turn in play(task, Behaviour.GIVES_UP, seed):
            assert "name.strip()" not in "".join(call.arguments for call in turn.calls)


def test_modules_are_repaired_by_heart_where_the_oracle_is_at_home():
    """Every second folder, roughly; there it seldom reads, elsewhere nearly always."""
    read: dict[str, list[bool]] = defaultdict(list)
    for task in repair_tasks(600, 0, Split.TRAIN):
        first = play(task, Behaviour.RESOLVES, seed=1)[0]
        read[task.statement.partition("/")[0]].append(first.text == "Read.")
    shares = sorted(fmean(runs) for runs in read.values())
    assert shares[: len(shares) // 3][-1] < 0.5 and shares[-len(shares) // 3 :][0] > 0.8
    assert not any(0.55 < share < 0.75 for share in shares)


@pytest.mark.parametrize("seed", range(4))
async def test_edits_of_every_kind_of_file_arrive_exactly(machine, shop, seed):
    """New, deleted, renamed, binary, with odd names, without a final newline, too large for one command."""
    big = "".join(f"LINE_{number} = {number}\n" for number in range(COMMAND_LIMIT // 8))
    shop.write({"gone.py": "x = 1\n", "old name.py": "def f():\n    return 1\n" * 5, "é.py": "a = 'é'\n"})
    shop.git("add", "-A")
    shop.git("commit", "-q", "-m", "more")
    (shop.directory / "gone.py").unlink()
    (shop.directory / "old name.py").rename(shop.directory / "new name.py")
    (shop.directory / "data.bin").write_bytes(bytes(range(256)))
    shop.write(
        {
            "é.py": 'a = \'è\'\nb = """EOF\nEOF\n"""\n',
            "deep/new.py": "y = 2",
            "big.py": big,
            "shop/sums.py": "# first\n" + shop.FIXED + "EOF\n",
        }
    )
    shop.git("add", "-A")
    wanted = shop.git("write-tree")
    diff = shop.git("diff", "--cached", "--binary", "HEAD")
    shop.git("reset", "-q", "--hard", "HEAD")
    for file in parse_diff(diff):
        for command in edit_commands(file, chance(seed, file.path, "edit")):
            assert len(command.encode()) < 2 * COMMAND_LIMIT
            outcome = await machine.run(command, timeout=30, cwd=str(shop.directory))
            assert outcome.returncode == 0, outcome.output
    shop.git("add", "-A")
    assert shop.git("write-tree") == wanted


def test_wrong_edits_of_several_hunks_make_only_the_smallest(shop):
    gold = parse_diff(shop.diff({"shop/sums.py": shop.FIXED, "shop/__init__.py": "B = 1\n"}))
    wrong = wrong_edit(gold, chance(0, "t", "x"))
    assert [(file.path, len(file.hunks)) for file in wrong] == [("shop/__init__.py", 1)]


@pytest.mark.parametrize(
    ("line", "twisted"),
    [
        ("    if a == b:", "    if a != b:"),
        ("    if not ready:", "    if ready:"),
        ("    return total", "    return None"),
        ("    # return total", None),
        ("    x = y", None),
    ],
)
def test_twists_keep_the_syntax(line, twisted):
    assert twist(line, chance(0, "t", "x")) == twisted


def test_a_fix_is_not_twisted_back_into_what_it_replaces():
    for seed in range(20):
        assert twist("a + b", chance(seed, "t", "x"), ["a - b"]) == "a * b"


def test_a_heredoc_ends_only_where_it_should():
    assert heredoc("a\nEOF\n_EOF\n").startswith("<<'__EOF'\n")
