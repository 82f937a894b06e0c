import json

import pytest
import yaml

from llama_config import LLAMA
from nextlong.errors import RecipeError
from nextlong.train.emit import emit


@pytest.mark.parametrize(
    ("overrides", "name", "told"),
    [
        ((), "deepspeed", "--emit 'deepspeed' is not known; choose from axolotl, prolong, megatron"),
        ((), "torchtitan", "torchtitan is an engine: --engine torchtitan"),
        (("attention=document",), "prolong", r"cannot express attention=document \(only sequence or row\)"),
        (
            ("model.lora_rank=8", "training.eps=1e-6"),
            "prolong",
            r"model.lora_rank=8 \(only null\); training.eps=1e-06 \(only",
        ),
        (("memory.optimizer=adamw-8bit",), "axolotl", "--emit axolotl cannot express memory.optimizer=adamw-8bit"),
        (("watch.spike=3",), "megatron", "--emit megatron cannot express watch.spike=3.0"),
        (
            ("training.min_lr_ratio=0.1", "training.schedule=linear"),
            "axolotl",
            "min_lr_ratio=0.1 with training.schedule=linear",
        ),
        (("model.path=somewhere/else",), "megatron", "is told the model's sizes and RoPE; name a folder here"),
        (("hardware.count=24", "hardware.ranks_per_row=24"), "megatron", "do not go evenly into the 48 slices"),
        (("hardware.count=33",), "axolotl", "hardware.count=33 does not fill machines of 8 devices"),
        (("training.tokens_per_step=4096",), "axolotl", "16 devices, 4 a row, cannot share 2 rows a step evenly"),
        (("attention=row", "data.pack=8192"), "axolotl", "attention: row with data.pack is not what axolotl"),
        (("data.runs=[]", "data.parquet=[rows]"), "prolong", "exports finished runs"),
        (("model.path=null", "model.scratch={}"), "prolong", r"set model\.path instead of model\.scratch"),
    ],
)
def test_what_a_trainer_cannot_do(recipe, console, tmp_path, overrides, name, told):
    with pytest.raises(RecipeError, match=told):
        emit(recipe(*overrides), name, tmp_path / "x", console)


LLAMA3_SCALING = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


def rescale(tmp_path, **changes):
    scaling = {**LLAMA3_SCALING, **changes}
    (tmp_path / "llama" / "config.json").write_text(json.dumps({**LLAMA, "rope_scaling": scaling}))


def test_the_scaling_of_the_source_model_is_kept(recipe, console, tmp_path):
    made = recipe()
    rescale(tmp_path)
    emit(made, "axolotl", tmp_path / "a", console)
    config = yaml.safe_load((tmp_path / "a" / "axolotl.yaml").read_text())
    assert config["model_config"]["rope_parameters"] == {**LLAMA3_SCALING, "rope_theta": 200_000_000.0}
    emit(made, "megatron", tmp_path / "m", console)
    assert "--use-rope-scaling --rope-scaling-factor 8.0" in (tmp_path / "m" / "launch.sh").read_text()
    assert not (tmp_path / "m" / "neox.yaml").exists()
    with pytest.raises(RecipeError, match="ProLong computes RoPE from its base alone"):
        emit(made, "prolong", tmp_path / "p", console)
    rescale(tmp_path, high_freq_factor=8.0)
    with pytest.raises(RecipeError, match=r"the model has \{'high_freq_factor': 8.0\}"):
        emit(made, "megatron", tmp_path / "m", console)
