"""A report is a folder that needs nothing else, and gives no key away."""

import asyncio
import re
import stat
import sys
from html import unescape
from pathlib import Path

import msgspec
import pytest

from orchard.actions.rollout import CALL, TEXT
from orchard.page.compare import ComparedArm
from orchard.page.folder import Folder
from orchard.page.report import UnknownReport, write_report
from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.claw import ServiceCalled
from orchard.schemas.groups import GroupAssembled, GroupMember, GroupOutcome
from orchard.schemas.messages import MessageNode, Role, ToolCall
from orchard.schemas.outcomes import RolloutStatus
from orchard.schemas.training import PolicyStep
from orchard.storage.reader import open_tables
from orchard.workers.masking import masked
from tests.benchmarks.million import Plan, fill_store
from tests.orchard.page.big import append
from tests.orchard.page.conftest import stored
from tests.orchard.page.look import chromium
from tests.trajectory_log import Author

KEY = "ghp_" + "a1B2" * 9
OTHER = "sk-proj-" + "Zz9_" * 12


def _submitted() -> e.CampaignSubmitted:
    return e.CampaignSubmitted(
        spec=BlobRef(sha256="0" * 64, size=1),
        spec_hash="x",
        size=70,
        tasks=9,
        harnesses=("mini-swe-agent",),
        models=("m",),
        samples=1,
    )


async def _store(place: Path) -> Path:
    author, other = Author("mailed"), Author("other")
    events = [
        event
        for number in range(70)
        for event in author.rollout(
            number,
            [f"echo {KEY}" if number == 7 else "ls", f"export TOKEN={OTHER}" if number == 8 else "true"],
            resolved=number % 2 == 0,
            task=f"t{number % 9}",
            tests={f"test[{KEY}]": "FAILED"} if number == 9 else {"a": "PASSED"},
        )
    ]
    events.append(author.event(_submitted(), "", None))
    return await stored(place, [*events, *other.rollout(0, ["ls"], resolved=True)])


@pytest.mark.long
async def test_a_report_has_its_campaign_and_no_way_out(tmp_path: Path) -> None:
    store, out = await _store(tmp_path), tmp_path / "out"
    made = write_report(str(store), "mailed", out)
    files = {file: file.read_text() for file in out.rglob("*.html")}
    assert made.rollouts == 70 == len([*(out / "rollouts").iterdir()])
    assert sum(html.count('href="') for html in files.values()) > 200
    assert _away(out) == set()
    for html in files.values():
        assert KEY not in html and OTHER not in html
        assert "other" not in re.findall(r"<h2>.*?</h2>", html)
    with open_tables(str(store)) as tables:
        asked = "select rollout_id from rollouts where campaign = 'mailed' and sample in (7, 8, 9)"
        planted = {f"rollouts/{row[0]}.html" for row in tables.sql(asked).fetchall()}
    assert planted <= made.secrets.keys()
    assert all(page in (out / "secrets.txt").read_text() for page in planted)
    assert "[masked github-token" in "".join(files.values())
    with pytest.raises(UnknownReport, match="neither a campaign nor a training run"):
        write_report(str(store), "nothing", tmp_path / "no")


def _straddled(author: Author) -> list[e.Event]:
    """A rollout in which a key lies across each place where a text is cut."""

    def result(_: str) -> str:
        """30 of the key's 40 characters are in the end that is shown."""
        return "x " * 10_000 + KEY + " " + "y" * (TEXT // 3 - 31)

    repeated = f"echo {'z' * 164} {KEY}"
    made = author.rollout(0, [repeated] * 4, resolved=False, observation=result, task="straddled")
    name = made[0].rollout_id or ""
    said = [data for event in made if isinstance(data := e.payload(event), MessageNode)]
    thought = "r" * (TEXT - 31) + " " + KEY + " and on"
    node = MessageNode(
        node_id="thought",
        parent=said[-1].node_id,
        role=Role.ASSISTANT,
        turn=5,
        content="",
        reasoning=thought,
        tool_calls=(ToolCall(id="c", name="bash", arguments="a" * (TEXT - 31) + " " + KEY + " more"),),
    )
    called = ServiceCalled(
        number=1,
        task_time="2026-04-10T09:00:00",
        service="mail",
        operation="send",
        tool="mail_send",
        arguments="b" * (CALL - 31) + " " + KEY + " more",
        status=200,
        response="c" * (CALL - 31) + " " + KEY + " more",
        injected=None,
    )
    outcome = e.payload(made[-1])
    made[-1] = author.event(msgspec.structs.replace(outcome, leaf="thought"), name)
    made[-1:-1] = [author.event(node, name), author.event(called, name)]
    return made


def test_keys_in_names_of_arms_are_masked_too(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), tmp_path / "out", "t", [])
    assert folder.scrubbed({"arms": [ComparedArm("c", f"harness-of {KEY}", "m")]}, "compare.html") == {
        "arms": [ComparedArm("c", f"harness-of {masked(KEY).text}", "m")]
    }


@pytest.mark.long
async def test_no_part_of_a_key_is_left_where_a_text_is_cut(tmp_path: Path) -> None:
    author = Author("mailed")
    store, out = (
        await stored(tmp_path, [*_straddled(author), author.event(_submitted(), "", None)]),
        tmp_path / "out",
    )
    made = write_report(str(store), "mailed", out)
    for file in out.rglob("*.html"):
        html = file.read_text()
        assert not re.findall("ghp_|(?:a1B2){3}", html), file
    (page,) = (out / "rollouts").iterdir()
    assert {f"rollouts/{page.name}", "failures.html"} == made.secrets.keys()
    html = page.read_text()
    assert "characters are left out" in html or "more characters" in html, "texts are cut"
    assert "show the whole" not in html, "a report has no whole texts"


def _away(out: Path) -> set[tuple[str, str]]:
    """Links of a folder's pages to what it does not have."""
    return {
        (str(file.relative_to(out)), link)
        for file in out.rglob("*.html")
        for link in map(unescape, re.findall(r'(?:href|src)="([^"]*)"', file.read_text()))
        if not link.startswith("#") and not (file.parent / link.partition("#")[0].partition("?")[0]).is_file()
    }


@pytest.mark.long
async def test_a_comparison_shows_each_task_that_was_gained_or_lost(tmp_path: Path) -> None:
    events = []
    for name, every in (("before", 3), ("after", 2)):
        for number in range(12):
            made = Author(name).rollout(0, [f"echo {KEY}"], resolved=number % every == 0, task=f"t{number}")
            events += [msgspec.structs.replace(event, id=f"{name}-{number}-{event.id}") for event in made]
        events.append(Author(f"{name}-plan").event(_submitted(), "", None))
        events[-1] = msgspec.structs.replace(events[-1], campaign=name)
    store, out = await stored(tmp_path, events), tmp_path / "out"
    made = write_report(str(store), "before", out, second="after")
    assert _away(out) == set()
    front = (out / "index.html").read_text()
    gained, lost = [4, 8, 2, 10], [3, 9]
    beside = sorted(out.glob("beside/*.html"))
    assert len(beside) == len(gained + lost) and made.rollouts == 2 * len(beside)
    assert all(f">t{number}<" in front for number in gained + lost)
    assert all(
        "first difference" in page.read_text() or "identical in every" in page.read_text() for page in beside
    )
    assert not any(KEY in file.read_text() for file in out.rglob("*.html"))
    assert made.secrets.keys() == {*(f"beside/{n}.html" for n in range(6))} | {
        f"rollouts/{file.name}" for file in (out / "rollouts").iterdir()
    }
    with pytest.raises(UnknownReport, match="no campaign 'nothing' to compare"):
        write_report(str(store), "before", tmp_path / "no", second="nothing")


@pytest.mark.long
async def test_a_run_has_its_curves_groups_and_members(tmp_path: Path) -> None:
    author = Author("rl-1")
    made = [author.rollout(number, ["ls"], resolved=number == 0) for number in range(3)]
    facts = dict.fromkeys(PolicyStep.__struct_fields__, 0) | {"run": "rl-1", "loss": 0.5, "pass_rate": 0.25}
    steps = [PolicyStep(**{**facts, "step": step, "version": step}) for step in (1, 2)]  # type: ignore[arg-type]
    members = tuple(
        GroupMember(
            rollout_id=each[0].rollout_id or "",
            attempt=1,
            reward=1.0,
            status=RolloutStatus.COMPLETED,
            tokens=9,
        )
        for each in made[:2]
    )
    group = GroupAssembled(
        run="rl-1",
        group_id="g",
        prompt=0,
        task_id="t1",
        outcome=GroupOutcome.FIXED,
        members=members,
        positive=1,
        degenerate=False,
        generated=3,
    )
    events = [event for each in made for event in each] + [author.event(step, "", None) for step in steps]
    decided = msgspec.structs.replace(author.event(group, "", None), subject="prompts/rl-1/0")
    store, out = await stored(tmp_path, [*events, decided]), tmp_path / "out"
    written = write_report(str(store), "rl-1", out)
    assert _away(out) == set()
    assert {file.stem for file in (out / "rollouts").iterdir()} == {member.rollout_id for member in members}
    assert written.rollouts == 2
    front = (out / "index.html").read_text()
    assert "pass rate" in front and 'aria-label="Outcomes of groups"' in front


@pytest.mark.slow
async def test_it_opens_from_disk_without_a_request_elsewhere(tmp_path: Path) -> None:
    store, out = await _store(tmp_path), tmp_path / "out"
    write_report(str(store), "mailed", out)
    asked: list[str] = []
    said: list[str] = []
    async with chromium() as browser:
        page = await browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        await page.goto((out / "index.html").as_uri())
        await page.get_by_role("link", name="Rollouts").click()
        await page.locator("tbody a").first.click()
        await page.locator("article.turn").first.wait_for()
        await page.keyboard.press("?")
        assert await page.locator("dialog").is_visible()
    assert said == []
    assert [url for url in asked if not url.startswith(out.as_uri())] == []


@pytest.mark.long
async def test_one_file_has_all_pages_and_their_links(tmp_path: Path) -> None:
    store, file = await _store(tmp_path), tmp_path / "mailed.html"
    made = write_report(str(store), "mailed", file)
    assert (made.rollouts, made.files, made.bytes) == (70, 1, file.stat().st_size)
    html = file.read_text()
    assert KEY not in html and OTHER not in html
    led = {link.partition("!")[0] for link in re.findall(r' href="(?!data:)([^"]*)"', html)}
    assert led == {f"#{page}" for page in re.findall(r'data-page="([^"]*)"', html)}
    said: list[str] = []
    async with chromium() as browser:
        page = await browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        await page.goto(file.as_uri())
        await page.get_by_role("link", name="Rollouts", exact=True).click()
        await page.locator("nav [aria-current=page]", has_text="Rollouts").wait_for()
        await page.locator("tbody a").first.click()
        await page.locator("article.turn").first.wait_for()
        sent, title = page.url, await page.title()
        await page.go_back()
        await page.locator("h1", has_text="Rollouts").wait_for()
        other = await browser.new_page()
        await other.goto(sent)
        assert await other.title() == title and await other.locator("article.turn").count() > 1
    assert said == []


@pytest.mark.long
async def test_colleagues_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    """The store stays the owner's alone; the command writes the report as the user's other files."""
    store = await _store(tmp_path)
    for mask, file, folder in ((0o022, 0o644, 0o755), (0o007, 0o660, 0o770)):
        out = tmp_path / f"{mask:o}"
        words = ("--store", str(store), "report", "mailed", "--out", str(out))
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "orchard", *words, umask=mask)
        assert await process.wait() == 0
        modes = {stat.S_IMODE(each.stat().st_mode) for each in out.rglob("*") if each.is_file()}
        assert modes == {file}
        assert {stat.S_IMODE(each.stat().st_mode) for each in (out, out / "rollouts")} == {folder}


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_thousand_rollouts_can_be_mailed(tmp_path: Path) -> None:
    """Under 50 MB, with 40 KB of text in each, and every planted key masked and listed."""
    store, out = tmp_path / "store", tmp_path / "out"
    fill_store(Plan(rollouts=1_000, campaigns=1, turns=20, text=1_000, open_share=0.0), str(store))
    author = Author("million-0")
    planted = [author.rollout(n, [f"echo {KEY}"], resolved=True, task=f"planted-{n}") for n in range(20)]
    append(store, [event for made in planted for event in made])
    made = write_report(str(store), "million-0", out)
    assert made.rollouts == 1_020
    assert made.bytes == sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) < 50_000_000
    assert not any(KEY in file.read_text() for file in out.rglob("*.html"))
    listed = (out / "secrets.txt").read_text()
    assert all(f"rollouts/{each[0].rollout_id}.html" in listed for each in planted)
    async with chromium() as browser:
        page = await browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        one = f"rollouts/{planted[0][0].rollout_id}.html"
        for name in ("index.html", "rollouts.html", "tasks.html", "failures.html", "compare.html", one):
            await page.goto((out / name).as_uri())
            await page.locator("header.top nav").wait_for()
    assert [url for url in asked if not url.startswith(out.as_uri())] == []
