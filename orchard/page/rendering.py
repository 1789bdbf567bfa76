"""Renders templates: rows of the log as HTML, everything escaped."""

import hashlib
import json
import re
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from orchard.actions.campaign_hints import abort_hints, hints
from orchard.actions.campaign_status import CampaignView, outcome_name
from orchard.actions.domain import submission_text
from orchard.actions.rollout import CALL, RolloutView, ShownRollout
from orchard.actions.rollout_turns import ShownPicture, ShownTurn
from orchard.page import charts, outline, texts
from orchard.page.compare import FEW_TASKS, arm_names, arm_points
from orchard.page.deciding import PASSED, SHOWN, grouped, read_task
from orchard.page.figures import FILTERS
from orchard.page.pictures import overlay, picture_address
from orchard.page.rollouts import COLUMNS, USUAL
from orchard.pipelines.trajectories.reading import stored_node
from orchard.schemas.blobs import BlobRef
from orchard.schemas.messages import MessageNode
from orchard.schemas.tasks import Task
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import BlobCorrupt, BlobMissing
from orchard.storage.reader import Row
from orchard.workers.masking import masked

LOG = 60_000
"""Maximum characters of a test log."""
DIFF = 200_000
OPEN_LINES = 14
"""Lines above which a text is folded."""
OPEN_CHARACTERS = 1400
ALIKE = 3
"""Failing tests that rollouts like one are searched by."""

NAMED = 5
"""Failed tests that the head of a rollout names."""

_KINDS = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


class Renderer:
    """Renders the pages of one store; thread-safe."""

    def __init__(self, store: str) -> None:
        self._environment = Environment(
            loader=PackageLoader("orchard.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {**FILTERS, "visible": texts.visible, "overlay": overlay}
        static = files("orchard.page") / "static"
        self._static = {name: (static / name).read_bytes() for name in _KINDS}
        version = hashlib.sha256(b"".join(self._static.values())).hexdigest()[:10]
        self._environment.globals |= {
            "store": store,
            "version": version,
            "charts": charts,
            "arm_names": arm_names,
            "few_tasks": FEW_TASKS,
            "arm_points": arm_points,
            "campaign_bar": campaign_bar,
            "outcome_address": outcome_address,
            "picture_address": picture_address,
            "rollout_address": rollout_address,
            "abort_hints": abort_hints,
            "hints": hints,
            "titles": COLUMNS,
            "usual": USUAL,
        }

    def page(self, template: str, values: dict[str, Any]) -> str:
        return self._environment.get_template(template).render(values)

    def static(self, name: str) -> tuple[bytes, str] | None:
        """Returns a static file and its media type."""
        return (self._static[name], _KINDS[name]) if name in _KINDS else None

    def rollout(
        self, found: ShownRollout, view: RolloutView, blobs: BlobStore, most: int = DIFF
    ) -> dict[str, Any]:
        """Values for the rollout's template, with at most `most` characters of diff and log. Reads blobs."""
        outcome = found.outcome or {}
        log, left_out = "", 0
        reward = found.rewards[-1] if found.rewards else None
        if reward and reward["log_sha256"]:
            log, left_out = texts.cut(_blob(blobs, reward["log_sha256"]), min(LOG, most))
        patch = outcome.get("submission") or ""
        if outcome.get("submission_sha256"):
            patch = _blob(blobs, outcome["submission_sha256"])
        bundle = submission_text(patch) == ""
        patch, patch_left_out = texts.cut("" if bundle else patch, most)
        diff = texts.diff(patch) if patch.strip() else []
        task = read_task(blobs, found.request["task_sha256"])
        tests = grouped((reward["tests"] if reward else None) or {}, task)
        failing = [test for group in tests if group.decided for test in group.tests]
        first = found.window[0] if found.window else None
        index = found.turns.index(first) if first else 0
        before = found.turns[max(index - view.window, 0)] if index else None
        after_at = index + len(found.window)
        after = found.turns[after_at] if after_at < len(found.turns) else None
        return {
            "rollout": found,
            "view": view,
            "address": lambda **changes: rollout_address(found.id, view, **changes),
            "turns": [
                (turn, self.messages(found, turn, blobs, view.text, view.find)) for turn in found.window
            ],
            "statement": _statement(task, most),
            "failing": failing,
            "named": NAMED,
            "review": found.review or {"labels": [], "human_score": None},
            "prices": any(turn.cost_usd is not None for turn in found.turns),
            "outline": outline.outlined(found),
            "inside": {turn.number for turn in found.window},
            "first_error": outline.first_error(found.turns),
            "submitted_at": outline.submission_turn(found),
            "other": outline.most_telling(found),
            "alike": outline.alike(found, [name for name, _ in failing[:ALIKE]]),
            "strip": charts.strip(
                [
                    charts.TurnTime(
                        turn.number,
                        rollout_address(found.id, view, turn=turn.number) + f"#turn-{turn.number}",
                        turn.model or 0.0,
                        turn.command or 0.0,
                        turn.wait or 0.0,
                    )
                    for turn in found.turns
                    if turn.number and turn.seconds is not None
                ]
            ),
            "times": _times(outcome),
            "before": before,
            "after": after,
            "reward": reward,
            "tests": tests,
            "most_tests": SHOWN,
            "passed": sum(status in PASSED for group in tests for _, status in group.tests),
            "ran": sum(len(group.tests) for group in tests),
            "log": texts.terminal(log),
            "log_left_out": left_out,
            "diff": diff,
            "tree": texts.diff_tree(diff) if len(diff) > 1 else [],
            "diff_left_out": patch_left_out,
            "curves": [
                (
                    curve,
                    charts.curve(
                        curve.values, [[rise.first, rise.last] for rise in curve.rises], curve.annotator
                    ),
                )
                for curve in found.curves
            ],
            "rising": {
                step + 1
                for curve in found.curves[:1]
                for rise in curve.rises
                for step in range(rise.first, rise.last + 1)
            },
            "services": [_call(row) for row in found.services],
            "bundle": bundle,
            "pictures": found.pictures,
            "found": [(row, texts.snippet(row["said"] or "", _pattern(view.find))) for row in found.found],
        }

    def whole_message(self, row: Any, blobs: BlobStore) -> bytes:
        """Formats a message as plain text: reasoning, text, calls."""
        node = stored_node(blobs, row)
        return "\n\n".join(_sections(node)).encode("utf-8", "replace")

    def messages(
        self, found: ShownRollout, turn: ShownTurn, blobs: BlobStore, most: int, find: str = ""
    ) -> list[dict[str, Any]]:
        titles: dict[str, str] = {}
        pictures: dict[str, list[ShownPicture]] = {}
        for picture in found.pictures:
            pictures.setdefault(picture.node, []).append(picture)
        shown = []
        for node in turn.nodes:
            row = found.texts.get(node)
            if row is None:
                continue
            row = _with_blobs(row, blobs)
            calls = [
                {**call, "shown": texts.arguments(call["arguments"][:most]), "cut": call["length"] > most}
                for call in row["tool_calls"] or ()
            ]
            titles |= {call["id"]: call["name"] for call in calls}
            text, thought = row["content"] or "", row["reasoning"] or ""
            left = (row["length"] or 0) - most
            if left > 0:
                text = f"{text[: most * 2 // 3]}\n⋯\n{(row['ending'] or text)[-(most // 3) :]}"
            paint = texts.terminal if row["role"] == "tool" else texts.plain
            if find and (wanted := _pattern(find)).search(text):
                paint = partial(texts.marked, wanted=wanted)
            lines = text.count("\n") + 1
            shown.append(
                {
                    **row,
                    "node": node,
                    "html": paint(text),
                    "empty": not text.strip(),
                    "left": max(left, 0),
                    "lines": lines,
                    "folded": lines > OPEN_LINES or len(text) > OPEN_CHARACTERS,
                    "first_line": texts.visible(_first_line(text))[:160],
                    "thought": texts.plain(thought[:most]),
                    "calls": calls,
                    "of": titles.get(row["tool_call_id"] or "", ""),
                    "call": found.calls.get(node),
                    "pictures": pictures.get(node, []),
                }
            )
        return shown


def _statement(task: Task | None, most: int) -> texts.ShownMarkdown | None:
    """The task's own words with keys masked, at most `most` characters."""
    text = masked(task.statement.strip()).text[:most] if task else ""
    return texts.markdown(text) if text else None


def _call(row: Row) -> Row:
    """Shortens a service call's request and answer."""
    cut = {name: row[name][:CALL] for name in ("arguments", "response")}
    return row | cut | {"left": sum(max((row[name] or 0) - CALL, 0) for name in ("asked", "answered"))}


def _first_line(text: str) -> str:
    """First line of content, not one of the tags that harnesses put around results."""
    lines = [line.strip() for line in text[:4000].split("\n") if line.strip()]
    return next((line for line in lines if not line.startswith("<")), lines[0] if lines else "")


def _sections(node: MessageNode) -> list[str]:
    found = [node.reasoning, node.content]
    found += [f"{call.name} {call.arguments}" for call in node.tool_calls]
    return [text for text in found if text]


def _blob(blobs: BlobStore, sha256: str) -> str:
    """Text of a blob, or a sentence that it cannot be read."""
    try:
        return blobs.get(BlobRef(sha256=sha256, size=0)).decode("utf-8", "replace")
    except (BlobMissing, BlobCorrupt) as error:
        return f"[{error}]"


def _with_blobs(row: Row, blobs: BlobStore) -> Row:
    """Adds to a row the parts that are stored in blobs."""
    if row["content_sha256"]:
        text = _blob(blobs, row["content_sha256"])
        row = row | {"content": text, "ending": None, "length": len(text)}
    if row["rest_sha256"]:
        rest = _blob(blobs, row["rest_sha256"])
        try:
            known = json.loads(rest)
        except ValueError:
            return row | {"reasoning": rest, "reasoning_length": len(rest)}
        calls = [
            {name: call.get(name, "") for name in ("id", "name", "arguments")}
            | {"length": len(call.get("arguments", ""))}
            for call in known.get("tool_calls", ())
        ]
        thought = known.get("reasoning", "")
        row = row | {"tool_calls": calls, "reasoning": thought, "reasoning_length": len(thought)}
    return row


def _pattern(find: str) -> re.Pattern[str]:
    return re.compile(re.escape(find), re.IGNORECASE)


def rollout_address(rollout: str, view: RolloutView, **changes: object) -> str:
    """Address of a rollout with the parameters of its view, except the changed ones."""
    known = {name: getattr(view, name) for name in ("attempt", "leaf", "as_of", "turn", "find")} | changes
    left = {name: value for name, value in known.items() if value not in (None, "")}
    return f"/rollouts/{rollout}" + (f"?{urlencode(left)}" if left else "")


_PARTS = (
    ("create", "sandbox", "seconds_creating"),
    ("model", "model", "seconds_llm"),
    ("command", "commands", "seconds_commands"),
    ("grade", "grading", "seconds_grading"),
)


def _times(outcome: Row) -> list[charts.BarPart]:
    """Bar parts of a rollout's time."""
    found = [
        charts.BarPart(
            kind, outcome.get(column) or 0.0, f"{title} {FILTERS['duration'](outcome.get(column))}"
        )
        for kind, title, column in _PARTS
        if outcome.get(column)
    ]
    rest = (outcome.get("seconds") or 0.0) - sum(part.value for part in found)
    if rest > 0.01:
        found.append(charts.BarPart("wait", rest, f"other {FILTERS['duration'](rest)}"))
    return found


def campaign_bar(view: CampaignView) -> Markup:
    """Bar of a campaign's rollouts by outcome."""
    kinds = {"resolved": "good", "unresolved": "bad", "ungraded": "plain"}
    parts = [
        charts.BarPart(kinds.get(outcome, "broken"), number, f"{outcome_name(outcome)} {number:,}")
        for outcome, number in sorted(
            view.outcomes.items(), key=lambda each: [*kinds, each[0]].index(each[0])
        )
    ]
    parts.append(charts.BarPart("live", view.running, f"running {view.running:,}"))
    return charts.bar(parts, total=max(view.size, view.done), height=10)


def outcome_address(campaign: str, outcome: str) -> str:
    """Address of a campaign's rollouts with an outcome, such as `aborted: cause`."""
    word, _, cause = outcome.partition(": ")
    return "/rollouts?" + urlencode(
        {"campaign": campaign, "outcome": word, **({"cause": cause} if cause else {})}
    )
