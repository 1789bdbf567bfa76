"""Asks a model until a reply keeps the rules, or the tries are used up."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from orchard.pipelines.values.replies import BadReply
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.llm_calls import ModelKind
from orchard.workers.episode.totals import Totals, used_by
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.errors import ContextLengthExceeded

log = logging.getLogger("orchard.annotator")

CONTEXT_EXCEEDED = "context_exceeded"

T = TypeVar("T")


@dataclass
class Inquiry(Generic[T]):
    """What became of a question; `found` is None where no reply was accepted."""

    model: ModelSpec
    found: T | None = None
    fault: str = ""
    """The rule that the last reply broke."""
    detail: str = ""
    clamped: T | None = None
    """The last reply's reading, which may count where no reply is accepted."""
    answers: list[Completion] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """What was asked and what it cost over all tries, as fields of an event. Tokens and cost are known
        only where each try's are."""
        last = self.answers[-1] if self.answers else None
        used = sum(map(used_by, self.answers), Totals())
        oracle = any(answer.model_kind is ModelKind.ORACLE for answer in self.answers)
        return {
            "model": self.model.name,
            "served_model": last.served_model if last else "",
            "model_kind": ModelKind.ORACLE if oracle else self.model.kind,
            "endpoint": self.model.endpoint,
            "tries": len(self.answers),
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.completion_tokens,
            "cost_usd": used.cost_usd,
            "seconds": self.seconds,
        }


async def ask(
    models: ModelClient,
    model: ModelSpec,
    prompt: Sequence[dict[str, str]],
    read: Callable[[str], T],
    retry: Callable[[str], str],
    *,
    what: str,
    seed: int,
    tries: int,
    timeout: float,
) -> Inquiry[T]:
    """Ask at most `tries` times; `read` raises BadReply, and `retry` makes the next message of the fault.
    `what` names the question in the process's log. Raises InfrastructureError."""
    began = time.monotonic()
    messages = list(prompt)
    asked = Inquiry[T](model)
    for number in range(tries):
        try:
            answer = await models.complete(model, messages, [], seed=seed + number, timeout=timeout)
        except ContextLengthExceeded as error:
            asked.fault, asked.detail = CONTEXT_EXCEEDED, str(error)
            break
        asked.answers.append(answer)
        try:
            asked.found = read(answer.text)
            break
        except BadReply as refused:
            asked.fault, asked.detail, asked.clamped = refused.fault.value, str(refused), refused.clamped  # type: ignore[assignment]
            log.info("%s, reply %d: %s", what, number + 1, asked.detail)
            messages += [
                {"role": "assistant", "content": answer.text or "(nothing)"},
                {"role": "user", "content": retry(asked.detail)},
            ]
    asked.seconds = time.monotonic() - began
    return asked
