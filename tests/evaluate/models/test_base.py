import pytest
from tokenizers import processors

from evaluation_data import byte_tokenizer, word_tokenizer
from nextlong.errors import EvaluateError
from nextlong.evaluate.models.base import TextTokenizer


def with_bos():
    backend = byte_tokenizer()
    backend.add_special_tokens(["<s>", "</s>"])
    start, end = backend.token_to_id("<s>"), backend.token_to_id("</s>")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="$A $B", special_tokens=[("<s>", start), ("</s>", end)]
    )
    return TextTokenizer(backend), start


def test_special_tokens_are_never_added_or_counted_and_bos_is_put_there_once():
    tokenizer, start = with_bos()
    ids = tokenizer.encode("tide")
    assert start not in ids
    assert tokenizer.count("tide") == len(ids) == len(tokenizer.boundaries("tide")) == 4
    assert tokenizer.prefix == (start,)
    assert tokenizer.with_prefix(ids) == tokenizer.with_prefix(tokenizer.with_prefix(ids)) == [start, *ids]


def test_without_bos_nothing_is_put_before_a_text():
    tokenizer = TextTokenizer(byte_tokenizer())
    assert tokenizer.prefix == ()
    assert tokenizer.with_prefix([3, 4]) == [3, 4]


def test_long_texts_are_not_cut_whatever_the_file_says():
    backend = word_tokenizer()
    backend.enable_truncation(2)
    assert TextTokenizer(backend).count("one two three") == 3


def test_equal_tokenizers_have_one_hash():
    assert TextTokenizer(byte_tokenizer()).hash == TextTokenizer(byte_tokenizer()).hash
    assert TextTokenizer(byte_tokenizer()).hash != TextTokenizer(word_tokenizer()).hash


def test_it_is_read_from_a_file_or_its_folder(tmp_path):
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for source in (tmp_path, tmp_path / "tokenizer.json"):
        assert TextTokenizer.read(source).count("a tide") == 2
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(EvaluateError, match=r"--tokenizer .*: no tokenizer\.json there"):
        TextTokenizer.read(tmp_path)
