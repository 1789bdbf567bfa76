"""`make demo-pretrained`, small, with a tiny random model in the place of the pretrained one."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM

from examples.pretrained import computing
from examples.run import example, run, show
from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.pipelines.models.directories import save_model
from orchard.pipelines.models.errors import ModelError
from orchard.storage.reader import open_tables
from tests.benchmarks.pretrained import Outcome


TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Like SmolLM2's: without tools."""
SMALL: dict[str, Any] = {
    "tasks": 4,
    "held_out": 2,
    "epochs": 1,
    "pool": 2,
    "measured": 1,
    "steps": 1,
    "prompts": 1,
    "size": 2,
    "most": 2,
    "keep_degenerate": True,
    "real_tasks": 0,
    "answer_tokens": 8,
    "workers": 1,
    "threads": 1,
}


@pytest.fixture
def random_llama(tmp_path: Path) -> Path:
    place = tmp_path / "llama"
    words = train_tokenizer(["You repair code with bash. <tool_call> cat -n shop/area.py"] * 4, 400, place)
    words.chat_template = TEMPLATE
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(words), max_position_embeddings=4096, **sizes)
    save_model(LlamaForCausalLM(config), place, tokenizer=words)
    return place


@pytest.mark.timeout(600)
def test_the_demonstration_takes_any_directory(tmp_path: Path, random_llama: Path) -> None:
    """Every step but the real tasks: a campaign, a dataset, fine-tuning, three measurements, one policy."""
    store = str(tmp_path / "store")
    made, values = example("pretrained", store, model=str(random_llama), **SMALL)
    values = asyncio.run(run(made, values))
    show(made, values)
    found = msgspec.json.decode((made.directory / "outcome.json").read_bytes(), type=Outcome)
    assert (found.rows, found.training.steps, found.updates, found.graded) == (4, 1, 1, 2)
    assert [score.tasks for score in (found.before, found.tuned, found.after)] == [2, 2, 2]
    assert found.model == values["base"] == str(random_llama)
    assert found.peak_bytes > 2**28
    assert len(found.seconds) == 10
    with open_tables(store) as tables:
        ((seen,),) = tables.execute(
            "select count(*) from (select task_id from rollouts where campaign = 'pretrained-tuned' "
            "intersect select task_id from rollouts where campaign in ('pretrained-oracle', 'pretrained-rl'))"
        ).fetchall()
    assert seen == 0


def test_a_directory_that_cannot_be_served_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ModelError, match="this is gpt2"):
        example("pretrained", str(tmp_path / "store"), model=str(tmp_path))


def test_a_gpu_is_used_where_there_is_one() -> None:
    """bfloat16, longer passes and more rollouts at once; the examples of a step stay."""
    plain, fast = computing(None, 2), computing("NVIDIA H100", 16)
    assert str(plain) == "2 processors: float32, 2,048 tokens in a pass"
    assert str(fast) == "NVIDIA H100: bfloat16, 65,536 tokens in a pass"
    assert fast.slots > plain.slots


def test_settings_say_how_many_rollouts_run_at_once(tmp_path: Path, random_llama: Path) -> None:
    made, values = example("pretrained", str(tmp_path / "store"), model=str(random_llama), slots=3, workers=2)
    assert made.config.worker.slots == 3
    assert (values["at_once"], values["served"]["slots"]) == (6, 6)
