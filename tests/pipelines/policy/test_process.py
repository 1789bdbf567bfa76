"""The whole path: a model that a short run taught one tool call, served by a process of its own."""

import asyncio
import json
import os
import signal
import sys

import aiohttp
import numpy as np
import pytest

from orchard.pipelines.datasets.rows import TokenRow
from orchard.pipelines.datasets.tokenization import ChatTokenizer, Conversation
from orchard.pipelines.models.directories import load_tokenizer, save_model
from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.policy.__main__ import main
from orchard.pipelines.sft.processes import Processes
from orchard.pipelines.sft.settings import settings_from
from orchard.pipelines.sft.trainer import SftTrainer
from orchard.schemas.campaigns import ModelSpec
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings
from tests.pipelines.policy.small_models import BASH, SHAPE
from tests.pipelines.policy.test_engine import CPU

TASK = [{"role": "system", "content": "You mend code."}, {"role": "user", "content": "Fix add.py"}]
SAID = {
    "role": "assistant",
    "content": "I look first.",
    "tool_calls": [
        {
            "id": "a",
            "type": "function",
            "function": {"name": "bash", "arguments": '{"command": "cat add.py"}'},
        }
    ],
}


def taught(model_directory, directory):
    """A model trained on one conversation until it knows it by heart."""
    known = load_tokenizer(model_directory)
    encoded = ChatTokenizer(known, "test").encode([Conversation("one", [*TASK, SAID], [BASH])])[0]
    mask = np.zeros(len(encoded.input_ids), np.int8)
    for start, end in encoded.spans:
        mask[start:end] = 1
    row = TokenRow(
        example_id="one", rollout_id="one", resolved=True, input_ids=encoded.input_ids, loss_mask=mask
    )
    settings = settings_from(
        {
            "dataset": "-",
            "out": "-",
            "model": "-",
            "global_batch": 1,
            "context": 1024,
            "lr": 1e-2,
            "epochs": 150,
        }
    )
    model = new_model(SHAPE, vocabulary=len(known), seed=0, tokenizer=known)
    trainer = SftTrainer(settings, [row], model, Processes(rank=0, count=1, device=CPU))
    losses = [trainer.step(number).loss for number in range(trainer.plan.steps)]
    assert losses[-1] < 0.05
    save_model(model, directory, tokenizer=known)
    return directory


@pytest.mark.long
async def test_a_trained_model_calls_a_tool_over_the_wire(model_directory, tmp_path):
    directory = taught(model_directory, tmp_path / "taught")
    port_file = tmp_path / "port"
    command = [sys.executable, "-m", "orchard", "serve-policy"]
    options = ["--port", "0", "--threads", "1", "--slots", "8"]
    process = await asyncio.create_subprocess_exec(
        *command, str(directory), *options, "--port-file", str(port_file), env=dict(os.environ)
    )
    try:
        async with asyncio.timeout(120):
            while not port_file.exists():
                assert process.returncode is None
                await asyncio.sleep(0.05)
            url = f"http://127.0.0.1:{port_file.read_text()}/v1"
            settings = EndpointSettings(base_url=url, extra_body={"return_token_ids": True})
            spec = ModelSpec(name="policy", temperature=0.0)
            async with ModelClient({"default": settings}) as client:
                answer = await client.complete(spec, TASK, [BASH], seed=1, timeout=60)
        assert (answer.text, answer.finish_reason) == ("I look first.", "tool_calls")
        (call,) = answer.tool_calls
        assert (call.name, json.loads(call.arguments)) == ("bash", {"command": "cat add.py"})
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow
async def test_a_policy_announced_while_the_server_started_is_served(
    model_directory, other_directory, tmp_path
):
    """The command names version 2, as it was then the newest; the trainer has made version 3 since."""
    port_file, newest = tmp_path / "port", tmp_path / "newest.json"
    newest.write_text(json.dumps({"path": str(other_directory), "version": 3}))
    command = [sys.executable, "-m", "orchard.pipelines.policy", str(model_directory), "--version", "2"]
    options = ["--port", "0", "--threads", "1", "--newest-file", str(newest), "--port-file", str(port_file)]
    process = await asyncio.create_subprocess_exec(*command, *options)
    try:
        async with asyncio.timeout(120):
            while not port_file.exists():
                assert process.returncode is None
                await asyncio.sleep(0.05)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port_file.read_text()}/health") as reply,
        ):
            assert (await reply.json())["policy_version"] == 3
    finally:
        process.kill()
        await process.wait()


async def test_an_older_policy_does_not_take_the_place_of_a_newer_one(serve, other_directory):
    server = await serve(version=4)
    await server.load(other_directory, 3)
    assert server.engine.version == 4
    await server.load(other_directory, 5)
    assert server.engine.version == 5


def test_a_directory_that_cannot_be_served_is_said_in_a_sentence(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} holds no model")
