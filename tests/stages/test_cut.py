"""How many characters a cut keeps, for tokenizers that count offsets in ways of their own."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from nextlong.stages.cut import kept_chars
from nextlong.stages.tokenizer import train_bpe


def wordpiece():
    vocab = {"[UNK]": 0, "hello": 1, "wor": 2, "##ld": 3, ",": 4}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def bytes_only(*, trim):
    tokenizer = train_bpe([], vocab_size=257)
    if trim:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def characters():
    tokenizer = tokenizers.Tokenizer(models.BPE({"▁": 0, "a": 1, "é": 2, "b": 3}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def byte_level(normalizer=None, **options):
    tokenizer = train_bpe(["the cat sat on the mat", "e\u0301e\u0301"], vocab_size=300)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


PLAIN = byte_level()


def every_cut(tokenizer, text, *, chars=None):
    """Return the characters kept by 1, 2, … all tokens of `text`, and of how many cuts the text was asked for."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    asked = []

    def texts_of(places):
        asked.extend(places.tolist())
        return [text] * len(places)

    cuts = range(1, len(ids) + 1)
    size = len(text) if chars is None else chars
    kept = kept_chars(
        [ids] * len(ids), tokens=list(cuts), chars=[size] * len(ids), texts_of=texts_of, tokenizer=tokenizer
    )
    return kept.tolist(), len(asked)


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        (bytes_only(trim=False), "aé🎉", [1, 1, 2, 2, 2, 2, 3]),
        (bytes_only(trim=False), " a\n", [1, 2, 3]),
        (bytes_only(trim=True), "ab  cd", [1, 2, 3, 4, 5, 6]),
        (bytes_only(trim=False), "e\u0301日", [1, 1, 2, 2, 2, 3]),
        (wordpiece(), "Hello,  WORLD", [5, 6, 11, 13]),
        (characters(), "aéb", [0, 1, 2, 3]),
    ],
)
def test_a_cut_keeps_whole_characters(tokenizer, text, expected):
    assert every_cut(tokenizer, text)[0] == expected


def test_decoding_answers_for_bytes_and_the_text_is_not_read():
    assert every_cut(bytes_only(trim=False), "aé🎉") == ([1, 1, 2, 2, 2, 2, 3], 0)


def test_of_normalized_ids_only_ascii_is_decoded():
    tokenizer = byte_level(normalizers.NFC())
    assert every_cut(tokenizer, "the")[1] == 0
    kept, asked = every_cut(tokenizer, "ae\u0301b")  # one character, two bytes, after NFC; two characters before
    assert kept[0] == 1
    assert kept[-1] == 4
    assert asked == len(kept)


@pytest.mark.parametrize(
    "tokenizer", [byte_level(add_prefix_space=True), byte_level(normalizers.Lowercase()), wordpiece(), characters()]
)
def test_a_tokenizer_that_does_not_give_text_back_is_asked_for_offsets(tokenizer):
    kept, asked = every_cut(tokenizer, "hello, world")
    assert asked == len(kept)


def test_ids_of_another_length_than_the_chunk_are_not_trusted():
    kept, asked = every_cut(bytes_only(trim=False), "abc", chars=4)
    assert (kept, asked) == ([1, 2, 3], 3)


@given(st.text(min_size=1))
def test_decoding_and_offsets_agree(text):
    by_decoding, asked = every_cut(PLAIN, text)
    by_offsets, asked_anew = every_cut(PLAIN, text, chars=len(text) + 1)
    assert by_decoding == by_offsets
    assert (asked == 0) == ("\ufffd" not in text)
    assert asked_anew == len(by_offsets)
