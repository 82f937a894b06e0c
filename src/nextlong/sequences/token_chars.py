"""Byte level: which characters the tokens of a byte-level BPE stand for.

In:  a `tokenizers.Tokenizer`.
Out: _TOKEN_CHARS, from which NumPy computes how many characters remain of a chunk that is cut (`artifacts/resolve.py`): a
process that exports need not load the tokenizer, which takes half a second for a vocabulary of 128,000.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers
from tokenizers.pre_tokenizers import ByteLevel

# How many characters begin in a token's bytes; whether its first byte continues a character that began before; whether its
# bytes are those of the text wherever its id encodes a part of it.
_TOKEN_CHARS: Final = np.dtype([("begun", "i4"), ("goes_on", "?"), ("readable", "?")])

_CONTINUATION_BYTES: Final = bytes(range(0x80, 0xC0))  # of UTF-8: every other byte begins a character
_PROBE_ASCII: Final = "It's\r\n\ta test,  of (1234) blanks \n "
_PROBE: Final = f"{_PROBE_ASCII} é 日本 👍🏽 \u200b עברית\n"


def _byte_characters() -> dict[int, str]:
    """Return byte → the character that stands for it in a byte-level vocabulary, read off the reference's ByteLevel."""
    convert = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    # Together these code points hold every byte that UTF-8 can hold.
    codes = [*range(0x800), *range(0x800, 0xD800, 0x800), *range(0xE000, 0x110000, 0x1000)]
    return {
        byte: char for code in codes for byte, char in zip(chr(code).encode(), convert(chr(code))[0][0], strict=True)
    }


def token_chars(tokenizer: Tokenizer) -> NDArray[Any]:
    """Return _TOKEN_CHARS, shape (highest id + 1,).

    No token is readable where the tokenizer is no byte-level BPE or has another normalizer than NFC.
    """
    table = np.zeros(max(tokenizer.get_vocab().values(), default=-1) + 1, _TOKEN_CHARS)
    normalizer = tokenizer.normalizer
    if not isinstance(tokenizer.model, models.BPE) or not isinstance(normalizer, normalizers.NFC | None):
        return table
    # `contents`: id → bytes, without the unknown token and ids that stand for one thing or another.
    bytes_of = {ord(char): byte for byte, char in _byte_characters().items()}
    alphabet = set(map(chr, bytes_of))
    unknown = tokenizer.model.unk_token
    contents: dict[int, bytes] = {}
    for name, token in tokenizer.get_vocab(with_added_tokens=False).items():
        if name != unknown and alphabet.issuperset(name):
            contents[token] = name.translate(bytes_of).encode("latin-1")
    for token, added in tokenizer.get_added_tokens_decoder().items():
        content = added.content.encode()
        if added.content == unknown or contents.setdefault(token, content) != content:
            contents.pop(token, None)
    probe = _PROBE if normalizer is None else _PROBE_ASCII
    if b"".join(contents.get(i, b"") for i in tokenizer.encode(probe, add_special_tokens=False).ids) != probe.encode():
        return table
    readable = bool if normalizer is None else _is_readable_under_nfc
    for token, content in contents.items():
        begun = len(content.translate(None, _CONTINUATION_BYTES))
        table[token] = (begun, b"\x80" <= content[:1] < b"\xc0", readable(content))
    return table


def _is_readable_under_nfc(content: bytes) -> bool:
    """Return whether a token's characters are whole, none of them composed, and none a mark, which may have changed places.

    Of such characters, NFC's output is the text's characters, decomposed one by one; if it is as long as the text, none
    became several.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return False
    # A character that Python's Unicode does not know yet may be composed in the tokenizer's.
    unsure = any(unicodedata.category(char) in ("Mn", "Mc", "Me", "Cn") for char in text)
    return not unsure and unicodedata.is_normalized("NFD", text)


def lost_share(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Return the share of the texts' characters, in NFC, that what their tokens decode to does not have, 0 to 1."""
    decoder = tokenizer.decoder
    if decoder is None and token_chars(tokenizer)["readable"].any():
        decoder = decoders.ByteLevel()
    model = tokenizer.model
    unknown = model.unk_token if isinstance(model, models.BPE | models.WordPiece | models.WordLevel) else None
    total = lost = 0
    for text, encoding in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
        tokens = [token for token in encoding.tokens if token != unknown]
        decoded = " ".join(tokens) if decoder is None else str(decoder.decode(tokens))
        characters = Counter(unicodedata.normalize("NFC", text))
        characters.subtract(Counter(unicodedata.normalize("NFC", decoded)))
        total += len(text)
        lost += sum(count for count in characters.values() if count > 0)
    return lost / max(1, total)


def lossy_tokenizer(share: float) -> str:
    """Say what a share of lost text means and what helps; "" where nothing is lost."""
    if not share:
        return ""
    return (
        f"loses {share:.1%} of the text's characters (capitals, accents, newlines, or what it does not know): no model can learn "
        "what its tokens do not say; a byte-level tokenizer loses nothing"
    )
