from nextlong.train.emit import emit


def test_prolong(recipe, console, tmp_path):
    emit(recipe(), "prolong", tmp_path / "p", console)
    launch = (tmp_path / "p" / "launch.sh").read_text()
    for words in (
        '"rope_theta=200000000"',
        "--seq_parallel_size 4",
        "--learning_rate 4e-05",
        "--per_device_max_tokens 2048",
    ):
        assert words in launch
    assert (tmp_path / "p" / "data" / "index.json").exists()
