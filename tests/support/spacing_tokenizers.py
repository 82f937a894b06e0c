"""Small tokenizers that put a space before a text, as those of Llama 2, Mistral and other SentencePiece models."""

import json

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

TEXTS = [
    "The first star of the night.\n\nIt's 1234 parsecs away, isn't it?\n",
    "Zoë counts 東京 and café; the others count  two spaces.\n  An indented line\n",
    "Word by word the word list grew. A new word, a newer word, the newest word.\n",
]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_STRIPPED = [decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def byte_fallback(*, scheme):
    """Return a BPE with byte fallback; `scheme`: "legacy" (normalizers), or that of Metaspace."""
    tokenizer = Tokenizer(
        models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<unk>", "<s>", "</s>", *BYTES],
        limit_alphabet=50,
        show_progress=False,
    )
    lines = [line for text in TEXTS for line in text.split("\n")]
    tokenizer.train_from_iterator(lines * 3, trainer)
    # Bytes are ordinary tokens, and words are not split.
    plain = json.loads(tokenizer.to_str())
    plain["added_tokens"] = [
        token for token in plain["added_tokens"] if token["content"] not in BYTES
    ]
    plain["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(plain))
    if scheme == "legacy":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            prepend_scheme=scheme, split=False
        )
    end = _STRIPPED if scheme != "never" else [decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), *end]
    )
    return tokenizer


def unigram(*, scheme):
    """Return a Unigram with Metaspace that splits words; it knows every character of TEXTS."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(
        vocab_size=150,
        special_tokens=["<unk>", "</s>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def byte_level():
    """Return a byte-level BPE with `add_prefix_space`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def with_added_tokens(tokenizer):
    """Add tokens that are found in text: one that takes the spaces beside it, one that is normalized."""
    tokenizer.add_tokens(
        [
            AddedToken("<think>", normalized=False),
            AddedToken("<tool>", normalized=False, lstrip=True, rstrip=True),
            AddedToken("<name>", normalized=True),
        ]
    )
    return tokenizer


MAKERS = {
    "llama2": lambda: byte_fallback(scheme="legacy"),
    "mistral": lambda: byte_fallback(scheme="first"),
    "always": lambda: byte_fallback(scheme="always"),
    "llama2-added": lambda: with_added_tokens(byte_fallback(scheme="legacy")),
    "mistral-added": lambda: with_added_tokens(byte_fallback(scheme="first")),
    "always-added": lambda: with_added_tokens(byte_fallback(scheme="always")),
    "unigram-always": lambda: unigram(scheme="always"),
    "unigram-first": lambda: unigram(scheme="first"),
    "byte-level": byte_level,
}


def made(name):
    """Return a tokenizer for which, as in a run, special tokens in a text are text."""
    tokenizer = MAKERS[name]()
    tokenizer.encode_special_tokens = True
    return tokenizer
