"""A tokenizer like Llama 2's: BPE over the whole text, with a blank before it and bytes for what it does not know."""

import json

from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

TEXT = (
    "The tide turned (twice) in 1889, and the harbour – quiet now – held 42 boats.\n\n"
    "“Anchors hold,” said the captain; the anchors held.\n\tx = tide_of(harbour)  # no\n"
)


def llama_like(*, spanning=()):
    """Return a tokenizer; `spanning` are merges of two pieces, such as ("e", ",")."""
    learned = Tokenizer(models.BPE(unk_token="<unk>"))
    learned.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(),
            pre_tokenizers.Punctuation(),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, show_progress=False
    )
    learned.train_from_iterator([" ".join(TEXT.split())] * 3, trainer)
    model = json.loads(learned.to_str())["model"]
    vocabulary = model["vocab"]
    merges = [tuple(merge) for merge in model["merges"]]
    for left, right in spanning:
        vocabulary[left + right] = len(vocabulary)
        merges.append((left, right))
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True) for name in special[:3]]
    )
    return tokenizer
