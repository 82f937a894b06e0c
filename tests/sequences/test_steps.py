import tokenizers
from tokenizers import models, pre_tokenizers

from nextlong.engine.step import Step
from nextlong.recipe import Recipe
from nextlong.sequences.steps import tokenizer_step
from nextlong.sequences.tokenizer import train_bpe

SENTENCES = ["The first star of the night.\n", "It's 1234 parsecs away, isn't it?\n", "Zoë counts 東京 and café.\n"]


def byte_tokenizer():
    """One id per UTF-8 byte: a tokenizer whose E can be counted by hand."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({char: number for number, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    return tokenizer


def test_a_tokenizer_that_changes_below_the_home_folder_makes_another_step(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    given = Recipe.from_dict(
        {"run_dir": "run", "ingest": {"sources": [{"path": "x.jsonl"}]}, "tokenizer": "~/tokenizer.json"}
    )
    corpus = Step("ingest", 1, {}, (), lambda done: [])
    fingerprints = []
    for tokenizer in (byte_tokenizer(), train_bpe(SENTENCES, vocab_size=300)):
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        fingerprints.append(tokenizer_step(given, corpus, corpus).fingerprint)
    assert fingerprints[0] != fingerprints[1]
    other_engine = given.model_copy(update={"tokenizer": given.tokenizer.model_copy(update={"engine": "reference"})})
    assert tokenizer_step(other_engine, corpus, corpus).fingerprint == fingerprints[1]
