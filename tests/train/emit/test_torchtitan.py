import ast

from nextlong.train.emit import emit


def test_torchtitan(recipe, console, tmp_path):
    emit(recipe("data.pack=8192"), "torchtitan", tmp_path / "t", console)
    text = (tmp_path / "t" / "nextlong_titan.py").read_text()
    module = ast.parse(text)
    (config,) = (node for node in module.body if getattr(node, "name", "") == "nextlong")
    said = ast.unparse(config)
    for words in (
        "theta=200000000.0",
        "scaling='none'",
        "seq_len = 8192",
        "global_batch_size = 8",
        "max_norm = 1.0",
        "'8B'",
    ):
        assert words in said
