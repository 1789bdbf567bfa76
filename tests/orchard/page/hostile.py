"""200 texts that want to be more than text, for every place where the page shows what others wrote."""

from collections.abc import Iterator, Sequence
from itertools import product

import msgspec

from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import EvaluationPlanned, ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.claw import ServiceCalled
from orchard.schemas.identity import rollout_id
from orchard.schemas.judging import JudgeRuled
from orchard.schemas.llm_calls import Usage
from orchard.schemas.messages import MessageNode, Role, ToolCall, ToolResult, node_id
from orchard.schemas.notes import CampaignTagged, RolloutNoted
from orchard.schemas.outcomes import ExitStatus, Reward
from orchard.schemas.training import PolicyStep
from tests.trajectory_log import TIME, Author, llm_call

_CALL = "window.pwned=1"
_ELEMENTS = (
    f"<script>{_CALL}</script>",
    f"<ScRiPt>{_CALL}</sCrIpT>",
    f"<img src=x onerror={_CALL}>",
    f"<svg onload={_CALL}>",
    f"<svg><script>{_CALL}</script></svg>",
    f"<svg><animate onbegin={_CALL} attributeName=x dur=1s>",
    f"<iframe srcdoc='<script>parent.{_CALL}</script>'></iframe>",
    f"<iframe src=javascript:{_CALL}></iframe>",
    f"<details open ontoggle={_CALL}>x</details>",
    f"<input autofocus onfocus={_CALL}>",
    f"<body onload={_CALL}>",
    f"<video><source onerror={_CALL}></video>",
    f"<math><mtext></form><form><mglyph><style></math><img src onerror={_CALL}>",
    f"<a href=javascript:{_CALL}>click</a>",
    f"<a href='data:text/html,<script>{_CALL}</script>'>data</a>",
    f"<form action=javascript:{_CALL}><button>go</button></form>",
    f"<object data='data:text/html,<script>{_CALL}</script>'></object>",
    f"<embed src='data:image/svg+xml,<svg onload={_CALL}>'>",
    "<meta http-equiv=refresh content='0;url=http://pages.example/'>",
    "<base href=http://pages.example/>",
    "<link rel=stylesheet href=http://pages.example/x.css>",
    "<style>*{display:none!important}</style>",
    "<div style='position:fixed;inset:0;background:red;z-index:9999'>over all</div>",
    "<marquee>moves</marquee>",
    "<template><script>x</script></template>",
)
_WRAPS = ("{}", "</pre></details></main>{}", '">{}', "'>{}", "-->{}", "</title></script>{}", "]]>{}")
_OTHERS = (
    *(
        "\x1b]0;owned\x07title",
        "\x1b[2J\x1b[H",
        "\x1b[31mred\x1b[0m plain",
        "\x1b[1;38;5;200mpink",
        "\x9b31m",
    ),
    *("\u202egnp.exe", "\u2066isolated", "a\u200bb\ufeffc", "NUL\x00in the middle", "a\rb\r\nc\x08\x08"),
    *("Z" + "\u0335\u0301\u0489" * 60, "\u0e49" * 50, "👩‍👩‍👧‍👦" * 30),
    *("x" * 30_000, "WWWW" * 5_000 + "\n" * 300, "\t" * 2_000),
    *("{{ 7*7 }}{% raw %}", "${7*7}", "&lt;b&gt;&amp;amp;", "&#x3c;script&#x3e;", "%3Cscript%3E"),
    *("javascript:" + _CALL, "data:text/html,<script>" + _CALL + "</script>", "vbscript:x"),
    '"onmouseover="' + _CALL,
)


def payloads() -> list[str]:
    """All of them, all different."""
    wrapped = [wrap.format(element) for wrap, element in product(_WRAPS, _ELEMENTS)]
    found = [*_OTHERS, *wrapped[: 200 - len(_OTHERS)]]
    assert len(set(found)) == 200
    return found


DIFF = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@ {0}\n-{0}\n+{0}\n"


def _task(text: str, number: int) -> str:
    return text.replace("\n", " ")[:200] or f"t{number}"


def rollout(author: Author, texts: Sequence[str], sample: int, task: str, log: BlobRef) -> Iterator[e.Event]:
    """One rollout that says each text as reasoning, message, tool name, arguments and result."""
    name = rollout_id(author.campaign, task, texts[0][:60], "m", sample)
    ref = TaskRef(task_id=task, source="s", repo=texts[0][:100], blob=BlobRef(sha256="0" * 64, size=1))
    facts = {"harness": texts[0][:60], "sample": sample}
    yield author.event(
        RolloutRequest(
            rollout_id=name, campaign=author.campaign, task=ref, model=ModelSpec(name="m"), **facts
        ),
        name,
        None,
    )
    yield author.event(e.RolloutStarted(worker=texts[0][:50], request_sequence=1, deliveries=1), name)
    leaf: str | None = None
    turn = 0
    for turn, text in enumerate(texts, 1):
        call = ToolCall(
            id=f"c{turn}", name=text[:80], arguments=msgspec.json.encode({"command": text}).decode()
        )
        said = (
            (Role.USER, {}),
            (Role.ASSISTANT, {"reasoning": text, "tool_calls": (call,)}),
            (Role.TOOL, {"tool_call_id": call.id, "result": ToolResult(returncode=1, seconds=0.1)}),
        )
        for role, more in said:
            node = node_id(leaf, role, text, more.get("tool_calls", ()), str(more.get("tool_call_id", "")))  # type: ignore[arg-type]
            yield author.event(
                MessageNode(node_id=node, parent=leaf, role=role, turn=turn, content=text, **more),
                name,  # type: ignore[arg-type]
            )
            if role is Role.ASSISTANT:
                usage = Usage(prompt_tokens=10 * turn, completion_tokens=turn)
                yield author.event(llm_call(turn, parent=leaf or "", node=node, usage=usage), name)
            leaf = node
    for number, text in enumerate(texts[:100], 1):
        called = ServiceCalled(
            number=number,
            task_time=text[:40],
            service=text[:40],
            operation=text[:40],
            tool=text[:80],
            arguments=text,
            status=200,
            response=text,
            injected=text[:40],
            face=text[:40],
        )
        yield author.event(called, name)
    facts_of_judge = {"prompt_hash": "0", "endpoint": texts[0][:40], "calls": 1, "cost_usd": None}
    ruled = JudgeRuled(
        name=texts[0][:80], protocol=texts[0][:80], model=texts[0][:80], reason=texts[0], **facts_of_judge
    )
    yield author.event(ruled, name)
    said = RolloutNoted(author=texts[0][:60], text="\n".join(texts), labels=(texts[-1][:60],))
    yield author.event(said, name, None)
    tests = {text[:200]: "FAILED" for text in texts[:50]}
    yield author.event(
        Reward(value=-1.0, resolved=False, grader="g", tests=tests, detail=texts[0][:500], log=log), name
    )
    yield author.event(
        e.RolloutFinished(
            task_id=task,
            task_source="s",
            repo=texts[0][:100],
            model="m",
            model_kind=ModelSpec(name="m").kind,
            worker="w",
            started_at=TIME,
            seconds=1.0,
            turns=turn,
            status=ExitStatus.SUBMITTED.status,
            exit_status=ExitStatus.SUBMITTED,
            reward=-1.0,
            resolved=False,
            submission="".join(DIFF.format(text.replace("\n", " ")[:300]) for text in texts[:40]),
            leaf=leaf,
            **facts,
        ),
        name,
    )


def hostile_events(log: BlobRef) -> list[e.Event]:
    """One rollout with all of them in its messages, and one for each in the names of things."""
    author = Author("hostile")
    texts = payloads()
    events = list(rollout(author, texts, 0, "all", log))
    for number, text in enumerate(texts):
        events += rollout(author, [text], number, _task(text, number), log)
    named, tags = (
        {"harnesses": (texts[0][:200],), "models": (texts[-1][:200],)},
        [t[:200] for t in texts[:40]],
    )
    plan = e.CampaignSubmitted(spec=log, spec_hash="h", size=300, tasks=200, samples=1, **named)
    events.append(author.event(plan, "", None))
    events.append(author.event(CampaignTagged(author=texts[0][:60], tags=tuple(tags)), "", None))
    sets = {"s": texts[-1][:200]}
    planned = EvaluationPlanned(suite=log, task_sets=sets, k=(1, 2), arms={"m": texts[-1][:200]})
    suite = Author("suite")
    events.append(suite.event(planned, "", None))
    for number, text in enumerate(texts[60:64]):
        events += rollout(suite, [text], number, "one", log)
    for number, text in enumerate(texts[:40]):
        facts = {**dict.fromkeys(PolicyStep.__struct_fields__, 0), "run": f"{number} {text[:200]}", "step": 1}
        events.append(author.event(PolicyStep(**facts), "", None))  # type: ignore[arg-type]
    return events


def overviews(rollout: str, others: Sequence[str]) -> list[str]:
    """Addresses of the pages beside campaigns and rollouts; `rollout` has all texts."""
    runs = "".join(f"&run={number}" for number in range(3))
    arms = "/compare?campaign=hostile"
    found = [
        "/?group=tags",
        "/campaigns/hostile",
        f"/rollouts/{rollout}?find=pwned",
        "/rollouts?text=pwned&role=tool&turn=1..",
        '/rollouts?text="window.pwned"',
        "/tasks",
        "/tasks?sort=name&skip=100",
        arms,
        "/failures",
        "/failures?campaign=hostile",
        "/status",
    ]
    found += ["/status", "/evaluations", "/evaluations/suite", "/runs", f"/runs?before=9{runs}"]
    found += [f"/beside?a={rollout}&b={other}" for other in others]
    found += [f"/beside?a={rollout}&b={others[0]}&turn={turn}" for turn in (40, 180)]
    return found
