"""Calls an endpoint as programs of its users do, through the package `openai`, which this module alone
imports. Answers are read as workers read them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec
import openai

from orchard.schemas.llm_calls import Usage
from orchard.workers.llm.answers import Completion, MalformedAnswer, read_completion, usage_of
from orchard.workers.llm.known_errors import meaning
from orchard.workers.llm.refusals import Meaning, error_body, error_of, without_key
from orchard.workers.llm.rest_policy import LOOPBACK
from orchard.workers.llm.settings import EndpointSettings
from orchard.workers.llm.streamed import assembled, is_stream

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_LIMITS = ("max_tokens", "max_completion_tokens")
_PATH = "check base_url, which ends with the version path, as in https://HOST/v1"
_SERVER = "check base_url, and that the server runs"
_QUOTED = 300
"""Characters that are quoted of what an endpoint says."""
AGAIN_SECONDS = (0.5, 2.0)
"""Seconds after which a call that the server failed at (5xx) is sent again."""
_Answer = TypeVar("_Answer")


class CallFailed(Exception):
    """A call had no usable answer; the text is the endpoint's, without key and address."""

    def __init__(self, says: str, kind: Meaning, status: int = 0) -> None:
        super().__init__(says)
        self.meaning = kind
        self.status = status

    @property
    def temporary(self) -> bool:
        return self.meaning in (Meaning.TRANSIENT, Meaning.THROTTLED)


class EndpointCalls:
    """Calls to the first server of an endpoint; one that the server fails at (5xx) is sent up to three times.
    Sums the tokens of all."""

    def __init__(self, settings: EndpointSettings, key: str, seconds: float) -> None:
        self._settings = settings
        self._key = key
        self._seconds = seconds
        self._limit = _LIMITS[0]
        self.usages: list[Usage] = []
        """Tokens of each answer."""
        local = urlsplit(settings.base_url).hostname in LOOPBACK
        self._client = openai.AsyncOpenAI(
            base_url=settings.base_url,
            api_key=key or "none",
            timeout=seconds,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=not local),
        )

    async def close(self) -> None:
        await self._client.close()

    async def models(self) -> list[dict[str, Any]]:
        """Lists the models with all that the server says of each. Raises CallFailed."""
        with self._failures():
            reply = await self._client.models.with_raw_response.list()
            listed = msgspec.json.decode(reply.content)
        entries = listed.get("data") if isinstance(listed, dict) else None
        return [each for each in entries or () if isinstance(each, dict) and isinstance(each.get("id"), str)]

    async def complete(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        most: int,
        fields: Mapping[str, Any] = _NOTHING,
    ) -> Completion:
        """Returns an answer of at most `most` tokens, whole or as a stream, as the endpoint is configured.
        Raises CallFailed."""
        return await self._again(lambda: self._complete(model, messages, most, fields))

    async def stream(self, model: str, messages: Sequence[Mapping[str, Any]], most: int) -> tuple[int, Usage]:
        """Returns the number of chunks of a streamed answer, and its tokens. Raises CallFailed."""
        return await self._again(lambda: self._stream(model, messages, most))

    async def _again(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        for pause in AGAIN_SECONDS:
            try:
                return await call()
            except CallFailed as failed:
                if failed.status < 500:
                    raise
            await asyncio.sleep(pause)
        return await call()

    async def _complete(
        self, model: str, messages: Sequence[Mapping[str, Any]], most: int, fields: Mapping[str, Any]
    ) -> Completion:
        chat = self._client.chat.completions.with_raw_response
        with self._failures():
            reply = await self._post(chat, model, messages, most, self._settings.stream, fields)
            raw = await reply.http_response.aread()
            if "html" in reply.headers.get("content-type", ""):
                raise CallFailed(f"answered a web page in place of a completion: {_PATH}", Meaning.REFUSED)
            answer = read_completion(assembled(raw) if is_stream(raw) else raw)
        self.usages.append(answer.usage)
        return answer

    async def _stream(
        self, model: str, messages: Sequence[Mapping[str, Any]], most: int
    ) -> tuple[int, Usage]:
        chunks, usage = 0, Usage()
        with self._failures():
            stream = await self._post(self._client.chat.completions, model, messages, most, True)
            async for chunk in stream:
                chunks += bool(chunk.choices)
                if chunk.usage is not None:
                    usage = usage_of(chunk.usage.model_dump(), said=True)
        if not chunks:
            raise CallFailed("answered no stream", Meaning.REFUSED)
        self.usages.append(usage)
        return chunks, usage

    async def refused_length(self, model: str, messages: Sequence[Mapping[str, Any]], most: int) -> str:
        """Returns what the endpoint says against an answer of `most` tokens; empty if it begins one, which
        is then ended."""
        try:
            with self._failures():
                stream = await self._post(self._client.chat.completions, model, messages, most, True)
                async for _ in stream:
                    break
                await stream.close()
        except CallFailed as failed:
            return str(failed)
        self.usages.append(Usage())  # whose tokens it did not come to tell
        return ""

    async def _post(
        self,
        chat: Any,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        most: int,
        stream: bool,
        fields: Mapping[str, Any] = _NOTHING,
    ) -> Any:
        """Sends a request with the configured fields; with the newer name of the limit where it is asked
        for."""
        extra = {**fields, **self._settings.extra_body}
        options = {"stream_options": {"include_usage": True}} if stream else {}
        while True:
            limit = {} if any(name in extra for name in _LIMITS) else {self._limit: most}
            try:
                return await chat.create(
                    model=model, messages=messages, stream=stream, extra_body=extra, **options, **limit
                )
            except openai.BadRequestError as error:
                if self._limit == _LIMITS[1] or _LIMITS[1] not in error.response.text:
                    raise
                self._limit = _LIMITS[1]

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Raises CallFailed for whatever the package raises."""
        began = time.monotonic()
        try:
            yield
        except openai.APIStatusError as error:
            raise self._refusal(error.status_code, error.response) from None
        except openai.APITimeoutError:
            waited = time.monotonic() - began
            raise CallFailed(f"did not answer within {waited:.0f} s", Meaning.TRANSIENT) from None
        except httpx.HTTPError as error:  # in the middle of an answer
            raise CallFailed(f"broke off its answer ({type(error).__name__})", Meaning.TRANSIENT) from None
        except openai.APIConnectionError as error:
            why = type(error.__cause__ or error).__name__
            raise CallFailed(f"could not be reached ({why}): {_SERVER}", Meaning.TRANSIENT) from None
        except MalformedAnswer as error:
            inside = error_body(error.error)
            said = self._quoted(inside.message or str(error))
            raise CallFailed(f"gave no completion: {said}", meaning(200, inside)) from None
        except (openai.APIError, msgspec.MsgspecError, ValueError) as error:
            said = self._quoted(str(error))
            raise CallFailed(f"answered what is not understood: {said}", Meaning.TRANSIENT) from None

    def _refusal(self, status: int, response: Any) -> CallFailed:
        told = error_of(response.content)
        kind = meaning(status, told)
        if "html" in response.headers.get("content-type", ""):
            return CallFailed(f"answered {status} with a web page: {_PATH}", kind, status)
        said = self._quoted(told.message or told.type or "no message")
        if status in (401, 403):
            variable = self._settings.api_key_env
            fix = (
                f"check the key in {variable}"
                if variable
                else "set api_key_env to the variable that holds your key"
            )
            return CallFailed(f"answered {status}: {without_key(said, self._key)}: {fix}", kind, status)
        return CallFailed(f"answered {status}: {said}", kind, status)

    def _quoted(self, said: str) -> str:
        for secret in (self._key, self._settings.base_url):
            said = said.replace(secret, "***") if secret else said
        said = " ".join(said.split())
        return said if len(said) <= _QUOTED else said[:_QUOTED] + "..."
