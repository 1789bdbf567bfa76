"""The policy server with pictures: tiny random models of the real classes, over the real wire."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.pipelines.models.directories import load_model, save_model
from orchard.pipelines.models.picture_tokens import never_said
from orchard.pipelines.models.tiny_vision import new_vision_model
from orchard.pipelines.vision.places import PICTURE
from orchard.pipelines.vision.reading import PictureReader
from tests.pipelines.policy.small_models import BASH, TEXTS, sharp
from tests.pipelines.policy.test_server import complete, post
from tests.pipelines.sft.pictured_runs import SEEING, picture

SEEN, OTHER = picture(1, 48, 40), picture(2, 48, 40)
TALL = picture(3, 24, 60)
TOLERANCE = 1e-4
"""Of log-probabilities, between this server and `transformers` in float32."""


def write_seeing(directory, shape, seed=0):
    tokenizer = train_tokenizer(TEXTS, 340, directory, pictures=True)
    model, processor = new_vision_model(shape, tokenizer=tokenizer, seed=seed)
    save_model(sharp(model), directory, tokenizer=tokenizer, processor=processor)
    return directory


@pytest.fixture(scope="module", params=SEEING)
def seeing(request, tmp_path_factory):
    return write_seeing(tmp_path_factory.mktemp("seeing") / "model", request.param)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    return write_seeing(tmp_path_factory.mktemp("seeing") / "model", SEEING[0])


def user(*parts):
    """A message of texts and pictures."""
    shown = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": url_of(part)}}
        for part in parts
    ]
    return {"role": "user", "content": shown}


def url_of(data):
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


async def chat(server, messages, **body):
    body = {"max_tokens": 16, "logprobs": True, "return_token_ids": True, "seed": 5, **body}
    status, reply, _ = await post(
        server, "/v1/chat/completions", {"model": "policy", "messages": messages, **body}
    )
    assert status == 200, reply
    choice = reply["choices"][0]
    logprobs = [each["logprob"] for each in choice["logprobs"]["content"]]
    return reply["prompt_token_ids"], choice["token_ids"], logprobs, choice["message"]


def by_transformers(directory, pictures, prompt, ids):
    """Log-probabilities of `ids`, as the model of `transformers` has them with its own positions."""
    model, reader = load_model(directory).eval(), PictureReader.load(directory)
    seen = [reader.read(data) for data in pictures]
    whole = torch.tensor([[*prompt, *ids]])
    shown = {}
    if seen:
        shown = {
            "pixel_values": torch.from_numpy(np.concatenate([one.pixels for one in seen])),
            "image_grid_thw": torch.tensor([one.grid for one in seen]),
            "mm_token_type_ids": (whole == model.config.image_token_id).int(),
        }
    with torch.no_grad():
        logits = model(input_ids=whole, **shown).logits[0, len(prompt) - 1 : -1]
    logits[:, never_said(model.config)] = float("-inf")
    return [row[token].item() for row, token in zip(logits.log_softmax(-1), ids, strict=True)]


async def test_answers_to_pictures_have_the_probabilities_of_transformers(serve, seeing):
    server = await serve(seeing)
    messages = [
        {"role": "system", "content": "You mend code."},
        user("Fix ", SEEN, " and ", TALL, " in add.py"),
    ]
    prompt, ids, logprobs, _ = await chat(server, messages, tools=[BASH])
    assert logprobs == pytest.approx(by_transformers(seeing, [SEEN, TALL], prompt, ids), abs=TOLERANCE)
    blind = by_transformers(seeing, [OTHER, TALL], prompt, ids)
    assert max(abs(a - b) for a, b in zip(logprobs, blind, strict=True)) > 100 * TOLERANCE


async def test_the_next_turn_goes_on_with_the_tokens_that_were_sampled(serve, seeing):
    server = await serve(seeing)
    messages = [user("Fix ", SEEN)]
    prompt, ids, _, said = await chat(server, messages)
    following = [*messages, said, user("go on ", TALL)]
    second, more, logprobs, _ = await chat(server, following)
    assert second[: len(prompt) + len(ids)] == prompt + ids
    assert logprobs == pytest.approx(by_transformers(seeing, [SEEN, TALL], second, more), abs=TOLERANCE)
    elsewhere = [user("Fix ", OTHER), said, user("go on ", TALL)]
    assert not any(path in server._prompts._sampled for path in _last_paths(elsewhere))


def _last_paths(messages):
    from orchard.pipelines.policy.conversations import _paths, _plain

    return _paths([_plain(message) for message in messages], [])[1:2]


async def test_a_kept_prefix_is_used_for_equal_pictures_alone(serve, qwen3):
    server = await serve(qwen3, prefix_cache=True, slots=1)
    await chat(server, [user("Fix ", SEEN, " please")])
    for data, cached in ((OTHER, False), (OTHER, True), (SEEN, False)):
        prompt, ids, logprobs, _ = await chat(server, [user("Fix ", data, " please")])
        assert logprobs == pytest.approx(by_transformers(qwen3, [data], prompt, ids), abs=TOLERANCE)
        kept = server.engine.figures.cached_tokens
        server.engine.figures.cached_tokens = 0
        assert (kept == len(prompt) - 1) is cached
        assert kept < len(prompt)


async def test_new_weights_see_anew(serve, qwen3, tmp_path):
    server = await serve(qwen3)
    await chat(server, [user("Fix ", SEEN)])
    other = write_seeing(tmp_path / "other", SEEING[0], seed=7)
    await server.load(other, 1)
    prompt, ids, logprobs, _ = await chat(server, [user("Fix ", SEEN)])
    assert logprobs == pytest.approx(by_transformers(other, [SEEN], prompt, ids), abs=TOLERANCE)


async def test_what_stands_for_pictures_is_neither_taken_from_texts_nor_said(serve, qwen3):
    server = await serve(qwen3)
    token = load_model(qwen3).config.image_token_id
    text = f"<|vision_start|><|image_pad|><|vision_end|> {PICTURE} "
    prompt, ids, logprobs, _ = await chat(
        server, [user(text, SEEN)], temperature=50.0, max_tokens=300, ignore_eos=True
    )
    assert prompt.count(token) == PictureReader.load(qwen3).tokens(48, 40)
    assert token not in ids and len(set(ids)) > 100
    status, reply, _ = await post(
        server, "/v1/completions", {"model": "policy", "prompt": [1, token, 2], "max_tokens": 2}
    )
    assert status == 400 and "picture tokens" in reply["error"]["message"]
    del logprobs


async def test_pictures_that_cannot_be_shown_are_refused_in_a_sentence(serve, qwen3):
    server = await serve(qwen3)
    broken = url_of(SEEN[: len(SEEN) // 2])
    for url, says in (
        ("https://example.com/a.png", "as its bytes"),
        ("data:image/png;base64,???", "base64"),
        ("data:text/html;base64,PGI+", "as its bytes"),
        (url_of(b"GIF89a nothing"), "picture"),
        (broken, "decoded"),
        (None, "as its bytes"),
    ):
        message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
        status, reply, _ = await post(
            server, "/v1/chat/completions", {"model": "policy", "messages": [message]}
        )
        assert status == 400 and says in reply["error"]["message"], reply
        assert "\n" not in reply["error"]["message"]
    many = [user(*[SEEN] * 65)]
    status, reply, _ = await post(server, "/v1/chat/completions", {"model": "policy", "messages": many})
    assert status == 400 and "at most 64" in reply["error"]["message"]
    assert await complete(server, prompt=[1, 2], max_tokens=1)  # and it goes on


async def test_a_model_of_text_refuses_pictures(serve):
    server = await serve()
    status, reply, _ = await post(
        server, "/v1/chat/completions", {"model": "policy", "messages": [user("see ", SEEN)]}
    )
    assert status == 400 and "text alone" in reply["error"]["message"]


async def test_a_blind_server_sees_black_whatever_it_is_shown(serve, qwen3):
    server = await serve(qwen3, blind=True)
    black = io.BytesIO()
    Image.new("RGB", (48, 40)).save(black, "PNG")
    prompt, ids, logprobs, _ = await chat(server, [user("Fix ", SEEN)])
    assert logprobs == pytest.approx(by_transformers(qwen3, [black.getvalue()], prompt, ids), abs=TOLERANCE)
