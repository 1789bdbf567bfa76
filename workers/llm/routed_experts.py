"""Reads to which experts of a mixture the tokens of an answer went, as vLLM, SGLang and Orchard's policy
server report it."""

import base64
import io
import logging
from typing import Any

import msgspec
import numpy as np

from orchard.schemas.messages import TokenRecord
from orchard.workers.llm.sampled_tokens import ChatChoice, ChatReply

_NUMPY = b"\x93NUMPY"
_MOST = 2**16

log = logging.getLogger(__name__)


class ReportedExperts(msgspec.Struct, frozen=True, kw_only=True):
    """Experts of `tokens` tokens from number `first` on, counted from the prompt's first; the last sampled
    token has none."""

    first: int
    tokens: int
    width: int
    """Experts of one token, over all layers."""
    packed: bytes
    """One byte for each expert, or two, the lower first, where a number is over 255."""

    def after(self, number: int) -> "ReportedExperts":
        """The same without those of the tokens before `number`, which is at most the number of the last."""
        first = max(self.first, number)
        end, size = self.first + self.tokens, len(self.packed) // self.tokens
        packed = self.packed[(first - self.first) * size :]
        return ReportedExperts(first=first, tokens=end - first, width=self.width, packed=packed)


def reported_experts(
    reply: ChatReply, choice: ChatChoice, tokens: TokenRecord | None
) -> ReportedExperts | None:
    """The experts of an answer's tokens; None where the server reports none, or what does not fit the tokens.

    vLLM and Orchard's policy server: `choice.routed_experts`, a NumPy file in Base64 [tokens, layers, experts
    of a token], or lists; older vLLM has those of the prompt in the reply's `prompt_routed_experts`. SGLang:
    int32 in Base64, in `sglext` or in `choice.meta_info`.
    """
    beside = (choice.meta_info, reply.sglext)
    raw = [choice.routed_experts, *(each.routed_experts for each in beside if each)]
    given = next((each for each in raw if each), None)
    if not given or tokens is None or not tokens.ids or not tokens.prompt_ids:
        return None
    last = len(tokens.prompt_ids) + len(tokens.ids) - 1
    try:
        return _fitting(_rows(given, reply.prompt_routed_experts, last), last)
    except (ValueError, TypeError, OverflowError, EOFError) as error:
        log.warning("a reply's routed experts are left out: %s", error)
        return None


def _rows(given: Any, prompt: Any, last: int) -> np.ndarray:
    """[tokens, experts of a token over all layers]. Raises ValueError, TypeError and others."""
    parts = [_array(part, last) for part in (prompt, given) if part]
    return np.concatenate([part.reshape(len(part), -1) for part in parts])


def _array(given: Any, last: int) -> np.ndarray:
    """An array whose first dimension is the tokens."""
    if not isinstance(given, str):
        return np.asarray(given)
    raw = base64.b64decode(given, validate=True)
    if raw.startswith(_NUMPY):
        return _of_numpy_file(raw)
    flat = np.frombuffer(raw, np.dtype("<i4"))
    if not last or len(flat) % last:
        raise ValueError(f"{len(flat)} numbers for {last} tokens")
    return flat.reshape(last, -1)


def _of_numpy_file(raw: bytes) -> np.ndarray:
    """The array of a file in NumPy's format 1 or 2, without memory for more than is there."""
    file = io.BytesIO(raw)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, columns_first, kind = read(file)
    return np.frombuffer(raw, kind, offset=file.tell()).reshape(shape, order="F" if columns_first else "C")


def _fitting(rows: np.ndarray, last: int) -> ReportedExperts:
    """Experts of the tokens up to before number `last`: an engine that was asked for less has none of the
    first. Raises ValueError."""
    if len(rows) == last + 1:
        rows = rows[:-1]
    if rows.dtype.kind not in "iu" or not rows.size or len(rows) > last:
        raise ValueError(f"{rows.shape} of {rows.dtype} for {last} tokens")
    if rows.min() < 0 or rows.max() >= _MOST:
        raise ValueError("some numbers are no experts")
    return _packed(rows, last - len(rows))


def _packed(rows: np.ndarray, first: int) -> ReportedExperts:
    small = rows.max() < 256
    packed = rows.astype(np.uint8 if small else "<u2").tobytes()
    return ReportedExperts(first=first, tokens=len(rows), width=rows.shape[1], packed=packed)
