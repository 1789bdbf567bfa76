"""Real tokenizers and chat templates from store to policy, on tiny random models of the real classes.

One store has the four kinds of conversation that templates treat differently. What is expected is written
here by hand, from the models' documented formats; neither our templates nor our tokenization take part.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import datasets as hf
import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from orchard.pipelines.campaigns.commands import requested_event
from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.exporters.write import export
from orchard.pipelines.datasets.rows import Row, read_rows
from orchard.pipelines.datasets.settings import DatasetSettings, Filters, Values
from orchard.pipelines.datasets.tokenization import ChatTokenizer
from orchard.pipelines.models.directories import save_model
from orchard.pipelines.rl.coordinator import begin
from orchard.pipelines.rl.policies import policy_directory
from orchard.pipelines.rl.trainer import RlTrainer
from orchard.pipelines.sft.metrics import read_steps
from orchard.pipelines.sft.processes import Processes
from orchard.pipelines.sft.settings import SftSettings
from orchard.pipelines.sft.trainer import METRICS, train
from orchard.schemas.events import payload
from orchard.schemas.messages import TokenRecord, VersionRun
from orchard.schemas.training import PolicyStep
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from tests.pipelines.datasets.conftest import Keep, author, connection, keep
from tests.pipelines.datasets.test_exporters import trainer_batches
from tests.pipelines.rl.written_log import assembled, finished, message, plan_of, run_settings
from tests.real_conversations import KINDS, conversation, load
from tests.trajectory_log import Author

__all__ = ["author", "connection", "keep"]  # fixtures

pytestmark = pytest.mark.timeout(900)

NAMES = ("qwen3", "qwen3-thinking-2507", "llama3.1")
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
FAILED = dict(enumerate([0.4, 0.7, 0.9, 0.3, 0.2, 0.1]))
"""Values of the fifth rollout, which fails: steps 1 and 2 rise and train."""
Pieces = Iterator[tuple[str, bool]]
"""Texts, and whether the model said them."""


def messages_of(kind: str) -> list[dict[str, Any]]:
    """Without words that are control tokens: those are in tests/pipelines/datasets/test_turns.py."""
    last = {"role": "tool", "content": "done", "tool_call_id": "call00005"}
    return [
        dict(each, content=each["content"].replace("<|im_end|>", "`x = 1`\n\n"))
        for each in (*conversation(kind), last)
    ]


def qwen(messages: list[dict[str, Any]], tools: str, opened: bool) -> Pieces:
    """ChatML as Qwen3's model card and template have it, each turn as the newest."""
    yield (
        f"<|im_start|>system\n{messages[0]['content']}\n\n# Tools\n\nYou may call one or more functions to "
        "assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML "
        f"tags:\n<tools>\n{tools}\n</tools>\n\nFor each function call, return a json object with function "
        'name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, '
        '"arguments": <args-json-object>}\n</tool_call><|im_end|>\n',
        False,
    )
    for each in messages[1:]:
        if each["role"] != "assistant":
            text = each["content"]
            text = f"<tool_response>\n{text}\n</tool_response>" if each["role"] == "tool" else text
            yield f"<|im_start|>user\n{text}<|im_end|>\n", False
            continue
        yield "<|im_start|>assistant\n" + ("<think>\n" if opened else ""), False
        said = "" if opened else "<think>\n"
        said += each.get("reasoning_content", "") + "\n</think>\n\n" + each["content"]
        for call in each.get("tool_calls", ()):
            function = call["function"]
            said += f'\n<tool_call>\n{{"name": "bash", "arguments": {function["arguments"]}}}\n</tool_call>'
        yield said + "<|im_end|>", True
        yield "\n", False


def llama(messages: list[dict[str, Any]], tools: str, _: bool) -> Pieces:
    """Llama 3.1's headers, of any role. This template knows neither tools, calls nor reasoning: these are
    lines of JSON in the system message with Qwen's words, Llama's JSON form of calls, and Qwen's tags."""

    def block(role: str, text: str) -> str:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>"

    line = json.dumps(json.loads(tools)["function"], ensure_ascii=False)
    first = (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided "
        f"with function signatures within <tools></tools> XML tags:\n<tools>\n{line}\n</tools>\n\nReturn "
        'each function call in this form:\n{"name": "<function-name>", "parameters": <args-json-object>}'
    )
    yield "<|begin_of_text|>" + block("system", f"{messages[0]['content']}\n\n{first}"), False
    for each in messages[1:]:
        text = each["content"]
        if each["role"] != "assistant":
            yield block(each["role"], text), False
        else:
            yield "<|start_header_id|>assistant<|end_header_id|>\n\n", False
            thought = each.get("reasoning_content", "")
            said = f"<think>\n{thought}\n</think>\n\n{text}" if thought else text
            for call in each.get("tool_calls", ()):
                said += f'\n{{"name": "bash", "parameters": {call["function"]["arguments"]}}}'
            yield said + "<|eot_id|>", True


class Model(NamedTuple):
    name: str
    directory: Path
    tokenizer: PreTrainedTokenizerBase

    def pieces(self, messages: list[dict[str, Any]], tools: str) -> Pieces:
        write: Callable[..., Pieces] = llama if self.name == "llama3.1" else qwen
        return write(messages, tools, "thinking" in self.name)

    def tokens(self, kind: str, tools: str, trained: set[int]) -> tuple[list[int], list[int]]:
        """Ids and mask as they must be, up to the last turn that trains."""
        ids: list[int] = []
        mask: list[int] = []
        turn, end = -1, 0
        for text, said in self.pieces(messages_of(kind), tools):
            turn += said
            part = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
            ids += part
            mask += [int(said and turn in trained)] * len(part)
            end = len(ids) if said and turn <= max(trained) else end
        return ids[:end], mask[:end]


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A random model of the real class with the real vocabulary, and its real tokenizer."""
    tokenizer = load(request.param)
    torch.manual_seed(0)
    made: PreTrainedModel
    if request.param == "llama3.1":
        made = LlamaForCausalLM(LlamaConfig(vocab_size=128_256, num_key_value_heads=1, **SMALL))
    else:
        made = Qwen3ForCausalLM(Qwen3Config(vocab_size=151_936, num_key_value_heads=1, head_dim=8, **SMALL))
    directory = tmp_path_factory.mktemp(request.param) / "model"
    save_model(made, directory, tokenizer=tokenizer)
    return Model(request.param, directory, tokenizer)


@pytest.fixture
async def dataset(model: Model, author: Author, keep: Keep, tmp_path: Path) -> Path:
    """Four resolved rollouts, one of each kind, and a failed one with a rise segment."""
    events, failed = [], author.rollout(4, [], resolved=False, messages=messages_of("sometimes"))
    for number, kind in enumerate(KINDS):
        events += author.rollout(number, [], resolved=True, messages=messages_of(kind))
    store = await keep([*events, *failed, author.annotated(failed, FAILED, 6)])
    settings = DatasetSettings(
        name="real",
        tokenizer=str(model.directory),
        values=Values(annotator="teacher"),
        filters=Filters(bad_turns="mask"),
    )
    build(store, settings, tmp_path / "dataset")
    return tmp_path / "dataset"


def expected_turns(row: Row) -> tuple[str, set[int]]:
    """Kind and turns that train; a turn without a call is no action."""
    if not row.resolved:
        return "sometimes", {1, 2}
    kind = KINDS[row.sample]
    return kind, {0, 1, 2, 4, 5} if kind == "asked-again" else set(range(6))


def whole_logprobs(model: PreTrainedModel, ids: np.ndarray, mask: np.ndarray) -> torch.Tensor:
    """Of the trained tokens of one row alone."""
    tokens = torch.tensor(ids.tolist())
    with torch.no_grad():
        found = torch.log_softmax(model(input_ids=tokens[None]).logits[0].float(), -1)
    return found[:-1].gather(1, tokens[1:, None])[:, 0][torch.tensor(mask[1:] == 1)]


async def test_masks_are_the_hand_written_ones_token_by_token(model: Model, dataset: Path) -> None:
    rows = list(read_rows(dataset))
    assert sorted(row.sample for row in rows) == [0, 1, 2, 3, 4]
    for row in rows:
        kind, turns = expected_turns(row)
        assert set(row.trained_turns) == turns
        tools = json.dumps(json.loads(row.tools)[0], ensure_ascii=False)
        ids, mask = model.tokens(kind, tools, turns)
        assert row.input_ids.tolist() == ids, model.tokenizer.decode(row.input_ids.tolist())
        assert row.loss_mask.tolist() == mask


async def test_a_fine_tuning_run_has_the_models_own_loss(model: Model, dataset: Path, tmp_path: Path) -> None:
    settings = SftSettings(
        dataset=str(dataset), out=str(tmp_path / "sft"), model=str(model.directory), global_batch=5,
        max_steps=2, context=4096, lr=1e-2, threads=1, checkpoint_every=0,
    )  # fmt: skip
    reference = AutoModelForCausalLM.from_pretrained(model.directory)
    losses = torch.cat(
        [whole_logprobs(reference, row.input_ids, row.loss_mask) for row in read_rows(dataset)]
    )
    result = await asyncio.to_thread(train, settings)  # the connection of the fixture stays alive
    first, second = read_steps(tmp_path / "sft" / METRICS)
    assert first.trained_tokens == len(losses)
    assert first.loss == pytest.approx(-losses.mean().item(), abs=1e-4)
    assert second.loss < first.loss
    assert ChatTokenizer.load(str(result)).sha256 == ChatTokenizer.load(str(model.directory)).sha256


def sampled(row: Row, logprobs: torch.Tensor) -> list[TokenRecord]:
    """The row's trained turns as a server would have sampled them."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], row.loss_mask, [0]))))
    found, at = [], 0
    for start, stop in edges.reshape(-1, 2).tolist():
        size = stop - start
        found.append(
            TokenRecord(
                ids=tuple(row.input_ids[start:stop].tolist()),
                prompt_ids=tuple(row.input_ids[:start].tolist()),
                logprobs=tuple(logprobs[at : at + size].tolist()),
                versions=(VersionRun(start=0, version=0),),
            )
        )
        at += size
    return found


async def test_a_policy_step_trains_what_was_sampled(
    model: Model, dataset: Path, connection: Connection, tmp_path: Path
) -> None:
    """Two groups of two, of the four kinds; the sampled log-probabilities are the model's own."""
    reference = AutoModelForCausalLM.from_pretrained(model.directory)
    rows = {row.sample: row for row in read_rows(dataset) if row.resolved}
    settings = run_settings(str(model.directory), str(tmp_path / "rl"), steps=1, context=4096)
    plan, blobs = plan_of(settings), BlobStore(str(tmp_path / "blobs"))
    start = await begin(connection, blobs, plan)
    for prompt in range(2):
        for slot in range(2):
            row, request = rows[2 * prompt + slot], plan.request(prompt, slot)
            records = sampled(row, whole_logprobs(reference, row.input_ids, row.loss_mask))
            await Publisher(connection).events(
                [
                    requested_event(request),
                    *(message(request, number, record) for number, record in enumerate(records)),
                    finished(request, 1.0 - 2 * slot),
                ]
            )
        await Publisher(connection).events([assembled(plan, prompt, range(2), [1.0, -1.0])])
    alone = Processes(rank=0, count=1, device=torch.device("cpu"))
    await asyncio.wait_for(RlTrainer(settings, plan, connection, blobs, alone, engines=()).run(start), 300)
    facts = [payload(stored.event) async for stored in replay(connection) if stored.event]
    (step,) = [fact for fact in facts if isinstance(fact, PolicyStep)]
    assert step.trained_tokens == sum(int(row.loss_mask.sum()) for row in rows.values())
    assert step.importance == pytest.approx(1.0, abs=1e-3)
    place = policy_directory(tmp_path / "rl", 1)
    after = AutoModelForCausalLM.from_pretrained(place).state_dict()
    assert any(not torch.equal(after[name], weight) for name, weight in reference.state_dict().items())
    assert ChatTokenizer.load(str(place)).sha256 == ChatTokenizer.load(str(model.directory)).sha256


async def test_trl_trains_the_same_tokens_of_the_export(model: Model, dataset: Path, tmp_path: Path) -> None:
    done = export(dataset, "tokens", tmp_path / "out")
    found = hf.load_dataset(
        "parquet", data_files=str(done.file), split="train", cache_dir=str(tmp_path / "c")
    )
    batches = trainer_batches(found, str(model.directory), tmp_path / "trl")
    for row, batch in zip(read_rows(dataset), batches, strict=True):
        assert batch["input_ids"][0].tolist() == row.input_ids.tolist()
        labels = batch["labels"][0].numpy()
        assert labels.tolist() == np.where(row.loss_mask == 1, row.input_ids, -100).tolist()
