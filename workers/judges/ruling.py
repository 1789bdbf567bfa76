"""Asks a judge. Each answer and each judgement's end are events; a failure aborts the attempt."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.identity import digest
from orchard.schemas.judging import JudgeCalled, JudgeRuled, JudgeVerdict
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.plugins import PluginError
from orchard.workers.episode.settings import JudgeSettings
from orchard.workers.failures import EndpointRests, InfrastructureError
from orchard.workers.judges import get_protocol
from orchard.workers.judges.interface import Ask, BadVerdict, Evidence, JudgeProtocol, Messages
from orchard.workers.judges.rubric import read_score
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.errors import ContextLengthExceeded
from orchard.workers.masking import masked

SEED = 42
"""Seed of each call: a repeated question has another conversation."""
_ANSWER_LIMIT = 4_000

T = TypeVar("T")
Judged = tuple[T, JudgeVerdict | None]
Publish = Callable[[msgspec.Struct], Awaitable[None]]


class Verbatim:
    """A stand-in for the protocol of messages that a grader wrote itself, asked once and unchanged."""

    version = "verbatim-1"
    words = ""


VERBATIM = Verbatim()


class Judges:
    def __init__(self, models: ModelClient, settings: JudgeSettings, publish: Publish) -> None:
        self._models = models
        self._settings = settings
        self._publish = publish
        self.who: str | None = None
        """Protocol, model and prompt hash of the newest ruling."""

    @property
    def configured(self) -> bool:
        return self._settings.model is not None

    def protocol(self, version: str = "") -> JudgeProtocol:
        """Returns the protocol of that name, or that of the configuration. Raises InfrastructureError
        (INVALID_REQUEST) for an unknown one."""
        try:
            return get_protocol(version or self._settings.protocol)
        except PluginError as error:
            raise InfrastructureError(AbortCause.INVALID_REQUEST, str(error)) from error

    async def rule(self, name: str, evidence: Evidence, protocol: str = "") -> JudgeVerdict:
        """Returns the verdict on `name`, by the protocol or by that of the configuration.

        Raises InfrastructureError: JUDGE_FAILED if no judge is configured, it is down, or does not answer in
        the protocol's form; LLM_REFUSED if it refuses the key or the request. It never guesses.
        """
        chosen = self.protocol(protocol)

        async def ruled(ask: Ask) -> tuple[JudgeVerdict, JudgeVerdict]:
            verdict = checked(await chosen.judge(evidence, ask))
            return verdict, verdict

        return await self._judged(name, chosen, ruled)

    async def ask(self, name: str, messages: Messages) -> str:
        """Returns the answer to messages in a grader's own words, which the grader reads. A score in the form
        of the protocol `rubric` is recorded with the judgement. Raises as `rule` does."""

        async def answered(ask: Ask) -> tuple[str, JudgeVerdict | None]:
            text = await ask(messages)
            return text, score_in(text)

        return await self._judged(name, VERBATIM, answered)

    async def _judged(
        self, name: str, protocol: JudgeProtocol | Verbatim, judge: Callable[[Ask], Awaitable[Judged[T]]]
    ) -> T:
        settings = self._settings
        if settings.model is None:
            raise InfrastructureError(
                AbortCause.JUDGE_FAILED,
                f"{name} needs a judge and none is configured: set judge.model and judge.endpoint",
            )
        judgement = _Judgement(self._models, settings, settings.model, self._publish, name, protocol)
        found = await judgement.made(judge)
        self.who = f"{protocol.version} {settings.model} {prompt_hash(protocol)}"
        return found


class _Judgement:
    def __init__(
        self,
        models: ModelClient,
        settings: JudgeSettings,
        model: str,
        publish: Publish,
        name: str,
        protocol: JudgeProtocol | Verbatim,
    ) -> None:
        self._models = models
        self._settings = settings
        self._spec = ModelSpec(
            name=model,
            endpoint=settings.endpoint,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
        )
        self._publish = publish
        self._name = name
        self._protocol = protocol
        self._hash = prompt_hash(protocol)
        self._costs: list[float | None] = []

    async def made(self, judge: Callable[[Ask], Awaitable[Judged[T]]]) -> T:
        try:
            found, verdict = await judge(self._ask)
        except EndpointRests:
            raise  # it is judged when the endpoint answers again
        except InfrastructureError as error:
            await self._ended(None, error.detail)
            cause = error.cause
            if cause is AbortCause.LLM_UNAVAILABLE:
                cause = AbortCause.JUDGE_FAILED
            raise InfrastructureError(cause, f"the judge of {self._name}: {error.detail}") from error
        except Exception as error:
            why = str(error) if isinstance(error, BadVerdict) else f"{type(error).__name__}: {error}"
            await self._ended(None, why)
            raise InfrastructureError(
                AbortCause.JUDGE_FAILED, f"the judge of {self._name} gave no verdict: {why}"
            ) from error
        await self._ended(verdict)
        return found

    async def _ask(self, messages: Messages) -> str:
        sent = [dict(message) for message in messages]
        try:
            answer = await self._models.complete(
                self._spec, sent, [], seed=SEED, timeout=self._settings.timeout_seconds
            )
        except ContextLengthExceeded as error:
            raise BadVerdict(f"the evidence does not fit the judge's context: {error}") from error
        self._costs.append(answer.cost_usd)
        await self._publish(
            JudgeCalled(
                name=self._name,
                protocol=self._protocol.version,
                prompt_hash=self._hash,
                input_hash=digest(sent, 16),
                number=len(self._costs),
                model=self._spec.name,
                served_model=answer.served_model,
                endpoint=answer.endpoint,
                model_kind=answer.model_kind,
                usage=answer.usage,
                cost_usd=answer.cost_usd,
                seconds=answer.seconds,
                tries=answer.tries,
                answer=masked(answer.text).text[:_ANSWER_LIMIT],
            )
        )
        return answer.text

    async def _ended(self, verdict: JudgeVerdict | None, fault: str = "") -> None:
        costs = [cost for cost in self._costs if cost is not None]
        await self._publish(
            JudgeRuled(
                name=self._name,
                protocol=self._protocol.version,
                prompt_hash=self._hash,
                model=self._spec.name,
                endpoint=self._spec.endpoint,
                calls=len(self._costs),
                cost_usd=sum(costs) if len(costs) == len(self._costs) else None,
                score=verdict.score if verdict else None,
                passed=verdict.passed if verdict else None,
                reason=masked(verdict.reason).text if verdict else "",
                fault=masked(fault).text,
            )
        )


def checked(verdict: JudgeVerdict) -> JudgeVerdict:
    """Checks a verdict, which may be a plug-in's. Raises BadVerdict and ValidationError."""
    verdict = msgspec.convert(msgspec.to_builtins(verdict), JudgeVerdict)
    if not 0 <= verdict.score <= 1:
        raise BadVerdict(f"the score is {verdict.score}: it must be from 0 to 1")
    return verdict


def score_in(text: str) -> JudgeVerdict | None:
    try:
        return read_score(text)
    except BadVerdict:
        return None


def prompt_hash(protocol: JudgeProtocol | Verbatim) -> str:
    """Returns 16 hexadecimal digits over a protocol's own words."""
    return digest(protocol.words, 16)
