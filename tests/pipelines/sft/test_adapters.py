"""LoRA: an adapter that `peft` reads, resumed bit for bit, merged without a change of what it says."""

import json
from pathlib import Path

import msgspec
import pytest
import torch
from peft import PeftModel

from orchard.pipelines.models.directories import load_model, load_tokenizer, save_model
from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.sft import trainer as trainer_module
from orchard.pipelines.sft.adapters import add_adapter
from orchard.pipelines.sft.metrics import read_steps
from orchard.pipelines.sft.settings import Lora, SftSettings, TrainingError, settings_from, settings_hash
from orchard.pipelines.sft.trainer import ADAPTED, CHECKPOINTS, METRICS, MODEL, train
from tests.pipelines.moe import tiny_moe
from tests.pipelines.sft.small_runs import SHAPE, VOCABULARY

IDS = torch.arange(24)[None] % VOCABULARY


@pytest.fixture
def adapted(run_settings, tmp_path):
    """Settings of runs that adapt one random model."""
    base = tmp_path / "base"

    def make(name: str, **changes: object) -> SftSettings:
        settings = run_settings(name)
        if not base.exists():
            model = new_model(SHAPE, vocabulary=VOCABULARY, seed=3)
            save_model(model, base, tokenizer=load_tokenizer(settings.tokenizer))
        fields = {"model": str(base), "shape": None, "tokenizer": None, "lora": Lora(rank=4), "lr": 1e-2}
        return msgspec.structs.replace(settings, **(fields | changes))

    return make


@pytest.mark.long
def test_an_adapter_learns_and_everybody_reads_it(adapted):
    settings = adapted("run", epochs=6)
    result = train(settings)
    steps = read_steps(Path(settings.out) / METRICS)
    assert steps[-1].loss < steps[0].loss - 0.1
    adapter, base = Path(settings.out) / ADAPTED, load_model(settings.model)
    assert sorted(file.name for file in adapter.glob("*.safetensors")) == ["adapter_model.safetensors"]
    with torch.no_grad():
        before = base(IDS).logits
        merged = load_model(result)(IDS).logits
        by_peft = PeftModel.from_pretrained(base, str(adapter))(IDS).logits
        by_us = load_model(adapter)(IDS).logits
    assert not torch.allclose(merged, before, atol=1e-2)
    torch.testing.assert_close(by_peft, merged, rtol=0, atol=1e-5)
    assert torch.equal(by_us, merged)
    assert load_tokenizer(adapter).get_vocab() == load_tokenizer(result).get_vocab()


@pytest.mark.long
def test_an_adapter_resumes_bit_for_bit_from_checkpoints_without_the_model(adapted, monkeypatch):
    whole, broken = adapted("whole"), adapted("broken", checkpoint_every=1)
    train(whole)
    step = trainer_module.SftTrainer.step

    def dies(self, number):
        if number == 2:
            raise KeyboardInterrupt
        return step(self, number)

    monkeypatch.setattr(trainer_module.SftTrainer, "step", dies)
    with pytest.raises(KeyboardInterrupt):
        train(broken)
    monkeypatch.setattr(trainer_module.SftTrainer, "step", step)
    train(broken)
    for file in (f"{ADAPTED}/adapter_model.safetensors", f"{MODEL}/model.safetensors"):
        assert (Path(whole.out) / file).read_bytes() == (Path(broken.out) / file).read_bytes()
    kept = max((Path(broken.out) / CHECKPOINTS).glob("step-*"))
    metadata = torch.distributed.checkpoint.FileSystemReader(kept).read_metadata()
    assert {
        name for name in metadata.state_dict_metadata if name.startswith("model.") and "lora" not in name
    } <= {"model.lm_head.weight"}


def test_an_adapter_of_a_relative_model_loads_from_anywhere(adapted, tmp_path, monkeypatch):
    base = Path(adapted("run").model)
    monkeypatch.chdir(base.parent)
    model = load_model(base.name)
    add_adapter(model, Lora(rank=2), base=base.name, seed=0)
    save_model(model, tmp_path / "adapter")
    monkeypatch.chdir("/")
    load_model(tmp_path / "adapter")
    told = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == str(base.absolute())


def test_what_cannot_be_adapted_is_named(adapted, tmp_path):
    settings = adapted("run")
    with pytest.raises(ModelError, match=r"change `lora.targets`"):
        add_adapter(load_model(settings.model), Lora(targets=("no_such",)), base=settings.model, seed=0)
    model = load_model(settings.model)
    add_adapter(model, Lora(rank=2), base=settings.model, seed=0)
    save_model(model, tmp_path / "adapter")
    with pytest.raises(
        ModelError, match="is an adapter itself: start from the merged model, which its run writes"
    ):
        add_adapter(load_model(tmp_path / "adapter"), Lora(), base=str(tmp_path / "adapter"), seed=0)
    with pytest.raises(TrainingError, match="`lora` adapts a model"):
        settings_from({"dataset": "d", "out": "o", "shape": "tiny-test", "tokenizer": "t", "lora": {}})


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_weights_that_stand_in_two_places_get_no_adapter(tmp_path, target):
    """Merged into one of them, it would be in the other one, too: another model than was trained."""
    tied = msgspec.structs.replace(SHAPE, tie_word_embeddings=True)
    model = new_model(tied, vocabulary=VOCABULARY, seed=3)
    with pytest.raises(ModelError, match=rf"weights of \S*{target} in another place"):
        add_adapter(model, Lora(rank=2, targets=("q_proj", target)), base=str(tmp_path), seed=0)
    free = new_model(msgspec.structs.replace(SHAPE, tie_word_embeddings=False), vocabulary=VOCABULARY, seed=3)
    add_adapter(free, Lora(rank=2, targets=("q_proj", target)), base=str(tmp_path), seed=0)


def test_a_run_of_before_there_were_adapters_keeps_its_hash():
    settings = SftSettings(dataset="d", out="o", model="m")
    assert settings_hash(settings) == "fc485c3142887bacb428ac22"
    assert settings_hash(msgspec.structs.replace(settings, lora=Lora())) != settings_hash(settings)


def test_experts_get_adapters_that_merge_into_them(adapted, tmp_path):
    save_model(tiny_moe(VOCABULARY), tmp_path / "moe")
    plain = adapted("plain", model=str(tmp_path / "moe"), tokenizer=str(tmp_path / "tokenizer"))
    settings = msgspec.structs.replace(plain, out=str(tmp_path / "experts"), lora=Lora(rank=2, experts=True))
    assert settings_hash(settings) != settings_hash(plain)
    result = train(settings)
    base, merged = load_model(tmp_path / "moe"), load_model(result)
    changed = {
        name
        for name, weight in merged.named_parameters()
        if not torch.equal(weight, base.get_parameter(name))
    }
    assert {name.rpartition(".")[2] for name in changed if ".experts." in name} == {
        "gate_up_proj",
        "down_proj",
    }
    with torch.no_grad():
        by_peft = PeftModel.from_pretrained(base, str(Path(settings.out) / ADAPTED))(IDS).logits
        torch.testing.assert_close(by_peft, merged(IDS).logits, rtol=0, atol=1e-5)
    with pytest.raises(ModelError, match="has no experts: leave"):
        add_adapter(new_model(SHAPE, vocabulary=VOCABULARY, seed=3), Lora(experts=True), base="m", seed=0)


def test_runs_whose_adapter_leaves_experts_alone_keep_their_hash():
    given = {"dataset": "d", "out": "o", "model": "m", "context": 100, "lora": {"rank": 4}}
    assert settings_hash(settings_from(given)) == "fc02a167117e0bea80732668"
