"""Experts of an answer's tokens are read in the form of each server, and left out where they do not fit."""

import base64
import io

import numpy as np
import pytest

from orchard.schemas.campaigns import ModelSpec
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings

PROMPT, ANSWER = [8, 9, 10], [1, 2]
ROUTED = np.random.default_rng(0).integers(0, 128, (4, 3, 2))
"""Of three layers with two experts; the last token went nowhere."""


@pytest.fixture
def call(endpoint):
    async def run():
        async with ModelClient({"default": EndpointSettings(base_url=endpoint.url)}) as client:
            said = [{"role": "user", "content": "Hello"}]
            return await client.complete(ModelSpec(name="m"), said, [], seed=7, timeout=20.0)

    return run


def numpy_file(array) -> str:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def raw(array) -> str:
    return base64.b64encode(np.asarray(array, np.int32).tobytes()).decode()


FORMS = {
    "ours": ({}, {"routed_experts": numpy_file(ROUTED.astype(np.uint8))}, 0),
    "vllm": ({}, {"routed_experts": numpy_file(ROUTED.astype(np.int32))}, 0),
    "vllm from a prompt start": ({}, {"routed_experts": numpy_file(ROUTED[1:])}, 1),
    "vllm older": (
        {"prompt_routed_experts": ROUTED[:3].tolist()},
        {"routed_experts": ROUTED[3:].tolist()},
        0,
    ),
    "sglang": ({"sglext": {"routed_experts": raw(ROUTED)}}, {}, 0),
    "sglang meta": ({}, {"meta_info": {"routed_experts": raw(ROUTED)}}, 0),
}


def reply_of(endpoint, top, choice):
    reply = endpoint.completion("ab", **({"prompt_token_ids": PROMPT} | top))
    reply["choices"][0] |= {"token_ids": ANSWER} | choice
    endpoint.answer(reply)


@pytest.mark.parametrize("form", FORMS)
async def test_experts_are_read_in_every_form(endpoint, call, form):
    top, choice, first = FORMS[form]
    reply_of(endpoint, top, choice)
    experts = (await call()).experts
    assert (experts.first, experts.tokens, experts.width) == (first, 4 - first, 6)
    assert experts.packed == ROUTED[first:].astype(np.uint8).tobytes()


async def test_numbers_over_255_take_two_bytes_and_known_tokens_are_left_out(endpoint, call):
    many = ROUTED + 200
    reply_of(endpoint, {}, {"routed_experts": numpy_file(many)})
    experts = (await call()).experts
    assert experts.packed == many.astype("<u2").tobytes()
    later = experts.after(2)
    assert (later.first, later.tokens, later.packed) == (2, 2, many[2:].astype("<u2").tobytes())
    assert experts.after(0) == experts


@pytest.mark.parametrize(
    "given",
    [
        "no base64!",
        raw(ROUTED)[:-8],
        numpy_file(ROUTED[:, :, 0] - 1000),
        numpy_file(np.tile(ROUTED, (2, 1, 1))),
        numpy_file(ROUTED.astype(float)),
        base64.b64encode(b"\x93NUMPY\x01").decode(),
        base64.b64encode(base64.b64decode(numpy_file(ROUTED))[:-8]).decode(),
        numpy_file(np.zeros((4, 3, 2), object).astype("U2")),
        [[[0, 1]], [[0]]],
        {"data": ""},
        7,
    ],
)
async def test_what_does_not_fit_the_tokens_is_left_out_and_the_tokens_stay(endpoint, call, given, caplog):
    reply_of(endpoint, {}, {"routed_experts": given})
    answer = await call()
    assert answer.experts is None
    assert answer.tokens.ids == tuple(ANSWER)
    assert "routed experts are left out" in caplog.text


async def test_without_token_ids_there_is_nothing_to_route(endpoint, call):
    reply_of(endpoint, {"prompt_token_ids": None}, {"routed_experts": numpy_file(ROUTED)})
    assert (await call()).experts is None
