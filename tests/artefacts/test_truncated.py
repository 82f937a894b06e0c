"""How many characters a cut keeps, for tokenizers that count offsets in ways of their own."""

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from nextlong.artefacts.truncated import kept_chars
from nextlong.tokens.token_chars import token_chars
from nextlong.tokens.tokenizer import train_bpe


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


def under_nfc():
    tokenizer = train_bpe(["the cat sat on the mat", "e\u0301e\u0301"], vocab_size=300)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def mixed_scripts(normalizer=None):
    # Without a pattern that splits, so that tokens begin and end within characters.
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    texts = [
        "the cat sat on the mat",
        "日本の港に船が帰る",
        "🌊🌊 👍🏽 🐟🐟",
        "שלום ים סירה",
        "море гавань якорь",
        "naïve señor",
    ]
    tokenizer.train_from_iterator(texts * 3, trainer)
    tokenizer.add_tokens(["    ", "  "])
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def every_cut(tokenizer, *texts, table=None):
    """Return the characters kept by 1, 2, … all but one tokens of each text, and how many cuts were left to the offsets."""
    encoded = [(text, tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    cuts = [(text, ids, count) for text, ids in encoded for count in range(1, len(ids))]
    asked = []

    def texts_of(places):
        asked.extend(places.tolist())
        return [cuts[place][0] for place in places]

    kept = kept_chars(
        np.array([token for _, ids, _ in cuts for token in ids], np.int32),
        offsets=np.cumsum([0, *(len(ids) for _, ids, _ in cuts)]),
        tokens=np.array([count for *_, count in cuts], np.int64),
        chars=np.array([len(text) for text, *_ in cuts], np.int64),
        token_chars=token_chars(tokenizer) if table is None else table,
        texts_of=texts_of,
        tokenizer=lambda: tokenizer,
    )
    return kept.tolist(), len(asked)


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        (bytes_only(trim=False), "aé🎉b", [1, 1, 2, 2, 2, 2, 3]),
        (bytes_only(trim=False), " a\nb", [1, 2, 3]),
        (bytes_only(trim=True), "ab  cde", [1, 2, 3, 4, 5, 6]),
        (bytes_only(trim=False), "e\u0301日x", [1, 1, 2, 2, 2, 3]),
        (bytes_only(trim=False), "\ufffdx", [1, 1, 1]),  # a part of the only character is that character's
        (under_nfc(), "\u212ax1", [1, 2]),
    ],
)
def test_whole_characters_are_told_from_the_ids_alone(tokenizer, text, expected):
    assert every_cut(tokenizer, text) == (expected, 0)


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        (wordpiece(), "Hello,  WORLD,", [5, 6, 11, 13]),
        (characters(), "aéb", [1, 1, 2]),
        (under_nfc(), "ae\u0301b", [1, 1, 2]),  # of \u00e9 the reference knows that it came from the e
    ],
)
def test_offsets_tell_of_what_ids_do_not(tokenizer, text, expected):
    assert every_cut(tokenizer, text) == (expected, len(expected))


def test_ids_that_lost_a_character_are_not_trusted():
    tokenizer = bytes_only(trim=False)
    tokenizer.add_tokens([tokenizers.AddedToken("<x>", lstrip=True)])
    assert every_cut(tokenizer, "a  <x>b") == ([1, 6], 2)


def test_chunks_of_one_block_are_told_apart():
    assert every_cut(under_nfc(), "abx", "é1", "cd") == ([1, 2, 1, 1, 1], 2)


MIXED, MIXED_NFC = mixed_scripts(), mixed_scripts(normalizers.NFC())
TABLE, TABLE_NFC = token_chars(MIXED), token_chars(MIXED_NFC)
UNREADABLE = np.zeros_like(TABLE)
TEXTS = st.text(st.sampled_from("the cat 日本の港🌊👍🏽שלוםморе ïñ\n") | st.characters(codec="utf-8"), min_size=1)


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_ids_and_offsets_agree(texts):
    by_ids, asked = every_cut(MIXED, *texts, table=TABLE)
    by_offsets, asked_anew = every_cut(MIXED, *texts, table=UNREADABLE)
    assert by_ids == by_offsets
    assert asked == 0
    assert asked_anew == len(by_offsets)


@given(st.lists(TEXTS | st.text(st.sampled_from("the e\u0301\u0327é港が\u212a\u0958한")), min_size=1, max_size=3))
def test_ids_and_offsets_agree_under_nfc(texts):
    by_ids, _ = every_cut(MIXED_NFC, *texts, table=TABLE_NFC)
    by_offsets, _ = every_cut(MIXED_NFC, *texts, table=UNREADABLE)
    assert by_ids == by_offsets


def test_tokens_of_mixed_scripts_end_within_characters():
    ends_within = TABLE["goes_on"] & (TABLE["begun"] > 0)
    assert ends_within.any()
