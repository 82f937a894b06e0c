"""Which characters tokens stand for, of tokenizers that are byte-level BPE and of others."""

import pytest
import tokenizers
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from nextlong.sequences.tokenizer import (
    lost_share,
    token_chars,
    train_bpe,
)

NOTHING = (0, False, False)


def byte_level(normalizer=None, *, texts=("日本 日本", "the the"), **options):
    tokenizer = train_bpe(texts, vocab_size=270)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        **{"add_prefix_space": False, **options}
    )
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def rows(tokenizer, *names):
    table = token_chars(tokenizer)
    return [tuple(table[tokenizer.token_to_id(name)].tolist()) for name in names]


def bytes_named(raw):
    # Those of ByteLevel: printable bytes of Latin-1 stand for themselves, the others
    # for the characters from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(
        chr(byte if byte in printable else 256 + others.index(byte)) for byte in raw
    )


def test_a_token_counts_the_characters_that_begin_in_its_bytes():
    tokenizer = byte_level()
    names = [
        "t",
        "the",
        *(bytes_named(part) for part in ("日本".encode(), b"\xe6", b"\xa5")),
    ]
    assert rows(tokenizer, *names) == [
        (1, False, True),
        (3, False, True),
        (2, False, True),
        (1, False, True),
        (0, True, True),
    ]
    assert len(token_chars(tokenizer)) == max(tokenizer.get_vocab().values()) + 1


@pytest.mark.parametrize(
    ("text", "readable"),
    [
        ("the", True),
        ("日", True),
        ("—", True),
        ("é", False),  # may have been two characters
        ("한", False),  # or three
        ("\u0301", False),  # may have stood elsewhere
        ("\u05bc", False),
        ("\u0378", False),  # is no character yet
    ],
)
def test_under_nfc_a_token_is_readable_if_each_character_was_one(text, readable):
    tokenizer = byte_level(normalizers.NFC(), texts=[text] * 3)
    (row,) = rows(tokenizer, bytes_named(text.encode()))
    assert row == (len(text), False, readable)


def test_under_nfc_a_part_of_a_character_is_not_readable():
    names = (bytes_named(part) for part in (b"\xe6", b"\xa5"))
    assert rows(byte_level(normalizers.NFC()), *names) == [
        (1, False, False),
        (0, True, False),
    ]


def test_added_tokens_count_by_what_they_are_in_a_text():
    tokenizer = byte_level()
    tokenizer.add_tokens(["   ", AddedToken(" né", normalized=False)])
    assert rows(tokenizer, "   ", " né", "<|endoftext|>") == [
        (3, False, True),
        (3, False, True),
        (13, False, True),
    ]


def test_an_id_that_stands_for_a_byte_and_for_an_added_token_is_not_readable():
    tokenizer = byte_level()
    name = bytes_named(b"\xe9")
    tokenizer.add_tokens([name])
    assert rows(tokenizer, name) == [NOTHING]


@pytest.mark.parametrize("unknown", ["?", "<|endoftext|>"])
def test_the_unknown_token_is_not_readable(unknown):
    tokenizer = byte_level()
    tokenizer.model.unk_token = unknown
    assert rows(tokenizer, unknown, "t") == [NOTHING, (1, False, True)]


def metaspace():
    tokenizer = tokenizers.Tokenizer(models.BPE({"▁": 0, "a": 1, "é": 2, "b": 3}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def wordpiece():
    return tokenizers.Tokenizer(
        models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")
    )


def few_bytes():
    tokenizer = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        byte_level(add_prefix_space=True),
        byte_level(normalizers.Lowercase()),
        metaspace(),
        wordpiece(),
        few_bytes(),
        tokenizers.Tokenizer(models.BPE()),
    ],
)
def test_of_any_other_tokenizer_no_token_is_readable(tokenizer):
    table = token_chars(tokenizer)
    assert len(table) == tokenizer.get_vocab_size()
    assert not table["readable"].any()


TEXTS = ["The Zoë\r\n\tsaw  東京 🤗 e\u0301 \x00\n", "", "1234 <|endoftext|>"]


def words(*known, normalizer=None):
    tokenizer = Tokenizer(
        models.WordLevel(
            {word: number for number, word in enumerate(["[UNK]", *known])},
            unk_token="[UNK]",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()])
@pytest.mark.parametrize("decoder", [None, decoders.ByteLevel()])
def test_a_byte_level_tokenizer_loses_nothing(normalizer, decoder):
    tokenizer = train_bpe(["the the"], vocab_size=300)
    tokenizer.encode_special_tokens = True
    tokenizer.decoder = decoder
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    assert lost_share(tokenizer, TEXTS, [True] * len(TEXTS)) == 0


@pytest.mark.parametrize(
    ("tokenizer", "text", "lost"),
    [
        (words("the", "star"), "the star", 0),
        (words("the", "star"), "the moon", 5),
        (words("the", "star", normalizer=normalizers.Lowercase()), "The STAR", 5),
        (
            words("the", "star"),
            "the\nstar",
            1,
        ),  # a newline; the blank that joins words is not in the text
        (
            words(
                "cafe",
                normalizer=normalizers.Sequence(
                    [normalizers.NFD(), normalizers.StripAccents()]
                ),
            ),
            "café",
            1,
        ),
        (words("[UNK]"), "abcd", 4),
    ],
)
def test_characters_that_no_token_says_are_counted(tokenizer, text, lost):
    assert lost_share(tokenizer, [text], [True]) == pytest.approx(lost / len(text))


def test_no_text_loses_nothing():
    assert lost_share(words("the"), [], []) == 0
