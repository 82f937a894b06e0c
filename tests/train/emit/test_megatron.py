import yaml

from nextlong.train.emit import emit


def test_megatron_and_neox(recipe, console, tmp_path):
    emit(recipe("data.pack=8192"), "megatron", tmp_path / "m", console)
    launch = (tmp_path / "m" / "launch.sh").read_text()
    for words in (
        "--rotary-base 200000000",
        "--reset-position-ids --reset-attention-mask",
        "--context-parallel-size 4",
        "--lr 4e-05",
    ):
        assert words in launch
    neox = yaml.safe_load((tmp_path / "m" / "neox.yaml").read_text())
    assert (neox["rotary_emb_base"], neox["reset_attention_mask"], neox["train_iters"], neox["warmup"]) == (
        200_000_000,
        True,
        1000,
        0.2,
    )
    assert all((tmp_path / "m" / "data").glob("*.idx"))
    assert all(path in launch for path in neox["train_data_paths"])
