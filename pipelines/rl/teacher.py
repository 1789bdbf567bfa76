"""Has a teacher score the sampled tokens of a run's groups: asks its endpoint, keeps the scores in the log.

A group's scores are one event, `group.scored`, before it is trained on. So a trainer that starts again trains
on the same numbers and asks for none twice, and all of its processes have them. Equal beginnings, which are
equal nodes of the message tree, are scored once.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.distillation import Distillation
from orchard.pipelines.rl.feed import Feed
from orchard.pipelines.rl.sequences import TokenSequence
from orchard.pipelines.rl.stepping import Chosen, Steps, dropped
from orchard.schemas.events import Event, make_event, payload
from orchard.schemas.groups import DropReason, GroupDropped, GroupScored
from orchard.storage.blobs import BlobStore
from orchard.streams.records import StoredEvent
from orchard.workers.llm.connection import FailedRequest
from orchard.workers.llm.refusals import Meaning
from orchard.workers.llm.scoring import Passage, ScoringEndpoint

SOURCE = "orchard/rl/teacher"
REMEMBERED = 4_000_000
"""Sampled tokens whose scores are kept in memory for other rollouts."""
PROMPTS = 64
"""Maximum sequences of one request."""
_PROBED = 256
"""Words of the vocabulary in the text by which tokenizers are compared."""
_FLOAT = "<f4"

log = logging.getLogger("orchard.rl.teacher")


class SampledRun(NamedTuple):
    """Consecutive sampled tokens of a sequence, from `first` to before `stop`: a node of the message tree."""

    key: bytes
    """Digest of all tokens up to `stop`."""
    first: int
    stop: int


Asked = tuple[Passage, list[SampledRun]]
"""A passage with the nodes in it that are scored."""


def sampled_runs(sequence: TokenSequence) -> list[SampledRun]:
    """The runs of sampled tokens of a sequence; those that follow each other without context are one."""
    trains = np.array(sequence.mask, dtype=np.int8)
    trains[0] = 0
    edges = np.flatnonzero(np.diff(trains, prepend=0, append=0)).reshape(-1, 2)
    ids, digest, read = np.asarray(sequence.ids, dtype="<i4"), hashlib.sha256(), 0
    found = []
    for first, stop in edges.tolist():
        digest.update(ids[read:stop].tobytes())
        read = stop
        found.append(SampledRun(digest.digest(), first, stop))
    return found


def passages_of(
    sequences: Iterable[TokenSequence], known: Container[bytes], claimed: set[bytes]
) -> Iterator[Asked]:
    """Yield what is to be asked for some sequences: no node that is `known`, and none twice. `claimed` are
    keys that were asked for already; those asked for here are added."""
    for sequence in sequences:
        runs = [run for run in sampled_runs(sequence) if run.key not in known and run.key not in claimed]
        if runs:
            claimed.update(run.key for run in runs)
            yield Passage(sequence.ids[: runs[-1].stop], runs[0].first), runs


def probe_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """A text that other tokenizers cut differently: words from all over the vocabulary, then its control
    tokens."""
    size = len(tokenizer)
    words = [tokenizer.decode([at]) for at in range(0, size, max(1, size // _PROBED))]
    return " ".join([*words, *tokenizer.get_added_vocab()])


async def check_tokenizer(
    endpoint: ScoringEndpoint, tokenizer: PreTrainedTokenizerBase, model: str, *, patient: bool = False
) -> None:
    """Raise RunError for a teacher that reads text as other tokens than the policy `model`, and for one that
    cannot be asked: with `patient` one that does not answer is awaited."""
    text = probe_text(tokenizer)
    expected: list[int] = tokenizer.encode(text, add_special_tokens=False)
    try:
        found = await endpoint.token_ids(text, patient=patient)
    except FailedRequest as error:
        raise RunError(
            f"the teacher {endpoint.model!r} cannot be asked, {error.detail}: serve it, or correct `distill`"
        ) from error
    if found[:1] == [tokenizer.bos_token_id] and found[:1] != expected[:1]:
        found = found[1:]
    if found != expected:
        at = next((n for n, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), -1)
        raise RunError(
            f"the teacher {endpoint.model!r} has another tokenizer than {model}, as the same text shows from "
            f"its token {at} on: choose a teacher with the policy's tokenizer, since it is to score the "
            "policy's own tokens"
        )


class TeacherScores:
    """Scores of one run's groups. One process asks; all take them from the log."""

    def __init__(
        self,
        run: str,
        settings: Distillation,
        endpoint: ScoringEndpoint,
        feed: Feed,
        steps: Callable[[], tuple[Steps, int]],
        blobs: BlobStore,
        publish: Callable[[Event], Awaitable[int]],
    ) -> None:
        """`steps` gives the run's steps and its policy version now."""
        self._run, self._settings, self._endpoint = run, settings, endpoint
        self._feed, self._steps, self._blobs, self._publish = feed, steps, blobs, publish
        self._scored: dict[str, GroupScored] = {}
        self._asked: set[str] = set()
        self._known: OrderedDict[bytes, np.ndarray] = OrderedDict()
        """Scores of nodes, float32 [tokens], by their keys."""
        self._tokens = 0
        """Number of tokens in `_known`."""
        self._changed = asyncio.Event()

    def take(self, batch: Iterable[StoredEvent]) -> None:
        """Apply events of the log, in order."""
        for stored in batch:
            data = payload(stored.fact) if stored.fact is not None else None
            if isinstance(data, GroupScored) and data.run == self._run:
                self._scored.setdefault(data.group_id, data)
        self._changed.set()

    def ready(self, group: str) -> bool:
        return group in self._scored

    def facts(self, groups: Iterable[str]) -> list[GroupScored]:
        return [self._scored[group] for group in groups]

    def forget(self, groups: Iterable[str]) -> None:
        for group in groups:
            self._scored.pop(group, None)

    async def of(self, chosen: Iterable[Chosen]) -> dict[str, list[np.ndarray]]:
        """The teacher's log-probabilities of the sampled tokens of each sequence, by rollout. Raises RunError
        where they are not of these tokens, StorageError."""
        found: dict[str, list[np.ndarray]] = {}
        for group, rows in chosen:
            raw = await asyncio.to_thread(self._blobs.get, self._scored[group.group_id].scores)
            scores = np.frombuffer(raw, _FLOAT)
            lengths = [sum(row.mask[1:]) for own in rows for row in own]
            if sum(lengths) != len(scores):
                raise RunError(
                    f"group {group.group_id} has {sum(lengths)} sampled tokens and {len(scores)} scores of "
                    "its teacher: repeat the settings it was scored with"
                )
            each = iter(np.split(scores, np.cumsum(lengths)[:-1]))
            for member, own in zip(group.members, rows, strict=True):
                found[member.rollout_id] = [next(each) for _ in own]
        return found

    async def run(self) -> None:
        """Ask for the scores of waiting groups, until cancelled. A teacher that fails is waited for; raises
        RunError for one that refuses every request."""
        while True:
            self._changed.clear()
            await self._ask_all()
            await self._changed.wait()

    async def _ask_all(self) -> None:
        """Ask for all groups that wait without scores, as many in one request as fit."""
        batch, tokens = list[Chosen](), 0
        for group in self._feed.waiting:
            if group.group_id in self._scored or group.group_id in self._asked:
                continue
            self._asked.add(group.group_id)
            steps, version = self._steps()
            usable = await steps.usable(group, version)
            if not isinstance(usable, GroupDropped) and any(row.images for row in _sequences(usable)):
                usable = dropped(group, DropReason.UNSCORED, "a teacher is asked about tokens, not pictures")
            if isinstance(usable, GroupDropped):
                await steps.drop(usable)
                continue
            size = sum(len(row.ids) for row in _sequences(usable))
            if batch and tokens + size > self._settings.batch_tokens:
                await self._score(batch)
                batch, tokens = [], 0
            batch.append(usable)
            tokens += size
        await self._score(batch)

    async def _score(self, batch: Sequence[Chosen]) -> None:
        """Score some groups; where the teacher refuses them together, one by one."""
        try:
            asked = await self._ask(batch)
        except FailedRequest as error:
            if not (error.request or error.meaning is Meaning.CONTEXT_EXCEEDED):
                raise RunError(f"the teacher {self._endpoint.model!r} refuses: {error.detail}") from error
            if len(batch) > 1:
                for chosen in batch:
                    await self._score([chosen])
                return
            steps, _ = self._steps()
            await steps.drop(dropped(batch[0][0], DropReason.UNSCORED, error.detail))
            return
        for chosen, passages in zip(batch, asked, strict=True):
            await self._tell(chosen, passages)
        while self._tokens > REMEMBERED:
            _, oldest = self._known.popitem(last=False)
            self._tokens -= len(oldest)

    async def _ask(self, batch: Sequence[Chosen]) -> list[list[Asked]]:
        """Ask for the nodes of some groups that have no scores; returns what was asked for each group."""
        claimed = set[bytes]()
        asked = [list(passages_of(_sequences(chosen), self._known, claimed)) for chosen in batch]
        rest = [each for passages in asked for each in passages]
        while rest:
            count, tokens = 1, len(rest[0][0].ids)
            while count < min(len(rest), PROMPTS):
                tokens += len(rest[count][0].ids)
                if tokens > self._settings.batch_tokens:
                    break
                count += 1
            now, rest = rest[:count], rest[count:]
            scores = await self._endpoint.score([passage for passage, _ in now])
            for (passage, runs), found in zip(now, scores, strict=True):
                for run in runs:
                    logprobs = found[run.first - passage.first : run.stop - passage.first]
                    self._known[run.key] = np.asarray(logprobs, dtype=_FLOAT)
                    self._tokens += len(logprobs)
        return asked

    async def _tell(self, chosen: Chosen, asked: Sequence[Asked]) -> None:
        """Publish the scores of a group, for which this was asked."""
        group, runs = chosen[0], [run for row in _sequences(chosen) for run in sampled_runs(row)]
        for run in runs:
            self._known.move_to_end(run.key)
        scores = np.concatenate([self._known[run.key] for run in runs])
        blob = await asyncio.to_thread(self._blobs.put, scores.tobytes(), "application/octet-stream")
        new = sum(run.stop - run.first for _, asked_runs in asked for run in asked_runs)
        read = sum(len(passage.ids) for passage, _ in asked)
        fact = GroupScored(
            run=self._run,
            group_id=group.group_id,
            teacher=self._endpoint.model,
            scores=blob,
            scored_tokens=len(scores),
            reused_tokens=len(scores) - new,
            teacher_tokens=read,
            teacher_cost_usd=self._endpoint.cost_usd(read, len(asked)),
        )
        event = make_event(fact, id=f"{group.group_id}.scored", source=SOURCE, campaign=self._run)
        await self._publish(event)


def _sequences(chosen: Chosen) -> list[TokenSequence]:
    return [row for own in chosen[1] for row in own]
