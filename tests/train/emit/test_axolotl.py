import yaml

from nextlong.train.emit import emit


def test_axolotl(recipe, console, tmp_path):
    emit(recipe("data.validation=0.3", "training.min_lr_ratio=0.1"), "axolotl", tmp_path / "a", console)
    launch = (tmp_path / "a" / "launch.sh").read_text()
    assert '--nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint "${HEAD_NODE:?' in launch
    config = yaml.safe_load((tmp_path / "a" / "axolotl.yaml").read_text())
    assert config["model_config"]["rope_parameters"] == {"rope_type": "default", "rope_theta": 200_000_000.0}
    assert (config["fsdp_version"], config["dp_shard_size"], config["context_parallel_size"]) == (2, 4, 4)
    assert config["gradient_accumulation_steps"] * 16 // 4 == 65_536 // 2048
    assert (config["learning_rate"], config["warmup_steps"], config["max_steps"]) == (4e-5, 200, 1000)
    assert config["cosine_min_lr_ratio"] == 0.1
    assert config["sample_packing"] is False
    assert list((tmp_path / "a" / "data" / "validation").iterdir())


def test_packed_rows_are_packed_by_axolotl_itself(recipe, console, tmp_path):
    emit(recipe("data.pack=8192"), "axolotl", tmp_path / "a", console)
    config = yaml.safe_load((tmp_path / "a" / "axolotl.yaml").read_text())
    assert (config["sample_packing"], config["sequence_len"]) == (True, 8192)
