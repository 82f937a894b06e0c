"""The demo of an evaluation: its text, its tokenizer, and what is measured of its model."""

import pytest
from tokenizers import Tokenizer

from nextlong.evaluate import demo


@pytest.fixture(scope="module")
def text():
    return demo._help_pages()


@pytest.fixture(scope="module")
def tokenizer(text):
    return demo._tokenizer(text)


def test_the_haystack_is_pythons_help_long_enough_for_every_length(text, tokenizer):
    assert "lambda" in text
    assert len(tokenizer.encode(text).ids) > 2048 * 10


def test_any_text_comes_back_from_its_tokens(tokenizer):
    assert isinstance(tokenizer, Tokenizer)
    for text in ("def f(x): return x", "naïve 漢字 🙂\r\n\t\x00"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text
    assert tokenizer.token_to_id("<|endoftext|>") == 0  # which the model begins and ends texts with


def test_a_model_that_is_there_is_measured_again_and_not_made_anew(tmp_path, monkeypatch):
    made, measured, reported = [], [], []
    monkeypatch.setattr(demo, "_help_pages", lambda: "some words of help " * 50)

    def save(folder, tokenizer):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        made.append(folder)

    monkeypatch.setattr(demo, "_save_model", save)
    monkeypatch.setattr(demo, "evaluate", lambda _, settings, *, progress: measured.append(settings))
    monkeypatch.setattr(demo.show, "tables", lambda results, console: None)
    monkeypatch.setattr(demo.show, "report", lambda folders, **where: reported.append((folders, where["outputs"])))
    for _ in range(2):
        assert demo.main([str(tmp_path / "d")]) == 0
    assert made == [tmp_path / "d/model"]
    assert [(one.model.name, one.data.folder, one.out) for one in measured] == [
        (str(tmp_path / "d/model"), tmp_path / "d/data", tmp_path / "d/results")
    ] * 2
    assert max(measured[0].lengths) < demo._CONTEXT
    assert reported == [([tmp_path / "d/results"], [tmp_path / "d/report.html"])] * 2
    assert (tmp_path / "d/data/needle/haystack.txt").read_text().startswith("some words")
