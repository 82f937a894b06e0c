"""fastokens against the reference: equal ids on everything, and the reference where it cannot load or differs."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.larger_cases import thorough
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from nextlong.artifacts.sequence_files import read_tokenizer
from nextlong.sequences.tokenize import TextEncoder, _trial_texts, chars_before_loading
from nextlong.sequences.tokenizer import _LLAMA3_PATTERN

TRAINING_TEXT = [
    "It's the first day, and they'll say that we've seen 1234 of the 56789 stars; I'd say: don't count them!\n\n",
    "def rate(x):\n    if x == 0:\n\t\treturn 'none'\n    return 100 * x  # percent, isn't it?\r\n",
    "Le café de Zoë était fermé; naïve façade, “quoted” — … Привет, мир! Не знаю. 東京で三百個。 שלום עולם ١٢٣ हिन्दी\n",
] * 3
SNIPPETS = [
    *(
        "'s",
        "'S",
        "'ſ",
        "'t",
        "'re",
        "'RE",
        "'rE",
        "'ve",
        "'m",
        "'ll",
        "'lL",
        "'d",
        "'",
        "’s",
        "'ſt",
        "ſ",
        "\u212a",
        "'\u212a",
    ),
    *(
        " ",
        "  ",
        "   ",
        "\n",
        "\r\n",
        "\n\n",
        "\r",
        "\t",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x1f",
        "\x00",
        "\x7f",
        "\u0085",
        "\u00a0",
    ),
    *(
        "\u2028",
        "\u2029",
        "\u3000",
        "\u200b",
        "\u200d",
        "\ufeff",
        "\u180e",
        "\u1680",
        "\u202f",
    ),
    *("1", "12", "1234567", "½", "²", "Ⅷ", "١٢", "१२३४", "１２３", "\U0001d7d8"),
    *(
        "e\u0301",
        "\u0301",
        "a\u0323\u0302",
        "Å",
        "\u212b",
        "\u1100\u1161",
        "각",
        "ﬁ",
        "ẞ",
        "İ",
        "ǆ",
        "ﬆ",
        "क्ष",
    ),
    *(
        "🤗",
        "👩\u200d👩\u200d👧",
        "\U0001f1e9\U0001f1ea",
        "❤️",
        "שָׁלוֹם",
        "العربية",
        "東京",
        "\ue000",
        "\U000e0041",
        "\u0378",
        "\U0001fae8",
    ),
    *(
        "the",
        " The",
        "don",
        "I",
        "x",
        "<|endoftext|>",
        "<|im_start|>",
        "<tool>",
        "<|end",
        "<",
        "|>",
        "!",
        "...",
        "#",
        "_",
        "==",
        "https://a.b/c?d=1",
    ),
]
ADVERSARIAL = st.lists(
    st.sampled_from(SNIPPETS) | st.text(max_size=6), max_size=14
).map("".join)


def split_by(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def make_tokenizer(pre_tokenizer, *, normalizer=None, added=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    tokenizer.add_tokens(list(added))
    return tokenizer


GPT2_SPLIT = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
SPACES = [AddedToken(" " * count, normalized=True) for count in range(2, 6)]
TOKENIZERS = {
    "llama3": make_tokenizer(split_by(_LLAMA3_PATTERN)),
    "gpt2": make_tokenizer(GPT2_SPLIT),
    "gpt2-split": make_tokenizer(
        split_by(
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
        )
    ),
    "qwen": make_tokenizer(
        split_by(_LLAMA3_PATTERN.replace("{1,3}", "")), normalizer=normalizers.NFC()
    ),
    "neox": make_tokenizer(GPT2_SPLIT, normalizer=normalizers.NFC(), added=SPACES),
    "special": make_tokenizer(
        GPT2_SPLIT,
        added=[
            AddedToken("<tool>"),
            AddedToken("<|im_start|>", special=True, lstrip=True),
            AddedToken("the", special=True),
        ],
    ),
}


def settled(tokenizer):
    """Return an encoder that uses fastokens from its first text on, if it can."""
    encoder = TextEncoder(tokenizer)
    encoder.expect(math.inf)
    return encoder


@cache
def known(name):
    return settled(TOKENIZERS[name])


def reference_ids(tokenizer, texts):
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def encoded(encoder, texts):
    ids, lengths = encoder.encode_batch(texts)
    assert (ids.dtype, lengths.dtype, len(ids), len(lengths)) == (
        np.uint32,
        np.int64,
        lengths.sum(),
        len(texts),
    )
    return (
        [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
        if texts
        else []
    )


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None)
@given(texts=st.lists(ADVERSARIAL, min_size=1, max_size=4))
def test_ids_are_the_reference_ids(name, texts):
    assert encoded(known(name), texts) == reference_ids(TOKENIZERS[name], texts)
    assert (known(name).expect(math.inf), known(name).mismatches) == ("fastokens", 0)


@pytest.mark.parametrize("name", ["llama3", "gpt2"])
def test_each_pair_of_awkward_pieces(name):
    texts = [f"{left}{right}a" for left in SNIPPETS[:40] for right in SNIPPETS]
    assert encoded(known(name), texts) == reference_ids(TOKENIZERS[name], texts)
    assert known(name).mismatches == 0


CONTEXTS = [
    "  {0}a{0}'sa",
    "\n\n{0}a1{0}2 '{0}t",
    "'{0}क .{0}.\n",
    "a{0}b{0}{0}  {0}\n{0} \n{0}\u0301",
]


@pytest.mark.parametrize("each", [16, *thorough(1)])
@pytest.mark.parametrize("name", ["llama3", "gpt2-split", "neox"])
def test_each_character_is_classed_as_the_reference_does(name, each):
    codes = [
        *range(0x80, 0x3000),
        *range(0x3000, 0x32000, 16),
    ]  # of scripts with many characters, each 16th
    chars = [chr(code) for code in codes[::each] if not 0xD800 <= code < 0xE000]
    texts = [context.format(char) for char in chars for context in CONTEXTS]
    tokenizer = TOKENIZERS[name]
    encoder = settled(tokenizer)
    ids, lengths = encoder.encode_batch(texts)
    true = [
        encoding.ids
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    ]
    found = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    assert [
        ascii(text)
        for text, own, want in zip(texts, found, true, strict=True)
        if own != want
    ] == []


def test_characters_that_regular_expressions_disagree_on_go_to_the_reference():
    texts = ["plain", "it'ſक्ष", "", "  \u180ea", "plain too"]
    for name in ("llama3", "gpt2-split"):
        encoder = settled(TOKENIZERS[name])
        assert encoded(encoder, texts) == reference_ids(TOKENIZERS[name], texts)
        assert encoder.mismatches == 0
    raw = known("llama3")._fast.encode_batch_flat(
        texts, add_special_tokens=False, split_special_tokens=True
    )
    assert (
        raw[0] != known("llama3").encode_batch(texts)[0].tobytes()
    )  # or the rule is needed no more


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_special_tokens_name_in_a_text_is_text(name):
    encoder = known(name)
    special = {
        number
        for number, token in TOKENIZERS[name].get_added_tokens_decoder().items()
        if token.special
    }
    texts = [
        "a<|endoftext|>b",
        "<|endoftext|>",
        " <|im_start|> of <|endoftext|><|endoftext|>",
    ]
    ids = encoded(encoder, texts)
    assert ids == reference_ids(TOKENIZERS[name], texts)
    assert special
    assert special.isdisjoint(token for text in ids for token in text)


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    return tokenizer


def repeats_the_text():
    tokenizer = make_tokenizer(GPT2_SPLIT)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A $A", special_tokens=[]
    )
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        make_tokenizer(
            GPT2_SPLIT, normalizer=normalizers.NFKC()
        ),  # which fastokens does not know
        unigram(),
        Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]")),
        repeats_the_text(),  # fastokens loads it, and gives other ids
    ],
    ids=["nfkc", "unigram", "word-level", "template"],
)
def test_what_fastokens_does_not_load_or_gets_wrong_is_left_to_the_reference(tokenizer):
    encoder = TextEncoder(tokenizer)
    texts = ["The first DAY of 1234", "", "Zoë's  café\n"]
    assert encoder.expect(math.inf) == "reference"
    assert encoded(encoder, texts) == reference_ids(tokenizer, texts)
    assert encoder.mismatches == 0


@pytest.mark.parametrize(
    "tokenizer",
    [
        make_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)),
        make_tokenizer(split_by(r"\p{N}{1,3}|\s+|\S+")),
        make_tokenizer(GPT2_SPLIT, normalizer=normalizers.Lowercase()),
        make_tokenizer(
            pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), GPT2_SPLIT]
            )
        ),
    ],
    ids=["prefix-space", "other-pattern", "lowercase", "digits"],
)
def test_other_byte_level_tokenizers_are_encoded_alike(tokenizer):
    encoder = settled(tokenizer)
    texts = [
        "The first DAY of 1234",
        "",
        "Zoë's  café\n",
        *(f"{left}{left}a" for left in SNIPPETS),
    ]
    assert encoder.expect(math.inf) == "fastokens"
    assert encoded(encoder, texts) == reference_ids(tokenizer, texts)


def test_fastokens_is_loaded_once_enough_text_is_known_to_come():
    tokenizer = TOKENIZERS["special"]
    encoder, enough = TextEncoder(tokenizer), chars_before_loading(tokenizer)
    encoder.expect(enough - 1)
    assert encoder._fast is None
    encoder.expect(enough)
    assert encoder._fast is not None
    asked = TextEncoder(tokenizer, engine="reference")
    asked.expect(enough)
    assert asked.expect(math.inf) == "reference"


def test_the_trial_spells_added_tokens_and_holds_awkward_texts():
    texts = list(_trial_texts(TOKENIZERS["special"]))
    assert "" in texts
    assert any("<tool>" in text for text in texts)
    assert any("<|endoftext|>" in text for text in texts)
    assert any(" " * 1000 in text for text in texts)
    assert any("e\u0301" in text and "\u212b" in text for text in texts)
    assert 30_000 < sum(map(len, texts)) < 150_000


def test_fastokens_is_loaded_once_the_texts_are_worth_it(monkeypatch):
    monkeypatch.setattr(
        "nextlong.sequences.tokenize._CHARS_WORTH_AN_ENTRY", 1
    )  # of a vocabulary of 500
    encoder = TextEncoder(TOKENIZERS["llama3"])
    few, many = ["a" * 300], ["b" * 300]
    for texts in (few, many):
        assert encoded(encoder, texts) == reference_ids(TOKENIZERS["llama3"], texts)
        assert encoder._fast is None
    assert encoded(encoder, few) == reference_ids(TOKENIZERS["llama3"], few)
    assert encoder._fast is not None


def test_dropout_truncation_and_padding_are_switched_off_in_a_runs_tokenizer(tmp_path):
    tokenizer = make_tokenizer(GPT2_SPLIT)
    plain = reference_ids(tokenizer, TRAINING_TEXT)
    tokenizer.model.dropout = 0.5
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert (
        reference_ids(read_tokenizer(tmp_path / "tokenizer.json"), TRAINING_TEXT)
        == plain
    )
    assert (
        encoded(settled(read_tokenizer(tmp_path / "tokenizer.json")), TRAINING_TEXT)
        == plain
    )


def test_special_tokens_of_a_template_are_not_added():
    tokenizer = make_tokenizer(GPT2_SPLIT)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    encoder = settled(tokenizer)
    assert encoder.expect(math.inf) == "fastokens"
    assert encoded(encoder, ["the day"]) == encoded(known("gpt2"), ["the day"])


def test_empty_batch_and_empty_text():
    for encoder in (known("llama3"), TextEncoder(TOKENIZERS["llama3"])):
        assert encoded(encoder, []) == []
        assert encoded(encoder, ["", "x", ""]) == [
            [],
            reference_ids(TOKENIZERS["llama3"], ["x"])[0],
            [],
        ]


class WrongOn:
    """fastokens, but for one text, of which it loses the last id."""

    def __init__(self, fast, text):
        self.fast, self.text = fast, text

    def encode_batch_flat(self, texts, **options):
        parts = [self.fast.encode_batch_flat([text], **options)[0] for text in texts]
        parts = [
            part[:-4] if text == self.text else part
            for part, text in zip(parts, texts, strict=True)
        ]
        offsets = np.cumsum([0, *(len(part) // 4 for part in parts)]).astype(np.uint64)
        return b"".join(parts), offsets.tobytes()


def wrong_on(text):
    encoder = settled(TOKENIZERS["llama3"])
    encoder._fast = WrongOn(encoder._fast, text)
    return encoder


def test_each_wrong_text_that_is_checked_is_counted():
    encoder = wrong_on("on the day")
    encoder.encode_batch(["a", "on the day", "b", "on the day"])
    assert encoder.mismatches == 2


def test_every_256th_text_is_checked_however_they_are_batched():
    encoder = wrong_on("on the day")
    encoder.encode_batch(["x"] * 16 + ["on the day"] * 100)
    encoder.encode_batch(["on the day"] * 140)
    assert encoder.mismatches == 0
    encoder.encode_batch(["on the day"])
    assert encoder.mismatches == 1


def test_texts_that_fastokens_refuses_go_to_the_reference():
    class Refuses:
        def encode_batch_flat(self, texts, **options):
            raise ValueError("match limit exceeded")

    encoder = settled(TOKENIZERS["llama3"])
    encoder._fast = Refuses()
    assert encoded(encoder, TRAINING_TEXT) == reference_ids(
        TOKENIZERS["llama3"], TRAINING_TEXT
    )


def test_the_reference_can_be_asked_for():
    encoder = TextEncoder(TOKENIZERS["llama3"], engine="reference")
    assert encoder.expect(math.inf) == "reference"
    assert encoded(encoder, TRAINING_TEXT) == reference_ids(
        TOKENIZERS["llama3"], TRAINING_TEXT
    )
