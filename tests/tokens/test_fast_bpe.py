"""The fast engine against the reference: equal ids on everything, and the reference wherever the argument ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from nextlong.tokens import fast_bpe
from nextlong.tokens.fast_bpe import CL100K_PATTERN, TextEncoder

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
    *("\u2028", "\u2029", "\u3000", "\u200b", "\u200d", "\ufeff", "\u180e", "\u1680", "\u202f"),
    *("1", "12", "1234567", "½", "²", "Ⅷ", "١٢", "१२३४", "１２３", "\U0001d7d8"),
    *("e\u0301", "\u0301", "a\u0323\u0302", "Å", "\u212b", "\u1100\u1161", "각", "ﬁ", "ẞ", "İ", "ǆ", "ﬆ", "क्ष"),
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
ADVERSARIAL = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=6), max_size=14).map("".join)


def split_by(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def make_tokenizer(pre_tokenizer, *, normalizer=None, added=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    tokenizer.add_tokens(list(added))
    return tokenizer


GPT2_SPLIT = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
SPACES = [AddedToken(" " * count, normalized=True) for count in range(2, 6)]
TOKENIZERS = {
    "llama3": make_tokenizer(split_by(CL100K_PATTERN)),
    "gpt2": make_tokenizer(GPT2_SPLIT),
    "gpt2-split": make_tokenizer(
        split_by(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    ),
    "qwen": make_tokenizer(split_by(CL100K_PATTERN.replace("{1,3}", "")), normalizer=normalizers.NFC()),
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
ENCODERS = {name: TextEncoder(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def reference_ids(tokenizer, texts):
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def encoded(encoder, texts):
    ids, lengths = encoder.encode_batch(texts)
    assert (ids.dtype, lengths.dtype, len(ids), len(lengths)) == (np.uint32, np.int64, lengths.sum(), len(texts))
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] if texts else []


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, max_examples=60)
@given(texts=st.lists(ADVERSARIAL, min_size=1, max_size=4))
def test_ids_are_the_reference_ids(name, texts):
    assert encoded(ENCODERS[name], texts) == reference_ids(TOKENIZERS[name], texts)
    assert (ENCODERS[name].engine, ENCODERS[name].mismatches) == ("fast", 0)


@pytest.mark.parametrize("name", ["llama3", "gpt2"])
def test_each_pair_of_awkward_pieces(name):
    texts = [f"{left}{right}a" for left in SNIPPETS[:40] for right in SNIPPETS]
    assert encoded(ENCODERS[name], texts) == reference_ids(TOKENIZERS[name], texts)
    assert ENCODERS[name].mismatches == 0


@pytest.mark.parametrize("name", ["llama3", "gpt2"])
def test_each_character_is_classed_as_the_reference_does(name):
    codes = [*range(0x700), *range(0x2000, 0x2200), *range(0x3000, 0x3100), *range(0x1F600, 0x1F680)]
    texts = [f"a{chr(code)}1 {chr(code)}'{chr(code)}" for code in codes]
    assert encoded(ENCODERS[name], texts) == reference_ids(TOKENIZERS[name], texts)
    assert ENCODERS[name].mismatches == 0


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ordinary_text_of_any_script_is_not_left_to_the_reference(name):
    encoder = TextEncoder(TOKENIZERS[name])
    texts = (
        [*TRAINING_TEXT, "Ελληνικά, हिन्दी, ไทย, 한국어 🤗\n"]
        if name != "neox"
        else [TRAINING_TEXT[0], TRAINING_TEXT[2]]
    )
    assert encoded(encoder, texts) == reference_ids(TOKENIZERS[name], texts)
    assert encoder.fallback_texts == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3", "it'ſ"),  # long s is an s to a case-insensitive pattern
        ("qwen", "cafe\u0301"),
        ("qwen", "\U0001fae8e\u0301"),  # a character later than Unicode 3.2
        ("neox", "two  blanks"),
        ("special", "a <tool> b"),  # an added token that is not special
    ],
)
def test_texts_outside_the_argument_go_to_the_reference(name, text):
    encoder = TextEncoder(TOKENIZERS[name])
    assert encoded(encoder, [text, "plain"]) == reference_ids(TOKENIZERS[name], [text, "plain"])
    assert encoder.fallback_texts == 1


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_special_tokens_name_in_a_text_is_text(name):
    encoder = TextEncoder(TOKENIZERS[name])
    special = {number for number, token in TOKENIZERS[name].get_added_tokens_decoder().items() if token.special}
    texts = ["a<|endoftext|>b", "<|endoftext|>", " <|im_start|> of <|endoftext|><|endoftext|>"]
    ids = encoded(encoder, texts)
    assert ids == reference_ids(TOKENIZERS[name], texts)
    assert special
    assert special.isdisjoint(token for text in ids for token in text)
    assert encoder.fallback_texts == 0


@pytest.mark.parametrize(
    "tokenizer",
    [
        make_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)),
        make_tokenizer(split_by(r"\p{N}{1,3}|\s+|\S+")),
        make_tokenizer(GPT2_SPLIT, normalizer=normalizers.Lowercase()),
        make_tokenizer(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2_SPLIT])),
        Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]")),
    ],
    ids=["prefix-space", "other-pattern", "lowercase", "digits", "word-level"],
)
def test_unknown_kinds_of_tokenizers_are_encoded_by_the_reference(tokenizer):
    encoder = TextEncoder(tokenizer)
    texts = ["The first DAY of 1234", "", "Zoë's  café\n"]
    assert encoder.engine == "reference"
    assert encoded(encoder, texts) == reference_ids(tokenizer, texts)


def test_dropout_is_never_cached():
    tokenizer = make_tokenizer(GPT2_SPLIT)
    tokenizer.model.dropout = 0.5
    assert TextEncoder(tokenizer).engine == "reference"


def test_special_tokens_of_a_template_are_not_added():
    tokenizer = make_tokenizer(GPT2_SPLIT)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    encoder = TextEncoder(tokenizer)
    assert encoder.engine == "fast"
    assert encoded(encoder, ["the day"]) == encoded(ENCODERS["gpt2"], ["the day"])


def test_a_template_that_repeats_the_text_is_left_to_the_reference():
    tokenizer = make_tokenizer(GPT2_SPLIT)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A $A", special_tokens=[])
    encoder = TextEncoder(tokenizer)
    assert encoder.engine == "reference"
    assert encoded(encoder, ["the day"]) == reference_ids(tokenizer, ["the day"])


def test_empty_batch_and_empty_text():
    assert encoded(ENCODERS["llama3"], []) == []
    assert encoded(ENCODERS["llama3"], ["", "x", ""]) == [[], reference_ids(TOKENIZERS["llama3"], ["x"])[0], []]


def test_cache_stays_within_its_bounds(monkeypatch):
    monkeypatch.setattr(fast_bpe, "_MAX_CACHED_PIECES", 8)
    encoder = TextEncoder(TOKENIZERS["llama3"])
    texts = [*TRAINING_TEXT, "x" * 65 + " " + "y" * 1000]
    assert encoded(encoder, texts) == reference_ids(TOKENIZERS["llama3"], texts)
    cache = encoder._cutter._ids_of.__self__
    assert 0 < len(cache) <= 8
    assert max(map(len, cache)) <= 64


def test_each_wrong_text_that_is_checked_is_counted():
    encoder = TextEncoder(TOKENIZERS["llama3"])
    encoder._cutter._ids_of.__self__[" the"] = np.array([7], np.uint32).tobytes()
    encoder.encode_batch(["a", "on the day", "b", "in the night"])
    assert (encoder.engine, encoder.mismatches) == ("fast", 2)
    encoder.count_anew()
    encoder.encode_batch(["a", "on the day"])
    assert encoder.mismatches == 1


def test_every_256th_text_is_checked():
    encoder = TextEncoder(TOKENIZERS["llama3"])
    encoder._cutter._ids_of.__self__[" the"] = np.array([7], np.uint32).tobytes()
    encoder.encode_batch(["x"] * 16 + ["on the day"] * 240)
    assert encoder.mismatches == 0
    encoder.encode_batch(["on the day"])
    assert encoder.mismatches == 1


def test_the_reference_can_be_asked_for():
    encoder = TextEncoder(TOKENIZERS["llama3"], engine="reference")
    assert encoder.engine == "reference"
    assert encoded(encoder, TRAINING_TEXT) == reference_ids(TOKENIZERS["llama3"], TRAINING_TEXT)
