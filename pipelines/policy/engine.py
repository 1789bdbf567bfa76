"""Continuous batching: one thread, one token for every running request a step; requests join and leave
between steps. Weights are exchanged between two steps. Running requests continue: their tokens so far
stay, keys and values are computed again with the new weights, and every later token is the new
version's alone. The experts that are reported of a token are those of the pass that read it first."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as functional

from orchard.pipelines.policy.cache import Cache
from orchard.pipelines.policy.decoding import Decoder, Record, recorder
from orchard.pipelines.policy.pictures import Features, Shown
from orchard.pipelines.policy.running import Ends, Generated, RunningRequest
from orchard.pipelines.policy.sampling import Sampling
from orchard.pipelines.policy.weights import ROWS, ServedModel

_SCORED_AT_ONCE = 256
"""Tokens of a prompt whose logits are in memory at once."""


class Overloaded(Exception):
    """The queue of waiting requests is full: retry later."""


class Stopping(Exception):
    """The engine is stopping: it takes no requests, and gave this one up."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an engine."""

    slots: int = 32
    """Maximum concurrent requests."""
    context: int = 4096
    """Tokens of a sequence, prompt and answer together."""
    waiting: int = 256
    """Requests that may wait for a slot."""
    prefill: int = 4096
    """Prompt tokens that are read between two steps, unless one prompt alone is longer."""
    prefix_cache: bool = False
    """Keep what a slot holds for a later prompt that begins alike. Saves most of the reading in multi-turn
    rollouts; a token may then depend, in the last bit of its probability, on what was asked before."""
    graphs: bool | None = None
    """Pad steps to few shapes and replay them, on a GPU as CUDA graphs; None: on a GPU alone."""


class Figures(msgspec.Struct):
    """Counts since the start, and the present load."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    busy_seconds: float = 0.0
    reloads: int = 0
    running: int = 0
    waiting: int = 0


class _Slot:
    """A row of the cache: the keys of the tokens whose vectors it holds, and the task that generates
    there."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.task: RunningRequest | None = None


class GenerationEngine:
    """Generates in a thread of its own. Methods may be called from any thread."""

    def __init__(
        self, model: ServedModel, version: int, settings: EngineSettings, record: Record | None = None
    ) -> None:
        """`record` takes the place of what the settings and the model's device choose."""
        self.settings = msgspec.structs.replace(settings, context=min(settings.context, model.positions))
        self.figures = Figures()
        self.version = version
        self._model = model
        self._cache = Cache(model, slots=settings.slots, context=self.settings.context)
        self._decoder = Decoder(model, self._cache, record or recorder(model, settings.graphs))
        self._slots = [_Slot() for _ in range(settings.slots)]
        self._waiting: deque[RunningRequest] = deque()
        self._exchanges: deque[tuple[ServedModel, int, Future[int]]] = deque()
        self._changed = threading.Condition()
        self._draining = self._stopped = False
        self.ended: Future[BaseException | None] = Future()
        """Resolved when the thread has ended: with the error that ended it, or None."""
        self._thread = threading.Thread(target=self._run, name="policy-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        ends: Ends | None = None,
        pictures: Sequence[Shown] = (),
        *,
        scored: bool = False,
        routed: bool = False,
    ) -> Future[Generated]:
        """Ask for an answer to `prompt`, with the log-probabilities of its own tokens if it is to be
        `scored`, with the experts of all tokens if `routed`. A cancelled future frees its slot at the next
        step.

        Raises Overloaded or Stopping; ValueError for a prompt with no token, with one the model does not
        know, with no room for an answer in the context, or whose picture tokens are not those of `pictures`,
        and for experts of a model without.
        """
        if routed and self._cache.experts is None:
            raise ValueError("this model has no experts to report: leave `return_routed_experts` out")
        if not prompt or min(prompt) < 0 or max(prompt) >= self._model.vocabulary:
            raise ValueError(f"a prompt is one or more token ids below {self._model.vocabulary}")
        room = self.settings.context - len(prompt)
        if room < 1:
            raise ValueError(
                f"the maximum context length is {self.settings.context} tokens, the prompt has {len(prompt)}"
            )
        sampling = msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, room))
        if pictures and self._model.tower is None:
            raise ValueError("the model reads text alone: send no pictures, or serve a model that sees")
        layout = self._model.tower.layout(prompt, pictures) if self._model.tower else None
        task = RunningRequest(prompt, sampling, ends, layout, scored=scored, routed=routed)
        with self._changed:
            if self._draining:
                raise Stopping
            if len(self._waiting) >= self.settings.waiting:
                raise Overloaded
            self._waiting.append(task)
            self.figures.waiting = len(self._waiting)
            self._changed.notify()
        return task.future

    def reload(self, model: ServedModel, version: int) -> Future[int]:
        """Exchange the weights before the next step; the future has the version once they are in use.

        Raises ValueError for a model of another shape.
        """
        if model.form != self._model.form:
            raise ValueError("the new weights are of another architecture than those being served")
        done: Future[int] = Future()
        with self._changed:
            if self._stopped:
                raise Stopping
            self._exchanges.append((model, version, done))
            self._changed.notify()
        return done

    def stop(self, drain_seconds: float) -> None:
        """Refuse new requests, finish the present ones within `drain_seconds`, give up the rest."""
        with self._changed:
            self._draining = True
            self._changed.notify()
        self._thread.join(drain_seconds)
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                started = time.monotonic()
                self._exchange_weights()
                self._admit()
                self._step()
                self.figures.busy_seconds += time.monotonic() - started
        except Exception as error:  # whoever waits on `ended` or for an answer is told
            self._give_up(error)
        else:
            self._give_up(Stopping())

    def _wait_for_work(self) -> bool:
        """Wait until there is work; False when there never will be."""
        with self._changed:
            while not self._stopped:
                if self._waiting or self._exchanges or self._running():
                    return True
                if self._draining:
                    return False
                self._changed.wait()
            return False

    def _running(self) -> list[tuple[int, RunningRequest]]:
        return [(number, slot.task) for number, slot in enumerate(self._slots) if slot.task]

    def _exchange_weights(self) -> None:
        while self._exchanges:
            self._model, self.version, done = self._exchanges.popleft()
            for number, task in self._running():
                self._keep_experts(number, task)
            self._decoder.exchange(self._model)
            self.figures.reloads += 1
            for slot in self._slots:
                slot.held = []
            self._read(self._running())
            done.set_result(self.version)

    def _keep_experts(self, number: int, task: RunningRequest) -> None:
        """Take the experts of a request's tokens out of its slot, where that is asked for."""
        if task.routed and self._cache.experts is not None:
            known = sum(map(len, task.experts))
            task.experts.append(self._cache.experts.read(number, known, len(task.tokens) - 1))

    def _admit(self) -> None:
        """Give free slots to waiting requests, up to the prefill limit."""
        admitted: list[tuple[int, RunningRequest]] = []
        budget = self.settings.prefill
        free = [number for number, slot in enumerate(self._slots) if slot.task is None]
        with self._changed:
            while self._waiting and free and budget > 0:
                task = self._waiting.popleft()
                if task.future.cancelled():
                    continue
                prefix = task.keys[:-1]
                number = free.pop(0)
                reuse = self.settings.prefix_cache and not task.scored
                if reuse:
                    self._bring(number, [number, *free], prefix)
                slot = self._slots[number]
                task.cached = _common(slot.held, prefix) if reuse else 0
                slot.task, slot.held = task, slot.held[: task.cached]
                admitted.append((number, task))
                budget -= len(prefix) - task.cached
                self.figures.requests += 1
                self.figures.prompt_tokens += task.prompt
                self.figures.cached_tokens += task.cached
            self.figures.waiting = len(self._waiting)
        self._read(admitted)

    def _bring(self, number: int, free: list[int], prefix: list[int]) -> None:
        """Copy into slot `number` the best prefix that the `free` slots hold: most of the prompt, else
        the least of any. A step computes all slots up to the highest in use, so the lowest is used and
        not the best."""
        slots = self._slots
        best = max(free, key=lambda n: (_common(slots[n].held, prefix), -len(slots[n].held), -n))
        if best != number:
            here, there = slots[number], slots[best]
            self._cache.exchange(number, best, max(len(here.held), len(there.held)))
            here.held, there.held = there.held, here.held

    def _read(self, tasks: list[tuple[int, RunningRequest]]) -> None:
        """Compute the keys and values that the slots lack, up to before each task's last token, and score
        prompts where that is asked for."""
        pieces: list[tuple[int, int, int]] = []
        ids: list[int] = []
        positions: list[torch.Tensor] = []
        pictures: list[tuple[int, Features]] = []
        scored: list[tuple[int, RunningRequest]] = []
        tower = self._model.tower
        for number, task in tasks:
            slot = self._slots[number]
            first, end = len(slot.held), len(task.tokens) - 1
            if first == end:
                continue
            pieces.append((number, first, end - first))
            if task.scored:
                scored.append((len(ids), task))
            for at, shown, begin, stop in task.pictures(first, end):
                assert tower is not None
                pictures.append((len(ids) + at, tower.features(shown).part(begin, stop)))
            ids += task.tokens[first:end]
            positions.append(task.positions(first, end) if tower else torch.arange(first, end))
            slot.held = task.keys[:end]
        if not pieces:
            return
        padding = -len(ids) % ROWS
        device = self._model.device
        hidden = self._model.hidden(
            torch.tensor(ids + [0] * padding, device=device),
            functional.pad(torch.cat(positions, dim=-1), (0, padding)).to(device),
            self._cache.filling(pieces, padding),
            pictures,
            self._cache.experts.filling(pieces) if self._cache.experts else None,
        )
        for at, task in scored:
            task.prompt_logprobs = self._scores(
                hidden[at : at + task.prompt - 1], task.tokens[1 : task.prompt]
            )

    def _scores(self, hidden: torch.Tensor, targets: Sequence[int]) -> list[float]:
        """Log-probabilities of `targets` after the tokens whose vectors are `hidden`, a part at a time."""
        found: list[float] = []
        for first in range(0, len(targets), _SCORED_AT_ONCE):
            rows = hidden[first : first + _SCORED_AT_ONCE]
            wanted = torch.tensor(targets[first : first + _SCORED_AT_ONCE], device=rows.device)
            logits = self._model.logits(functional.pad(rows, (0, 0, 0, -len(rows) % ROWS)))[: len(rows)]
            found += torch.log_softmax(logits, dim=-1).gather(1, wanted[:, None])[:, 0].tolist()
        return found

    def _step(self) -> None:
        running = self._running()
        if not running:
            return
        rows = {}
        for number, task in running:
            self._slots[number].held.append(task.keys[-1])
            rows[number] = task.row()
        chosen = self._decoder.step(rows)
        self.figures.steps += 1
        self.figures.generated_tokens += len(running)
        for (number, task), (token, logprob) in zip(running, chosen, strict=True):
            reason = task.take(token, logprob, self.version)
            if reason is not None or task.future.cancelled():
                self._slots[number].task = None
                self._keep_experts(number, task)
                self._finish(task, reason)
        self.figures.running = sum(slot.task is not None for slot in self._slots)

    def _finish(self, task: RunningRequest, reason: str | None) -> None:
        # Until here the future could be cancelled, from now on it cannot.
        if reason is not None and task.future.set_running_or_notify_cancel():
            task.future.set_result(
                Generated(
                    ids=task.tokens[task.prompt :],
                    logprobs=task.logprobs,
                    versions=task.versions,
                    finish_reason=reason,
                    cached=task.cached,
                    prompt_logprobs=task.prompt_logprobs,
                    experts=np.concatenate(task.experts) if task.experts else None,
                )
            )

    def _give_up(self, error: BaseException) -> None:
        """Fail all waiting and running requests with `error`."""
        with self._changed:
            self._draining = self._stopped = True
            left = [*self._waiting, *(task for _, task in self._running())]
            self._waiting.clear()
            futures: list[Future[Any]] = [task.future for task in left]
            futures += [done for _, _, done in self._exchanges]
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        self.ended.set_result(None if isinstance(error, Stopping) else error)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for place, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return place
    return min(len(first), len(second))
