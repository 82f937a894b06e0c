"""Vocabulary files without a tokenizer.json: converted exactly, or refused with the command that helps."""

import base64
import json
import shutil

import pytest
from tests.support.spacing_tokenizers import TEXTS
from tokenizers import pre_tokenizers

from nextlong import recipe
from nextlong.cli.main import main
from nextlong.errors import TokenizerError
from nextlong.sequences import convert
from nextlong.sequences.tokenizer import (
    check_source,
    find_ends_of,
    load_tokenizer,
    local_path,
    train_bpe,
)


def write_vocabulary(folder, *, config=None):
    """Write vocab.json and merges.txt of a byte-level BPE, as those of GPT-2; return the tokenizer."""
    folder.mkdir(exist_ok=True)
    tokenizer = train_bpe(TEXTS, vocab_size=400)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.model.save(str(folder))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


def write_tiktoken(folder, *, name="tokenizer.model"):
    folder.mkdir(exist_ok=True)
    words = [base64.b64encode(bytes([byte])).decode() for byte in range(256)]
    lines = [f"{word} {rank}\n" for rank, word in enumerate(words)]
    (folder / name).write_text("".join(lines))


@pytest.mark.parametrize(
    "name", ["tokenizer.model", "tekken.json", "qwen.tiktoken", "vocab.txt"]
)
def test_a_folder_means_its_vocabulary_unless_it_has_a_tokenizer_json(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    assert local_path(str(tmp_path)) == tmp_path / name
    (tmp_path / "tokenizer.json").write_bytes(b"")
    assert local_path(str(tmp_path)) == tmp_path / "tokenizer.json"


def test_a_vocab_json_counts_only_with_its_merges(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    assert local_path(str(tmp_path)) == tmp_path / "tokenizer.json"
    (tmp_path / "merges.txt").write_text("")
    assert local_path(str(tmp_path)) == tmp_path / "vocab.json"


@pytest.mark.parametrize("write", [write_vocabulary, write_tiktoken])
def test_a_vocabulary_of_an_unknown_class_is_refused_before_the_run(tmp_path, write):
    write(tmp_path / "model")
    source = str(tmp_path / "model")
    with pytest.raises(TokenizerError, match="tokenizer_config.json") as caught:
        check_source(recipe.Tokenizer(source=source))
    assert f"--local-dir {source}" in str(caught.value)


def test_init_refuses_what_cannot_be_converted(tmp_path, capsys):
    write_tiktoken(tmp_path / "model")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "A text. " * 50}) + "\n")
    arguments = ["init", str(tmp_path / "r.yaml"), str(tmp_path / "a.jsonl")]
    assert main([*arguments, "--tokenizer", str(tmp_path / "model")]) == 2
    assert "tokenizer.model is a vocabulary file" in capsys.readouterr().err
    assert not (tmp_path / "r.yaml").exists()


def test_a_missing_package_is_named_with_the_extra(tmp_path, monkeypatch):
    write_vocabulary(tmp_path, config={"tokenizer_class": "GPT2Tokenizer"})
    monkeypatch.setattr(convert, "find_spec", lambda name: None)
    with pytest.raises(TokenizerError, match=r"transformers .*'nextlong\[convert\]'"):
        load_tokenizer(recipe.Tokenizer(source=str(tmp_path)))


def test_a_tekken_file_without_its_converter_names_the_download(tmp_path, monkeypatch):
    (tmp_path / "tekken.json").write_text("{}")
    monkeypatch.setattr(convert, "find_spec", lambda name: None)
    with pytest.raises(TokenizerError, match="mistral-common") as caught:
        load_tokenizer(recipe.Tokenizer(source=str(tmp_path)))
    assert f"--local-dir {tmp_path}" in str(caught.value)


def test_a_tiktoken_file_without_special_tokens_is_refused(tmp_path):
    write_tiktoken(tmp_path, name="x.tiktoken")
    config = {"tokenizer_class": "Qwen2Tokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerError, match="special tokens"):
        load_tokenizer(recipe.Tokenizer(source=str(tmp_path / "x.tiktoken")))


@pytest.mark.heavy
def test_vocabulary_and_merges_are_converted_with_the_same_ids(tmp_path):
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    expected = write_vocabulary(tmp_path, config=config)
    settings = recipe.Tokenizer(source=str(tmp_path))
    converted = load_tokenizer(settings)
    for text in TEXTS:
        assert converted.encode(text).ids == expected.encode(text).ids
    assert find_ends_of(settings).eos == "<|endoftext|>"
    with pytest.raises(TokenizerError, match=r"tokenizer\.eos='<nope>'"):
        check_source(settings.model_copy(update={"eos": "<nope>"}))


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory):
    import sentencepiece

    folder = tmp_path_factory.mktemp("sentencepiece")
    (folder / "train.txt").write_text("".join(TEXTS) * 20, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "train.txt"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return folder / "tokenizer.model"


@pytest.mark.heavy
def test_a_sentencepiece_model_is_converted_with_its_own_ids(
    tmp_path, sentencepiece_model
):
    import sentencepiece

    shutil.copy(sentencepiece_model, tmp_path)
    config = {"tokenizer_class": "LlamaTokenizer", "legacy": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    converted = load_tokenizer(recipe.Tokenizer(source=str(tmp_path)))
    own = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    for text in TEXTS:
        assert converted.encode(text, add_special_tokens=False).ids == own.encode(text)


@pytest.mark.heavy
def test_merges_have_the_order_of_the_scores(tmp_path, sentencepiece_model):
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    # As in the file of Mistral 7B: the piece of two spaces has a low id and is merged
    # last.
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(sentencepiece_model.read_bytes())
    place = next(number for number, piece in enumerate(proto.pieces) if piece.type == 1)
    proto.pieces[place].piece = "▁▁"
    proto.pieces[place].score = -1e9
    (tmp_path / "tokenizer.model").write_bytes(proto.SerializeToString())
    config = {"tokenizer_class": "LlamaTokenizer", "legacy": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    converted = load_tokenizer(recipe.Tokenizer(source=str(tmp_path)))
    own = SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    for text in [*TEXTS, "two  words", "three   words"]:
        assert converted.encode(text, add_special_tokens=False).ids == own.encode(text)


@pytest.mark.heavy
def test_a_conversion_with_other_ids_than_sentencepiece_is_refused(
    tmp_path, sentencepiece_model
):
    shutil.copy(sentencepiece_model, tmp_path)
    # For a class that it cannot tell, transformers omits the space before a text.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(TokenizerError, match="SentencePiece"):
        load_tokenizer(recipe.Tokenizer(source=str(tmp_path)))


@pytest.mark.heavy
def test_a_conversion_that_loses_the_vocabulary_is_refused(tmp_path, monkeypatch):
    write_vocabulary(tmp_path, config={"tokenizer_class": "Qwen2Tokenizer"})
    (tmp_path / "vocab.json").rename(tmp_path / "other.json")
    (tmp_path / "vocab.txt").write_text("a\nb\nc\nd\n")
    with pytest.raises(TokenizerError, match="vocabulary file"):
        load_tokenizer(recipe.Tokenizer(source=str(tmp_path)))
