"""`make demo-pretrained`: what is refused, how it is computed. tests/learning/test_pretrained.py runs it."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from examples.pretrained import computing
from examples.run import example
from orchard.pipelines.models.errors import ModelError


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHARD_CONFIG", "")


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


def test_settings_say_how_many_rollouts_run_at_once(tmp_path: Path) -> None:
    made, values = example("pretrained", str(tmp_path), slots=3, workers=2)
    assert made.config.worker.slots == 3
    assert (values["at_once"], values["served"]["slots"]) == (6, 6)
