"""Rollouts of a browser agent in the log, with pictures among the blobs of its store."""

import io

import msgspec
from PIL import Image as Canvas

from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.identity import rollout_id
from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import Image, MessageNode, Role, ToolCall, ToolResult, node_id
from orchard.schemas.outcomes import ExitStatus, Reward
from orchard.storage.blobs import BlobStore
from tests.trajectory_log import TIME, Author, llm_call

SCREEN = (64, 50)
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}}
    for name in ("click", "write", "done")
]
OPENED, CLOSED = "<observation>\nscreen size: 64 x 50", "\n</observation>"
CAPTION = "\nscreenshot:\n"


def screen(number: int) -> bytes:
    """A PNG that is another for each number."""
    target = io.BytesIO()
    Canvas.new("RGB", SCREEN, (number * 37 % 256, number * 91 % 256, number * 53 % 256)).save(target, "PNG")
    return target.getvalue()


class GuiAuthor(Author):
    """Writes rollouts: a screen before each answer, a click an answer, `done` at the end."""

    def __init__(self, blobs: BlobStore, campaign: str = "gui") -> None:
        super().__init__(campaign)
        self.blobs = blobs
        self._screens = 0

    def shot(self) -> Image:
        """A new screen."""
        self._screens += 1
        blob = self.blobs.put(screen(self._screens), "image/png")
        return Image(
            blob=blob,
            media_type="image/png",
            width=SCREEN[0],
            height=SCREEN[1],
            at=len(OPENED),
            caption=CAPTION,
        )

    def played(
        self,
        task: str,
        turns: int,
        *,
        site: str = "shop",
        resolved: bool = True,
        sample: int = 0,
        last: int = 1,
        words: str = "",
        role: Role = Role.USER,
    ) -> list[e.Event]:
        """From request to outcome. The model was shown the `last` screens; `role` has the screens."""
        rollout = rollout_id(self.campaign, task, "claw-react", "m", sample)
        ref = TaskRef(task_id=task, source="sites", repo=site, blob=BlobRef(sha256="0" * 64, size=1))
        spec = ModelSpec(name="m")
        request = RolloutRequest(
            rollout_id=rollout,
            campaign=self.campaign,
            task=ref,
            harness="claw-react",
            model=spec,
            sample=sample,
        )
        started = e.RolloutStarted(worker="w", request_sequence=1, deliveries=1)
        found = [self.event(request, rollout, None), self.event(started, rollout)]
        path: list[MessageNode] = []
        tools = self.blobs.put(msgspec.json.encode(TOOLS), "application/json")

        def say(role: Role, turn: int, text: str, **more: object) -> None:
            parent = path[-1].node_id if path else None
            given = {name: more[name] for name in ("tool_calls", "tool_call_id", "images") if name in more}
            name = node_id(parent, role, text, **given)  # type: ignore[arg-type]
            node = MessageNode(node_id=name, parent=parent, role=role, turn=turn, content=text, **more)  # type: ignore[arg-type]
            path.append(node)
            found.append(self.event(node, rollout))

        say(Role.SYSTEM, 0, "You see a browser.")
        say(Role.USER, 0, OPENED + CLOSED + f"\n<user_request>{task}</user_request>", images=(self.shot(),))
        result = ToolResult(returncode=0, seconds=0.1)
        for turn in range(1, turns + 1):
            ends = turn == turns
            arguments = {"response": "bought"} if ends else {"point_2d": [turn * 10, 500]}
            call = ToolCall(
                id=f"c{turn}",
                name="done" if ends else "click",
                arguments=msgspec.json.encode(arguments).decode(),
            )
            shown = [image.blob.sha256 for node in path for image in node.images][-last:]
            parent = path[-1].node_id
            say(Role.ASSISTANT, turn, words, reasoning=f"I think {turn}.", tool_calls=(call,))
            facts = {"parent": parent, "node": path[-1].node_id, "call_kind": CallKind.MAIN}
            made = llm_call(turn, **facts, tools=tools, images_shown=tuple(shown))
            found.append(self.event(made, rollout))
            if role is Role.TOOL and not ends:
                shot = (self.shot(),)
                say(role, turn, OPENED + CLOSED, tool_call_id=call.id, result=result, images=shot)
                continue
            say(Role.TOOL, turn, f"Succeed: `{call.name}`", tool_call_id=call.id, result=result)
            if not ends:
                say(Role.USER, turn, OPENED + CLOSED, images=(self.shot(),))
        value = 1.0 if resolved else 0.0
        reward = Reward(value=value, resolved=resolved, grader="sites")
        outcome = e.RolloutFinished(
            task_id=task,
            task_source="sites",
            repo=site,
            harness="claw-react",
            model="m",
            model_kind=spec.kind,
            sample=sample,
            worker="w",
            started_at=TIME,
            seconds=1.0,
            turns=turns,
            status=ExitStatus.FINISHED.status,
            exit_status=ExitStatus.FINISHED,
            reward=value,
            resolved=resolved,
            leaf=path[-1].node_id,
        )
        return [*found, self.event(reward, rollout), self.event(outcome, rollout)]
