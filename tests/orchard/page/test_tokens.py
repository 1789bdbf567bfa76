"""Tokens on the page are those of the log, in parts, with what became of them in training."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import aiohttp
import msgspec
import pytest
from tokenizers import Tokenizer

from orchard.page.access import Access
from orchard.page.server import PageSite
from orchard.page.tokens import PAGE_TOKENS
from orchard.pipelines.rl.baselines import advantages
from orchard.pipelines.rl.loss_settings import Baseline
from orchard.pipelines.rl.plan import RunPlan
from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, TaskRef
from orchard.schemas.groups import GroupAssembled, GroupMember, GroupOutcome, PolicyUpdated, RunStarted
from orchard.schemas.messages import TokenRecord, VersionRun
from orchard.schemas.outcomes import RolloutStatus
from orchard.storage.blobs import BlobStore
from tests.orchard.page.conftest import Serve, stored
from tests.trajectory_log import Author

LONG = 2 * PAGE_TOKENS + 500
ASKED, LATER = (1, 2, 3), (11, 12)
IDS = tuple(range(100, 100 + LONG))
LOGPROBS = tuple(-0.001 * (n % 7000) for n in range(LONG))
HOSTILE = "<script>alert(1)</script>"


def _sampled(step: int, _: str) -> TokenRecord:
    if step == 0:
        versions = (VersionRun(start=0, version=4), VersionRun(start=1000, version=5))
        return TokenRecord(ids=IDS, logprobs=LOGPROBS, prompt_ids=ASKED, versions=versions)
    return TokenRecord(ids=(7, 8), logprobs=(-0.5, -9.0), prompt_ids=(*ASKED, *IDS, *LATER))


def _rows(html: str) -> list[list[str]]:
    """Cells of the table, row by row."""
    body = html.partition("<tbody>")[2].partition("</tbody>")[0]
    found = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [
        [unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall(r"<td>(.*?)</td>", row)]
        for row in found
    ]


def _coloured(html: str) -> list[str]:
    """Classes of the tokens, in order."""
    return re.findall(r'<span class="(\w+)" title=', html.partition("<main")[2])


def _trained(
    author: Author, blobs: BlobStore, baseline: Baseline, members: dict[str, float], left_out: tuple[str, ...]
) -> list[e.Event]:
    """A run with this baseline that trained on the members but those left out."""
    plan = RunPlan(
        name=author.campaign,
        tasks=(TaskRef(task_id="t1", source="s", repo="r", blob=BlobRef(sha256="0" * 64, size=1)),),
        harness="h",
        model=ModelSpec(name="m", endpoint="e"),
        baseline=baseline,
    )
    blob = blobs.put(msgspec.json.encode(plan))
    started = RunStarted(run=author.campaign, plan=blob, plan_hash="h", tasks=1, method="bar")
    group = GroupAssembled(
        run=author.campaign,
        group_id="g0",
        prompt=0,
        task_id="t1",
        outcome=GroupOutcome.FIXED,
        members=tuple(
            GroupMember(rollout_id=name, attempt=1, reward=reward, status=RolloutStatus.COMPLETED, tokens=9)
            for name, reward in members.items()
        ),
        positive=1,
        degenerate=False,
        generated=len(members),
    )
    update = PolicyUpdated(
        run=author.campaign, version=6, step=5, groups=("g0",), position=9, left_out=left_out
    )
    decided = msgspec.structs.replace(author.event(group, "", None), subject=f"prompts/{author.campaign}/0")
    return [author.event(started, "", None), decided, author.event(update, "", None)]


def _name(made: list[e.Event]) -> str:
    return made[0].rollout_id or ""


@pytest.mark.long
async def test_tokens_are_those_of_the_log_in_parts_by_turn(tmp_path: Path, serve: Serve) -> None:
    author = Author()
    first = author.rollout(0, ["ls", "pwd"], resolved=True, tokens=_sampled)
    others = [
        author.rollout(n, ["ls"], resolved=False, tokens=lambda *_: TokenRecord(ids=(1,))) for n in (1, 2)
    ]
    rewards = {_name(first): 1.0, _name(others[0]): -1.0, _name(others[1]): 0.0}
    blobs = BlobStore(str(tmp_path / "store"))
    learned = _trained(author, blobs, Baseline.LEAVE_ONE_OUT, rewards, left_out=(_name(others[1]),))
    store = await stored(tmp_path, [event for made in (first, *others, learned) for event in made])
    plus, minus = advantages([1.0, -1.0], ["g", "g"], Baseline.LEAVE_ONE_OUT)
    async with serve(store) as url, aiohttp.ClientSession(url) as http:

        async def page(path: str) -> str:
            async with http.get(path) as reply:
                assert reply.status == 200, path
                assert "'unsafe-inline'" not in reply.headers["Content-Security-Policy"]
                return await reply.text()

        html = await page(f"/rollouts/{_name(first)}")
        links = [unescape(link) for link in re.findall(r'href="([^"]*/tokens\?[^"]*node=[^"]*)"', html)]
        assert len(links) == 2, "one for each turn that has tokens"
        found, path = [], f"{links[0]}&as=table"
        while True:
            html = await page(path)
            assert len(_rows(html)) <= PAGE_TOKENS
            assert len(html) < 1_000_000
            found += _rows(html)
            path = unescape((re.search(r'id="next" rel="next" href="([^"]*)"', html) or [""] * 2)[1])
            if not path:
                break
        event = re.search(r'<dt>event</dt><dd><a href="([^"]*)">', html)
        assert event is not None
        assert "message.appended" in (await page(event[1])).partition("<tbody>")[2].partition("</tr>")[0]
        assert [int(row[1]) for row in found] == [*ASKED, *IDS, *LATER, 7, 8], (
            "each once, though prompts repeat"
        )
        sampled = [row for row in found if row[5] != "read"]
        assert [row[3] for row in sampled] == [f"{p:.4g}" for p in (*LOGPROBS, -0.5, -9.0)]
        assert [row[4] for row in sampled] == ["4"] * 1000 + ["5"] * (LONG - 1000) + ["", ""]
        assert {(row[5], row[6]) for row in sampled} == {("in", f"{plus:+.3g}")}

        html = await page(f"{links[1]}&by=logprob")
        assert _coloured(html) == ["read", "read", "p1", "p5"]
        assert len(html) < 50_000, "a short turn is a small page, whatever its prompt"
        for by, classes in (("loss", ["in"] * 2), ("advantage", ["up"] * 2), ("version", ["none"] * 2)):
            html = await page(f"{links[1]}&by={by}")
            assert _coloured(html)[2:] == classes
        html = await page(f"/rollouts/{_name(others[0])}/tokens?by=advantage")
        assert f"advantage {minus:+.3g}".replace("-", "−") in html and 'class="down"' in html
        html = await page(f"/rollouts/{_name(others[1])}/tokens?by=loss&as=table")
        assert "too long for the trainer" in html and "or its ending is" in html
        assert [row[5:] for row in _rows(html)] == [["out", ""]]
        async with http.get(f"/rollouts/{_name(first)}/tokens?by=fame") as reply:
            assert (reply.status, "choose one of logprob" in await reply.text()) == (400, True)


@pytest.fixture
def tokenizer() -> Tokenizer:
    """With a token that is markup, and one that is half of a character."""
    from tokenizers import decoders, models

    made = Tokenizer(models.WordLevel({HOSTILE: 7, "Ã": 8, "?": 9}, unk_token="?"))
    made.decoder = decoders.ByteLevel()
    return made


async def test_text_of_tokens_is_shown_and_never_obeyed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    from aiohttp.test_utils import TestClient, TestServer

    from orchard.actions.session import Session
    from orchard.configuration.config import Config

    made = Author().rollout(0, ["ls"], resolved=True, tokens=lambda *_: TokenRecord(ids=(7, 8, 5)))
    store = await stored(tmp_path, made)
    access = Access("t", loopback=True, private=False, hosts=())
    site = PageSite(Session(Config(store=str(store))), access, tokenizer)
    async with TestClient(TestServer(site.application())) as http:
        reply = await http.get(f"/rollouts/{_name(made)}/tokens")
        html = await reply.text()
    said = re.findall(r'<span class="none" title="[^"]*">(.*?)</span>', html)
    assert [unescape(each) for each in said] == [HOSTILE, "Ã", "?5"]
    assert HOSTILE not in html
    assert "in no group of a training run" in html


@pytest.mark.long
def test_the_page_needs_nothing_of_the_extras() -> None:
    """The quick start installs none of them."""
    absent = ("tokenizers", "torch", "transformers", "matplotlib")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import orchard.page.server"
    subprocess.run([sys.executable, "-c", code], check=True)
